// What CUDA kernels of fast weights share: products of chunks, in bf16 on tensor cores or in float,
// and the nonlinearity between them.
#pragma once

#include "ops/common/device.cuh"

namespace fwpkm {

// Elements that a thread takes at once. Products in bf16 are only for rows that allow runs of 8.
template <typename Real>
inline constexpr int kFastRun = sizeof(Real) == 2 ? 8 : 1;

// Whether products with this many columns are worth tensor cores. Smaller ones take floats: that
// costs little, and a short sum of rounded numbers is not exact enough.
inline bool fast_tensor_width(int64_t width) {
  return width % 8 == 0 && width >= 64;
}

// Row-major [rows, columns], several of them `stride` elements apart.
template <typename Real>
struct FastMatrices {
  const Real* data;
  int64_t rows, columns, stride;
};

// C (= or +=) A B, of `batch` matrices each; either may be taken transposed.
struct FastProduct {
  bool transpose_a = false, transpose_b = false;
  bool add = false;
};
template <typename Real>
void fast_product(int64_t batch, const FastProduct& how, const FastMatrices<Real>& a,
                  const FastMatrices<Real>& b, float* c, int64_t stride_c) {
  GpuGemm g;
  g.transpose_a = how.transpose_a;
  g.transpose_b = how.transpose_b;
  g.m = how.transpose_a ? a.columns : a.rows;
  g.n = how.transpose_b ? b.rows : b.columns;
  g.k = how.transpose_a ? a.rows : a.columns;
  g.lda = a.columns;
  g.ldb = b.columns;
  g.ldc = g.n;
  g.batch = batch;
  g.stride_a = a.stride;
  g.stride_b = b.stride;
  g.stride_c = stride_c;
  g.beta = how.add ? 1.0f : 0.0f;
  // Small products of floats are exact, but only one by one.
  constexpr int64_t kSmall = int64_t{1} << 17;
  if (sizeof(Real) == 4 && batch > 1 && g.m * g.k + g.k * g.n + g.m * g.n <= kSmall) {
    g.batch = 1;
    for (int64_t i = 0; i < batch; ++i) {
      gpu_gemm(g, a.data + i * a.stride, b.data + i * b.stride, c + i * stride_c);
    }
    return;
  }
  gpu_gemm(g, a.data, b.data, c);
}

// silu(x), its slope and the slope of that.
struct FastSilu {
  float value, slope, bend;
};
template <typename Real>
__device__ inline FastSilu fast_silu(float x) {
  const float s = gated<Real>(1, x), rest = 1 - s;
  return {x * s, s * (1 + x * rest), s * rest * (2 + x * (rest - s))};
}

// Calls fn(row, column) for the first element of each run in [rows, columns], over the whole grid.
struct FastGrid {
  uint32_t count;  // of runs
  FastDivisor runs;

  FastGrid(int64_t rows, int64_t columns, int run) : runs(columns / run) {
    require(rows * (columns / run) < int64_t{1} << 31, "cuda", "{} rows of {} are too many", rows,
            columns);
    count = static_cast<uint32_t>(rows * (columns / run));
  }
  unsigned blocks() const { return blocks_for(count, kThreads); }

  static constexpr int kThreads = 256;
};
template <int kRun, typename Fn>
__device__ inline void for_fast_runs(const FastGrid& grid, Fn&& fn) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < grid.count;
       i += gridDim.x * blockDim.x) {
    const uint32_t row = grid.runs.quotient(i);
    fn(row, (i - row * grid.runs.divisor) * kRun);
  }
}

// Calls fn with null pointers of the tensors' type and of the products': bf16 where tensors are,
// the products are `wide` and all rows are whole runs; empty views are.
template <typename Fn>
void with_fast_types(const View& tensor, bool wide, std::initializer_list<View> rows, Fn&& fn) {
  if (tensor.dtype != DType::kBF16) {
    fn(static_cast<float*>(nullptr), static_cast<float*>(nullptr));
  } else if (wide && in_runs_of(kFastRun<bf16>, rows)) {
    fn(static_cast<bf16*>(nullptr), static_cast<bf16*>(nullptr));
  } else {
    fn(static_cast<bf16*>(nullptr), static_cast<float*>(nullptr));
  }
}
// A view of a list that only backward has.
inline View view_or_none(std::span<const View> list, size_t i) {
  return i < list.size() ? list[i] : View();
}

}  // namespace fwpkm
