#include "ops/blend/blend.h"

#include "ops/blend/reference.h"

namespace fwpkm {

const Op kBlend = {
    .name = "blend",
    .reference_f64 = {&blend_forward_reference<double>, &blend_backward_reference<double>},
    .reference_f32 = {&blend_forward_reference<float>, &blend_backward_reference<float>},
    .cpu = {&blend_forward_cpu, &blend_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&blend_forward_cuda, &blend_backward_cuda),
};

Tensor blend(Run& run, const Tensor& a, const Tensor& b, const Tensor& g) {
  require(a.view().rank() == 3 && a.shape() == b.shape(), kBlend.name,
          "a and b must be [B, T, D] alike: a is {}, b is {}", a.shape().str(), b.shape().str());
  require(a.view().stride(-1) == 1 && b.view().stride(-1) == 1, kBlend.name,
          "the features of a and of b must be next to each other");
  if (g) {
    require(g.shape() == Shape({a.dim(0), a.dim(1)}) && g.view().contiguous(), kBlend.name,
            "g must be contiguous with a gate per token: a is {}, g is {}", a.shape().str(),
            g.shape().str());
  }
  Tensor y = run.make("blend.y", a.shape());
  run.call(kBlend, {a, b, g}, {y});
  return y;
}

}  // namespace fwpkm
