// The calls of cuBLAS and cuBLASLt that the program makes, in double and rounded once.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <vector>

#include "emulator.h"

namespace {

// Column-major, as cuBLAS wants them.
struct Matrix {
  const void* data;
  cudaDataType_t type;
  int64_t ld, stride;
  bool transposed;

  double at(int64_t batch, int64_t row, int64_t column) const {
    const int64_t i = batch * stride + (transposed ? column + row * ld : row + column * ld);
    switch (type) {
      case CUDA_R_32F:
        return static_cast<const float*>(data)[i];
      case CUDA_R_64F:
        return static_cast<const double*>(data)[i];
      default:
        return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    }
  }
};

struct Product {
  int64_t m, n, k, batch;
  double alpha, beta;
  Matrix a, b, c;
  void* d;  // laid out like c
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;

  void put(int64_t s, int64_t row, int64_t column, double x) const {
    const int64_t i = s * c.stride + row + column * c.ld;
    switch (c.type) {
      case CUDA_R_32F:
        static_cast<float*>(d)[i] = static_cast<float>(x);
        return;
      case CUDA_R_64F:
        static_cast<double*>(d)[i] = x;
        return;
      default:
        static_cast<__nv_bfloat16*>(d)[i] = __float2bfloat16_rn(static_cast<float>(x));
    }
  }
  void compute(int64_t s) const {
    std::vector<double> left(static_cast<size_t>(m * k)), right(static_cast<size_t>(n * k));
    for (int64_t x = 0; x < k; ++x) {
      for (int64_t i = 0; i < m; ++i) {
        left[static_cast<size_t>(i * k + x)] = a.at(s, i, x);
      }
      for (int64_t j = 0; j < n; ++j) {
        right[static_cast<size_t>(j * k + x)] = b.at(s, x, j);
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t x = 0; x < k; ++x) {
          sum += left[static_cast<size_t>(i * k + x)] * right[static_cast<size_t>(j * k + x)];
        }
        sum = alpha * sum + (beta != 0 ? beta * c.at(s, i, j) : 0);
        const Matrix column{bias, bias_type, 0, 0, false};
        put(s, i, j, sum + (bias != nullptr ? column.at(0, i, 0) : 0));
      }
    }
  }
  void enqueue() const {
    emulated::enqueue([product = *this] {
      for (int64_t s = 0; s < product.batch; ++s) {
        product.compute(s);
      }
    });
  }
};

bool transposes(cublasOperation_t operation) {
  return operation != CUBLAS_OP_N;
}

struct Description {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  bool adds_bias = false;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
};
struct Layout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
  int64_t stride = 0;
  int32_t batch = 1;

  Matrix of(const void* data, bool transposed) const {
    return {data, type, ld, stride, transposed};
  }
};
const Layout& layout_of(cublasLtMatrixLayout_t layout) {
  return *reinterpret_cast<const Layout*>(layout);
}
int nothing;

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(&nothing);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) {
  return "an emulated status";
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t, cublasOperation_t of_a, cublasOperation_t of_b, int m,
                              int n, int k, const double* alpha, const double* a, int lda,
                              const double* b, int ldb, const double* beta, double* c, int ldc) {
  Product{m,
          n,
          k,
          1,
          *alpha,
          *beta,
          {a, CUDA_R_64F, lda, 0, transposes(of_a)},
          {b, CUDA_R_64F, ldb, 0, transposes(of_b)},
          {c, CUDA_R_64F, ldc, 0, false},
          c}
      .enqueue();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t of_a,
                                          cublasOperation_t of_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType type_a,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  Product{m,
          n,
          k,
          batch,
          *static_cast<const float*>(alpha),
          *static_cast<const float*>(beta),
          {a, type_a, lda, stride_a, transposes(of_a)},
          {b, type_b, ldb, stride_b, transposes(of_b)},
          {c, type_c, ldc, stride_c, false},
          c}
      .enqueue();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&nothing);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t,
                                        cudaDataType_t) {
  *to = reinterpret_cast<cublasLtMatmulDesc_t>(new Description());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t) {
  auto& description = *reinterpret_cast<Description*>(of);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      description.a = *static_cast<const cublasOperation_t*>(value);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      description.b = *static_cast<const cublasOperation_t*>(value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      description.adds_bias = true;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      description.bias_type = *static_cast<const cudaDataType_t*>(value);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      description.bias = *static_cast<const void* const*>(value);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *to = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t of,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, size_t) {
  auto& layout = *reinterpret_cast<Layout*>(of);
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      layout.batch = *static_cast<const int32_t*>(value);
      break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      layout.stride = *static_cast<const int64_t*>(value);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  *to = reinterpret_cast<cublasLtMatmulPreference_t>(&nothing);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t what, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  const auto& description = *reinterpret_cast<const Description*>(what);
  const Layout& of_a = layout_of(layout_a);
  const Layout& of_c = layout_of(layout_c);
  const bool turned = transposes(description.a);
  Product{of_c.rows,
          of_c.columns,
          turned ? of_a.rows : of_a.columns,
          of_c.batch,
          *static_cast<const float*>(alpha),
          *static_cast<const float*>(beta),
          of_a.of(a, turned),
          layout_of(layout_b).of(b, transposes(description.b)),
          of_c.of(c, false),
          d,
          description.adds_bias ? description.bias : nullptr,
          description.bias_type}
      .enqueue();
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
