#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/low_rank/low_rank.h"

namespace fwpkm {

void low_rank_forward_cpu(const OpArgs& args) {
  const int64_t n = args.in[0].dim(1), rank = args.in[0].dim(2);
  const auto diagonal = static_cast<float>(args.attr<LowRankSettings>().diagonal);
  parallel_items(args.in[0].dim(0), [&](int64_t h) {
    float* w = args.out[0].ptr<float>() + h * n * n;
    gemm(false, false, n, n, rank, 1.0f, args.in[0].ptr<float>() + h * n * rank, rank,
         args.in[1].ptr<float>() + h * n * rank, n, 0.0f, w, n);
    for (int64_t i = 0; i < n; ++i) {
      w[i * n + i] += diagonal;
    }
  });
}

void low_rank_backward_cpu(const OpArgs& args) {
  const int64_t n = args.in[0].dim(1), rank = args.in[0].dim(2);
  parallel_items(args.in[0].dim(0), [&](int64_t h) {
    const float* left = args.in[0].ptr<float>() + h * n * rank;
    const float* right = args.in[1].ptr<float>() + h * n * rank;
    const float* dw = args.dout[0].ptr<float>() + h * n * n;
    if (args.din[0]) {
      gemm(false, true, n, rank, n, 1.0f, dw, n, right, n, args.accumulate[0] ? 1.0f : 0.0f,
           args.din[0].ptr<float>() + h * n * rank, rank);
    }
    if (args.din[1]) {
      gemm(true, false, rank, n, n, 1.0f, left, rank, dw, n, args.accumulate[1] ? 1.0f : 0.0f,
           args.din[1].ptr<float>() + h * n * rank, n);
    }
  });
}

}  // namespace fwpkm
