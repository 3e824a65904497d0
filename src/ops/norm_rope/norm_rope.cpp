#include "ops/norm_rope/norm_rope.h"

#include "ops/norm_rope/reference.h"

namespace fwpkm {

const Op kNormRope = {
    .name = "norm_rope",
    .reference_f64 = {&norm_rope_forward_reference<double>, &norm_rope_backward_reference<double>},
    .reference_f32 = {&norm_rope_forward_reference<float>, &norm_rope_backward_reference<float>},
    .cpu = {&norm_rope_forward_cpu, &norm_rope_backward_cpu, &norm_rope_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&norm_rope_forward_cuda, &norm_rope_backward_cuda,
                               &norm_rope_workspace_cuda),
};

Tensor norm_rope(Run& run, const Tensor& x, const Tensor& w, const Tensor& cos, const Tensor& sin,
                 double eps) {
  require(x.view().rank() == 4 && x.view().stride(-1) == 1 && w.shape() == Shape({x.dim(-1)}),
          kNormRope.name,
          "x must be [B, T, H, D] with features next to each other, and w [D]: x is {}, w is {}",
          x.shape().str(), w.shape().str());
  require(static_cast<bool>(cos) == static_cast<bool>(sin), kNormRope.name,
          "cos and sin come together or not at all");
  if (cos) {
    require(
        cos.view().rank() == 2 && cos.dim(0) == x.dim(1) && 2 * cos.dim(1) <= x.dim(3) &&
            cos.shape() == sin.shape() && cos.view().contiguous() && sin.view().contiguous(),
        kNormRope.name,
        "the tables must be contiguous [T, R/2] with R at most D: x is {}, cos is {}, sin is {}",
        x.shape().str(), cos.shape().str(), sin.shape().str());
    require(!cos.node()->wants_grad && !sin.node()->wants_grad, kNormRope.name,
            "the tables have no gradient");
  }
  Tensor y = run.make("norm_rope.y", x.shape());
  run.call(kNormRope, {x, w, cos, sin}, {y}, {run.make_saved("norm_rope.r", {x.rows()})},
           NormRopeSettings{eps});
  return y;
}

}  // namespace fwpkm
