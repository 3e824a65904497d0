// The GPU as the rest of the program sees it. In a build without CUDA there is none: devices() is
// 0, and every other call fails by name.
#pragma once

#include <cstddef>
#include <string>

#include "tensor/view.h"

namespace fwpkm::cuda {

// Whether this program was built with CUDA.
bool built();
// GPUs that can be used now; 0 without a driver too.
int devices();
// "NVIDIA H200, 139.8 GiB"
std::string describe();
size_t free_bytes();

// Memory of the GPU; null if there is not enough.
void* allocate(size_t bytes);
void release(void* data) noexcept;

// All of these are in order with the kernels of the calling thread.
void copy_in(void* to, const void* host, size_t bytes);     // the host's memory may change at once
void copy_out(void* host, const void* from, size_t bytes);  // waits until it is there
void copy(void* to, const void* from, size_t bytes);
void fill(void* to, int byte, size_t bytes);
// Views of one shape and type, whatever their strides.
void copy_view(const View& from, const View& to);
// Waits until all that the calling thread asked for is done; errors of kernels show here.
void synchronize();

}  // namespace fwpkm::cuda
