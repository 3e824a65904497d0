// Matrix products on the host, by oneDNN.
#pragma once

#include <cstdint>

namespace fwpkm {

// C = alpha op(A) op(B) + beta C, all row-major; op transposes where asked. op(A) is [m, k], op(B)
// is [k, n], C is [m, n]; ld* are row strides of the matrices as stored. beta 0 overwrites C, even
// if it holds NaN. Runs on all threads, or on the calling one alone inside a parallel loop.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc);

// The same, but sums are in double and rounded once. For products too small for speed to matter,
// where a model of a few features would otherwise be the less exact the fewer it has.
void gemm_in_double(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                    float alpha, const float* a, int64_t lda, const float* b, int64_t ldb,
                    float beta, float* c, int64_t ldc);
inline constexpr int64_t kSmallProduct = 1 << 20;  // m * n * k

}  // namespace fwpkm
