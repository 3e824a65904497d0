#include "ops/linear/linear.h"

#include "ops/linear/reference.h"

namespace fwpkm {

const Op kLinear = {
    .name = "linear",
    .reference_f64 = {&linear_forward_reference<double>, &linear_backward_reference<double>},
    .reference_f32 = {&linear_forward_reference<float>, &linear_backward_reference<float>},
    .cpu = {&linear_forward_cpu, &linear_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&linear_forward_cuda, &linear_backward_cuda, &linear_workspace_cuda),
    .pass_through = 3,
};

Tensor linear(Run& run, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& residual) {
  require(w.shape().rank == 2 && x.dim(-1) == w.dim(1) && x.view().contiguous(), kLinear.name,
          "x {} does not fit the weight {} {}", x.shape().str(), w.view().name, w.shape().str());
  require(!b || b.shape() == Shape({w.dim(0)}), kLinear.name, "the bias must be [{}]", w.dim(0));
  Shape shape = x.shape();
  shape.dims[shape.rank - 1] = w.dim(0);
  require(!residual || (residual.shape() == shape && residual.view().contiguous()), kLinear.name,
          "the residual {} does not fit the output {}", residual ? residual.shape().str() : "",
          shape.str());
  Tensor y = run.make("linear.y", shape);
  run.call(kLinear, {x, w, b, residual}, {y});
  return y;
}

}  // namespace fwpkm
