#include "ops/low_rank/low_rank.h"

#include "ops/low_rank/reference.h"

namespace fwpkm {

const Op kLowRank = {
    .name = "low_rank",
    .reference_f64 = {&low_rank_forward_reference<double>, &low_rank_backward_reference<double>},
    .reference_f32 = {&low_rank_forward_reference<float>, &low_rank_backward_reference<float>},
    .cpu = {&low_rank_forward_cpu, &low_rank_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&low_rank_forward_cuda, &low_rank_backward_cuda),
};

Tensor low_rank(Run& run, const Tensor& left, const Tensor& right, double diagonal) {
  require(
      left.view().rank() == 3 && right.shape() == Shape({left.dim(0), left.dim(2), left.dim(1)}),
      kLowRank.name, "left must be [H, N, R] and right [H, R, N]: left is {}, right is {}",
      left.shape().str(), right.shape().str());
  require(left.view().contiguous() && right.view().contiguous(), kLowRank.name,
          "left and right must be contiguous");
  Tensor w = run.make("low_rank.w", {left.dim(0), left.dim(1), left.dim(1)}, run.wide());
  run.call(kLowRank, {left, right}, {w}, {}, LowRankSettings{diagonal});
  return w;
}

}  // namespace fwpkm
