// What CUDA kernels share. Kernels take views, never allocate, and add in a fixed order: no float
// atomics, so that the same call gives the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/op.h"
#include "tensor/view.h"

namespace fwpkm {

// The calling thread's stream. All kernels go there, in order.
cudaStream_t this_stream();
// Throws an Error that names what was being done.
void check_cuda(cudaError_t error, const char* what);
// After a launch: bad configurations show here, errors inside kernels at the next synchronize.
inline void check_launch(const char* what) {
  check_cuda(cudaGetLastError(), what);
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Blocks for a loop over `items` with this many threads each; loops step over the whole grid.
inline unsigned blocks_for(int64_t items, int threads, int64_t most = 132 * 16) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min(ceil_div(items, threads), most)));
}

// Turns a row number into an element offset, as Rows does on the host.
struct DeviceRows {
  int levels = 0;
  int64_t count = 0;
  int64_t extents[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  explicit DeviceRows(const View& view) {
    count = view.rows();
    for (int i = 0; i + 1 < view.rank(); ++i) {
      const int64_t extent = view.shape.dims[i], stride = view.strides[i];
      if (extent == 1) {
        continue;
      }
      if (levels > 0 && strides[levels - 1] == extent * stride) {
        extents[levels - 1] *= extent;
        strides[levels - 1] = stride;
      } else {
        extents[levels] = extent;
        strides[levels] = stride;
        ++levels;
      }
    }
  }
  __device__ int64_t operator[](int64_t row) const {
    if (levels == 1) {
      return row * strides[0];
    }
    int64_t offset = 0;
    for (int i = levels - 1; i >= 0; --i) {
      offset += row % extents[i] * strides[i];
      row /= extents[i];
    }
    return offset;
  }
};

// Sums over a warp and over a block, the same for all threads; always in one order.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}
template <int kThreads>
__device__ inline float block_sum(float x) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  __shared__ float parts[kThreads / 32];
  x = warp_sum(x);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    sum += parts[i];
  }
  return sum;
}
template <int kThreads>
__device__ inline float block_max(float x) {
  __shared__ float parts[kThreads / 32];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float most = parts[0];
  for (int i = 1; i < kThreads / 32; ++i) {
    most = fmaxf(most, parts[i]);
  }
  return most;
}

// Adds or sets, as the gradient contract asks.
__device__ inline void put(float* to, float value, bool accumulate) {
  *to = accumulate ? *to + value : value;
}

// Sums over rows: partial[group][column] for groups of rows, then to[column] in the order of the
// groups. `partial` is workspace of column_groups(rows) * columns floats.
inline constexpr int64_t kColumnRows = 64;
inline int64_t column_groups(int64_t rows) {
  return ceil_div(rows, kColumnRows);
}
void add_column_groups(const float* partial, int64_t groups, int64_t columns, float* to,
                       bool accumulate);

// Products, row-major: C [m, n] = alpha op(A) op(B) + beta C (+ bias [n]), batches `stride`
// elements apart. In float32, without TF32.
struct GpuGemm {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  float alpha = 1, beta = 0;
};
void gpu_gemm(const GpuGemm& g, const float* a, const float* b, float* c);

}  // namespace fwpkm
