#include "ops/common/device.cuh"
#include "ops/low_rank/low_rank.h"

namespace fwpkm {
namespace {

// rows = heads * n rows of n.
__global__ void diagonal_kernel(float* w, int64_t rows, int64_t n, float diagonal) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < rows;
       i += int64_t{gridDim.x} * blockDim.x) {
    w[i * n + i % n] += diagonal;
  }
}

}  // namespace

void low_rank_forward_cuda(const OpArgs& args) {
  const int64_t heads = args.in[0].dim(0), n = args.in[0].dim(1), rank = args.in[0].dim(2);
  if (heads * n == 0) {
    return;
  }
  float* w = args.out[0].ptr<float>();
  gpu_gemm({.m = n,
            .n = n,
            .k = rank,
            .lda = rank,
            .ldb = n,
            .ldc = n,
            .batch = heads,
            .stride_a = n * rank,
            .stride_b = n * rank,
            .stride_c = n * n},
           args.in[0].ptr<float>(), args.in[1].ptr<float>(), w);
  diagonal_kernel<<<blocks_for(heads * n, 256), 256, 0, this_stream()>>>(
      w, heads * n, n, static_cast<float>(args.attr<LowRankSettings>().diagonal));
  check_launch("low_rank");
}

void low_rank_backward_cuda(const OpArgs& args) {
  const int64_t heads = args.in[0].dim(0), n = args.in[0].dim(1), rank = args.in[0].dim(2);
  const float* dw = args.dout[0].ptr<float>();
  if (args.din[0]) {
    gpu_gemm({.transpose_b = true,
              .m = n,
              .n = rank,
              .k = n,
              .lda = n,
              .ldb = n,
              .ldc = rank,
              .batch = heads,
              .stride_a = n * n,
              .stride_b = n * rank,
              .stride_c = n * rank,
              .beta = args.accumulate[0] ? 1.0f : 0.0f},
             dw, args.in[1].ptr<float>(), args.din[0].ptr<float>());
  }
  if (args.din[1]) {
    gpu_gemm({.transpose_a = true,
              .m = rank,
              .n = n,
              .k = n,
              .lda = rank,
              .ldb = n,
              .ldc = n,
              .batch = heads,
              .stride_a = n * rank,
              .stride_b = n * n,
              .stride_c = n * rank,
              .beta = args.accumulate[1] ? 1.0f : 0.0f},
             args.in[0].ptr<float>(), dw, args.din[1].ptr<float>());
  }
}

}  // namespace fwpkm
