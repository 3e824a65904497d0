// The GPU as the rest of the program sees it. In a build without CUDA there is none: devices() is
// 0, and every other call fails by name.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tensor/view.h"

namespace fwpkm::cuda {

// Whether this program was built with CUDA.
bool built();
// GPUs that can be used now; 0 without a driver too.
int devices();
// "NVIDIA H200, 139.8 GiB"
std::string describe();
// What this process may still take: what is free, within FWPKM_GPU_MEMORY.
size_t free_bytes();

// Memory of the GPU; null if there is not enough.
void* allocate(size_t bytes);
// Small blocks wait for the calling thread's next request: giving memory back stops the GPU.
void release(void* data, size_t bytes) noexcept;

// All of these are in order with the kernels of the calling thread.
void copy_in(void* to, const void* host, size_t bytes);     // the host's memory may change at once
void copy_out(void* host, const void* from, size_t bytes);  // waits until it is there
void copy(void* to, const void* from, size_t bytes);
void fill(void* to, int byte, size_t bytes);
// Views of one shape and type, whatever their strides.
void copy_view(const View& from, const View& to);
// Copies a contiguous float view to a bf16 one of as many elements.
void convert(const View& from, const View& to);
// Kernels from now on come after what ops left beside others (Op::late).
void join_late();
// Waits until all that the calling thread asked for is done; errors of kernels show here.
void synchronize();

// Memory of the host that kernels can use too, slowly, and that copies to and from the GPU need not
// wait for; null if there is none left.
void* allocate_pinned(size_t bytes);
void release_pinned(void* data) noexcept;
// Copies that only join the queue: `host` is pinned memory, which must stay as it is until they are
// done.
void send(void* to, const void* host, size_t bytes);
void fetch(void* host, const void* from, size_t bytes);

// A part of the GPU's addresses, filled with memory from the front: what lies there never moves.
class AddressSpace {
 public:
  AddressSpace() = default;
  ~AddressSpace() { drop(); }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Makes sure that there is memory behind the first `bytes`; false if the GPU has not enough.
  bool grow(size_t bytes);
  // Gives all memory back, once the calling thread's kernels are done; addresses too.
  void drop();
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;  // with memory
};

// The kernels and copies of a piece of work, recorded once and then started as one.
class Graph {
 public:
  // Runs `work` without executing anything of what it asks the GPU for. It must not wait for the
  // GPU, and memory that it uses must stay where it is as long as the graph lives.
  explicit Graph(const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch();

 private:
  void* graph_ = nullptr;
};

}  // namespace fwpkm::cuda
