// A build without CUDA.
#include "memory/gpu_rows.h"

#include "base/error.h"

namespace fwpkm::gpu_rows {
namespace {

[[noreturn]] void none() {
  fail("device", "this build has no CUDA backend; build it with `make build-cuda`");
}

}  // namespace

void copy(const void*, void*, size_t, std::span<const Move>) {
  none();
}
void clear_pages(int32_t*, int64_t, std::span<const int32_t>) {
  none();
}
void change_pages(int32_t*, int64_t, std::span<const Change>) {
  none();
}
void send(void*, const void*, size_t) {
  none();
}

}  // namespace fwpkm::gpu_rows
