// PTX: the first word of an asm statement is the name of a function here, its operands in their
// order, those that are written first. Addresses in shared memory have 32 bits, which is enough for
// those of a program that does not move (no PIE).
#pragma once

#include "emulator.h"

namespace emulated {

void multiply(float* (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void load_matrices(uint32_t* (&to)[4], uintptr_t row, bool transposed);

inline void asm_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2,
                                                                    float& d3, uint32_t a0,
                                                                    uint32_t a1, uint32_t a2,
                                                                    uint32_t a3, uint32_t b0,
                                                                    uint32_t b1) {
  float* d[] = {&d0, &d1, &d2, &d3};
  multiply(d, {a0, a1, a2, a3}, {b0, b1});
}
inline void asm_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& x0, uint32_t& x1, uint32_t& x2,
                                                         uint32_t& x3, uint32_t row) {
  uint32_t* to[] = {&x0, &x1, &x2, &x3};
  load_matrices(to, row, false);
}
inline void asm_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& x0, uint32_t& x1,
                                                               uint32_t& x2, uint32_t& x3,
                                                               uint32_t row) {
  uint32_t* to[] = {&x0, &x1, &x2, &x3};
  load_matrices(to, row, true);
}
// Copies are done at once. What was to be there later may be there sooner.
template <typename From>
void asm_cp_async_cg_shared_global(uint32_t to, From from, int bytes) {
  auto* at = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(to));
  std::memset(at, 0, 16);
  std::memcpy(at, (const void*)from, static_cast<size_t>(bytes));
}
inline void asm_cp_async_commit_group() {}
inline void asm_cp_async_wait_group(int) {}
inline void asm_cp_async_wait_all() {}
template <typename From>
void asm_prefetch_global_L2(From) {}
inline void asm_ex2_approx_ftz_f32(float& y, float x) {
  y = std::exp2(x);
}
inline void asm_rcp_approx_ftz_f32(float& y, float x) {
  y = 1.0f / x;
}
// The sum with what a lane `step` before has, if there is one.
inline void asm_shfl_sync_up_b32(int& sum, int step) {
  const int before = __shfl_up_sync(0xffffffffu, sum, step);
  sum += lane() >= step ? before : 0;
}
// Without an instruction: only so that compilers know less.
template <typename T>
void asm_(T&) {}

}  // namespace emulated
