#include "ops/common/gemm.h"

#include <dnnl.h>

#include <cstring>

#include "base/error.h"
#include "base/parallel.h"

namespace fwpkm {

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc) {
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    for (int64_t i = 0; i < m && beta == 0.0f; ++i) {
      std::memset(c + i * ldc, 0, static_cast<size_t>(n) * sizeof(float));
    }
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          alpha, a, lda, b, ldb, beta, c, ldc);
  require(status == dnnl_success, "gemm", "oneDNN refused a product of {} x {} x {} (status {})", m,
          n, k, static_cast<int>(status));
}

void gemm_in_double(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                    float alpha, const float* a, int64_t lda, const float* b, int64_t ldb,
                    float beta, float* c, int64_t ldc) {
  const int64_t a_row = transpose_a ? 1 : lda, a_step = transpose_a ? lda : 1;
  const int64_t b_column = transpose_b ? ldb : 1, b_step = transpose_b ? 1 : ldb;
  parallel_ranges(m, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < k; ++x) {
          sum += static_cast<double>(a[i * a_row + x * a_step]) *
                 static_cast<double>(b[j * b_column + x * b_step]);
        }
        float& to = c[i * ldc + j];
        to = static_cast<float>((beta == 0.0f ? 0.0 : static_cast<double>(beta * to)) +
                                static_cast<double>(alpha) * sum);
      }
    }
  });
}

}  // namespace fwpkm
