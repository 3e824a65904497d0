// Products by cuBLAS; bias and residual go into the output before it, which the product is added
// to.
#include "ops/common/device.cuh"
#include "ops/linear/linear.h"

namespace fwpkm {
namespace {

__global__ void start_kernel(const float* bias, const float* residual, float* y, int64_t size,
                             int64_t width) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = (bias != nullptr ? bias[i % width] : 0) + (residual != nullptr ? residual[i] : 0);
  }
}

__global__ void add_kernel(const float* from, float* to, int64_t size, bool accumulate) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    put(to + i, from[i], accumulate);
  }
}

__global__ void bias_kernel(const float* dy, float* partial, int64_t rows, int64_t width) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (column >= width) {
    return;
  }
  const int64_t begin = blockIdx.y * kColumnRows;
  float sum = 0;
  for (int64_t row = begin; row < min(rows, begin + kColumnRows); ++row) {
    sum += dy[row * width + column];
  }
  partial[blockIdx.y * width + column] = sum;
}

}  // namespace

void linear_forward_cuda(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  float* y = args.out[0].ptr<float>();
  const bool start = args.in[2] || args.in[3];
  if (start && rows > 0) {
    start_kernel<<<blocks_for(rows * outs, 256), 256, 0, this_stream()>>>(
        args.in[2].ptr<float>(), args.in[3].ptr<float>(), y, rows * outs, outs);
    check_launch("linear");
  }
  gpu_gemm({.transpose_b = true,
            .m = rows,
            .n = outs,
            .k = ins,
            .lda = ins,
            .ldb = ins,
            .ldc = outs,
            .beta = start ? 1.0f : 0.0f},
           args.in[0].ptr<float>(), args.in[1].ptr<float>(), y);
}

void linear_backward_cuda(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  const float* dy = args.dout[0].ptr<float>();
  if (args.din[0]) {
    gpu_gemm({.m = rows,
              .n = ins,
              .k = outs,
              .lda = outs,
              .ldb = ins,
              .ldc = ins,
              .beta = args.accumulate[0] ? 1.0f : 0.0f},
             dy, args.in[1].ptr<float>(), args.din[0].ptr<float>());
  }
  if (args.din[1]) {
    gpu_gemm({.transpose_a = true,
              .m = outs,
              .n = ins,
              .k = rows,
              .lda = outs,
              .ldb = ins,
              .ldc = ins,
              .beta = args.accumulate[1] ? 1.0f : 0.0f},
             dy, args.in[0].ptr<float>(), args.din[1].ptr<float>());
  }
  if (args.din[2]) {
    const int64_t groups = std::max<int64_t>(1, column_groups(rows));
    auto* partial = static_cast<float*>(args.workspace);
    bias_kernel<<<dim3(static_cast<unsigned>(ceil_div(outs, 128)), static_cast<unsigned>(groups)),
                  128, 0, this_stream()>>>(dy, partial, rows, outs);
    check_launch("linear bias");
    add_column_groups(partial, groups, outs, args.din[2].ptr<float>(), args.accumulate[2]);
  }
  if (args.din[3] && args.din[3].data != args.dout[0].data && rows > 0) {
    add_kernel<<<blocks_for(rows * outs, 256), 256, 0, this_stream()>>>(
        dy, args.din[3].ptr<float>(), rows * outs, args.accumulate[3]);
    check_launch("linear residual");
  }
}

size_t linear_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[2]
             ? static_cast<size_t>(std::max<int64_t>(1, column_groups(args.in[0].rows())) *
                                   args.in[1].dim(0)) *
                   sizeof(float)
             : 0;
}

}  // namespace fwpkm
