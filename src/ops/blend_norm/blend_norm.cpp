#include "ops/blend_norm/blend_norm.h"

#include "ops/blend_norm/reference.h"

namespace fwpkm {

const Op kBlendNorm = {
    .name = "blend_norm",
    .reference_f64 = {&blend_norm_forward_reference<double>,
                      &blend_norm_backward_reference<double>},
    .reference_f32 = {&blend_norm_forward_reference<float>, &blend_norm_backward_reference<float>},
    .cpu = {&blend_norm_forward_cpu, &blend_norm_backward_cpu, &blend_norm_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&blend_norm_forward_cuda, &blend_norm_backward_cuda,
                               &blend_norm_workspace_cuda),
};

Tensor blend_norm(Run& run, const Tensor& a, const Tensor& b, const Tensor& g, const Tensor& w,
                  double eps) {
  require(a.view().rank() == 3 && a.shape() == b.shape() && w.shape() == Shape({a.dim(-1)}),
          kBlendNorm.name,
          "a and b must be [B, T, D] alike, with a weight per feature: a is {}, b is {}, w is {}",
          a.shape().str(), b.shape().str(), w.shape().str());
  require(a.view().stride(-1) == 1 && b.view().stride(-1) == 1, kBlendNorm.name,
          "the features of a and of b must be next to each other");
  // Backward may write one's gradient before it reads what the other's is added to.
  require(a.node() != b.node(), kBlendNorm.name, "a and b must be two tensors");
  if (g) {
    require(g.shape() == Shape({a.dim(0), a.dim(1)}) && g.view().contiguous(), kBlendNorm.name,
            "g must be contiguous with a gate per token: a is {}, g is {}", a.shape().str(),
            g.shape().str());
  }
  Tensor y = run.make("blend_norm.y", a.shape());
  run.call(kBlendNorm, {a, b, g, w}, {y}, {run.make_saved("blend_norm.r", {a.rows()})},
           BlendNormSettings{eps});
  return y;
}

}  // namespace fwpkm
