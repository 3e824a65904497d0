#include "ops/gate/gate.h"

#include "ops/gate/reference.h"

namespace fwpkm {

const Op kGate = {
    .name = "gate",
    .reference_f64 = {&gate_forward_reference<double>, &gate_backward_reference<double>},
    .reference_f32 = {&gate_forward_reference<float>, &gate_backward_reference<float>},
    .cpu = {&gate_forward_cpu, &gate_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&gate_forward_cuda, &gate_backward_cuda),
};

Tensor sigmoid_gate(Run& run, const Tensor& x, const Tensor& z) {
  require(x.shape() == z.shape(), kGate.name, "x and z must have one shape: x is {}, z is {}",
          x.shape().str(), z.shape().str());
  require(x.view().contiguous() && z.view().stride(-1) == 1, kGate.name,
          "x must be contiguous and the features of z next to each other");
  Tensor y = run.make("gate.y", x.shape());
  run.call(kGate, {x, z}, {y});
  return y;
}

}  // namespace fwpkm
