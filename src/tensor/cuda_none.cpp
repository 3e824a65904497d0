// A build without CUDA.
#include "tensor/cuda.h"

namespace fwpkm::cuda {
namespace {

[[noreturn]] void none() {
  fail("device", "this build has no CUDA backend; build it with `make build-cuda`");
}

}  // namespace

bool built() {
  return false;
}
int devices() {
  return 0;
}
std::string describe() {
  none();
}
size_t free_bytes() {
  none();
}
void* allocate(size_t) {
  none();
}
void release(void*, size_t) noexcept {}
void copy_in(void*, const void*, size_t) {
  none();
}
void copy_out(void*, const void*, size_t) {
  none();
}
void copy(void*, const void*, size_t) {
  none();
}
void fill(void*, int, size_t) {
  none();
}
void copy_view(const View&, const View&) {
  none();
}
void convert(const View&, const View&) {
  none();
}
void join_late() {}
void synchronize() {
  none();
}
void* allocate_pinned(size_t) {
  none();
}
void release_pinned(void*) noexcept {}
void send(void*, const void*, size_t) {
  none();
}
void fetch(void*, const void*, size_t) {
  none();
}
bool AddressSpace::grow(size_t) {
  none();
}
void AddressSpace::drop() {}
Graph::Graph(const std::function<void()>&) {
  none();
}
Graph::~Graph() {
  graph_ = nullptr;
}
void Graph::launch() {
  none();
}

}  // namespace fwpkm::cuda
