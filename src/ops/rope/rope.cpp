#include "ops/rope/rope.h"

#include "ops/rope/reference.h"

namespace fwpkm {

const Op kRope = {
    .name = "rope",
    .reference_f64 = {&rope_forward_reference<double>, &rope_backward_reference<double>},
    .reference_f32 = {&rope_forward_reference<float>, &rope_backward_reference<float>},
    .cpu = {&rope_forward_cpu, &rope_backward_cpu, &rope_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&rope_forward_cuda, &rope_backward_cuda),
};

void require_rope_tables(const char* tag, const Tensor& cos, const Tensor& sin, int64_t tokens,
                         int64_t width) {
  require(static_cast<bool>(cos) == static_cast<bool>(sin), tag,
          "cos and sin come together or not at all");
  if (!cos) {
    return;
  }
  require(cos.view().rank() == 2 && cos.dim(0) == tokens && 2 * cos.dim(1) <= width &&
              cos.shape() == sin.shape() && cos.view().contiguous() && sin.view().contiguous(),
          tag, "the tables must be contiguous [{}, R/2] with R at most {}: cos is {}, sin is {}",
          tokens, width, cos.shape().str(), sin.shape().str());
  require(!cos.node()->wants_grad && !sin.node()->wants_grad, tag, "the tables have no gradient");
}

Tensor rope(Run& run, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  require(x.view().rank() == 4 && x.view().stride(-1) == 1, kRope.name,
          "x must be [B, T, H, D] with features next to each other, not {}", x.shape().str());
  require_rope_tables(kRope.name, cos, sin, x.dim(1), x.dim(3));
  Tensor y = run.make("rope.y", x.shape());
  run.call(kRope, {x, cos, sin}, {y});
  return y;
}

}  // namespace fwpkm
