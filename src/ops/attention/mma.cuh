// Instructions for tiles in shared memory that are found by their 32-bit addresses, which may be
// computed with; pointers would cost twice the registers. The product itself is in
// ops/common/mma.cuh.
#pragma once

#include "ops/common/mma.cuh"

namespace fwpkm::attention_gpu {

__device__ inline uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// Starts copying 16 bytes to shared memory; zeros, without a look at `from`, if nothing is there.
__device__ inline void copy_async(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
               : "memory");
}
// Waits for the calling thread's copies; others see them after a barrier.
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. Lane l gets elements
// 2(l % 4) and one more of row l / 4, with load_columns of column l / 4. No clobber of memory: what
// is read was written by copies, and barriers keep their place among volatile instructions.
__device__ inline void load_matrices(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ inline void load_columns(uint32_t address, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// 2^x; 0 for minus infinity.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fwpkm::attention_gpu
