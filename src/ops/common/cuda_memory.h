// How much of the GPU's memory this process has, for those who take some.
#pragma once

#include <atomic>
#include <cstddef>

namespace fwpkm::cuda {

std::atomic<size_t>& memory_taken();
// Whether it may have so many bytes more (FWPKM_GPU_MEMORY).
bool memory_allowed(size_t bytes);

}  // namespace fwpkm::cuda
