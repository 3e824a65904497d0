#include "ops/common/gemm.h"

#include <dnnl.h>

#include <cstring>

#include "base/error.h"

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

}  // namespace fwpkm
