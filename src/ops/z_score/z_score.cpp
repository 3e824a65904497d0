#include "ops/z_score/z_score.h"

#include "ops/z_score/reference.h"

namespace fwpkm {

const Op kZScore = {
    .name = "z_score",
    .reference_f64 = {&z_score_forward_reference<double>, &z_score_backward_reference<double>},
    .reference_f32 = {&z_score_forward_reference<float>, &z_score_backward_reference<float>},
    .cpu = {&z_score_forward_cpu, &z_score_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&z_score_forward_cuda, &z_score_backward_cuda),
};

Tensor z_score(Run& run, const Tensor& x) {
  require(x.view().rank() >= 1 && x.dim(-1) >= 1 && x.view().stride(-1) == 1, kZScore.name,
          "x must have features, next to each other in memory: x is {}", x.shape().str());
  Tensor y = run.make("z_score.y", x.shape());
  run.call(kZScore, {x}, {y}, {run.make_saved("z_score.std", {x.rows()})});
  return y;
}

}  // namespace fwpkm
