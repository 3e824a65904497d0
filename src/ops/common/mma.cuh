// Tensor cores for kernels in bf16, and copies that go on while a kernel computes. PTX that
// everything from sm_80 on has.
//
// A product of a warp is D [16, 8] += A [16, 16] B [16, 8]. Lane l of it has, with line = l / 4 and
// pair = 2 (l % 4), each register holding two neighbours of a row (of A, D) or a column (of B):
//   D: d[0..1] at (line, pair), d[2..3] at (line + 8, pair)
//   A: a[0] at (line, pair), a[1] at (line + 8, pair), a[2] and a[3] 8 columns to the right
//   B: b0 at (pair, line), b1 8 rows below
// So D^T, rounded, is a B, and two D side by side are an A: products can follow each other in
// registers.
#pragma once

#include "ops/common/device.cuh"

namespace fwpkm {

// Two numbers in one register, the first in its lower half.
__device__ inline uint32_t pack_two(float first, float second) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&two);
}
__device__ inline float2 unpack_two(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}

__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  // Volatile, or it could move to where only some lanes want the result.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 pieces of shared memory: lanes 8 i .. 8 i + 7 give the rows (16 bytes each, aligned)
// of piece i, and every lane gets its (line, pair) of it in to[i].
__device__ inline void load_pieces(uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same of each piece's transpose.
__device__ inline void load_pieces_transposed(uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The four pieces of a 16 x 16 tile, down and then right, or right and then down.
__device__ inline const bf16* down_first(const bf16* tile, int ld) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return tile + lane % 16 * ld + lane / 16 * 8;
}
__device__ inline const bf16* right_first(const bf16* tile, int ld) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return tile + (lane % 8 + lane / 16 * 8) * ld + lane / 8 % 2 * 8;
}

// A is a tile in shared memory, or its transpose. Rows of a tile are `ld` apart; they meet no bank
// twice if ld is an odd number of 16 bytes.
__device__ inline void load_a(uint32_t (&a)[4], const bf16* tile, int ld) {
  load_pieces(a, down_first(tile, ld));
}
__device__ inline void load_a_of_transpose(uint32_t (&a)[4], const bf16* tile, int ld) {
  load_pieces_transposed(a, right_first(tile, ld));
}
// Two B side by side are a tile, or its transpose: b[0..1] and b[2..3].
__device__ inline void load_b(uint32_t (&b)[4], const bf16* tile, int ld) {
  load_pieces_transposed(b, down_first(tile, ld));
}
__device__ inline void load_b_of_transpose(uint32_t (&b)[4], const bf16* tile, int ld) {
  load_pieces(b, right_first(tile, ld));
}

// 16 bytes from global to shared memory, both aligned; zeros where they are not there (`from` is
// not read then). Copies are committed in groups; waiting is for all but the last kLeft groups.
__device__ inline void copy_async(void* to, const void* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

}  // namespace fwpkm
