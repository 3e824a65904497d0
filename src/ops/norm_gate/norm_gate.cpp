#include "ops/norm_gate/norm_gate.h"

#include "ops/norm_gate/reference.h"

namespace fwpkm {

const Op kNormGate = {
    .name = "norm_gate",
    .reference_f64 = {&norm_gate_forward_reference<double>, &norm_gate_backward_reference<double>},
    .reference_f32 = {&norm_gate_forward_reference<float>, &norm_gate_backward_reference<float>},
    .cpu = {&norm_gate_forward_cpu, &norm_gate_backward_cpu, &norm_gate_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&norm_gate_forward_cuda, &norm_gate_backward_cuda,
                               &norm_gate_workspace_cuda),
};

Tensor norm_gate(Run& run, const Tensor& x, const Tensor& w, const Tensor& z, double eps) {
  require(x.shape() == z.shape() && w.shape() == Shape({x.dim(-1)}), kNormGate.name,
          "x and z must have one shape and w one value per feature: x is {}, w is {}, z is {}",
          x.shape().str(), w.shape().str(), z.shape().str());
  require(x.view().contiguous() && z.view().stride(-1) == 1, kNormGate.name,
          "x must be contiguous and the features of z next to each other");
  // Backward writes dz before dx, so one tensor cannot be both.
  require(x.node() != z.node(), kNormGate.name, "x and z must be two tensors");
  Tensor y = run.make("norm_gate.y", x.shape());
  run.call(kNormGate, {x, w, z}, {y}, {run.make_saved("norm_gate.r", {x.rows()})},
           NormGateSettings{eps});
  return y;
}

}  // namespace fwpkm
