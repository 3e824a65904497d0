#include "ops/delta_gates/delta_gates.h"

#include "ops/delta_gates/reference.h"

namespace fwpkm {

const Op kDeltaGates = {
    .name = "delta_gates",
    .reference_f64 = {&delta_gates_forward_reference<double>,
                      &delta_gates_backward_reference<double>},
    .reference_f32 = {&delta_gates_forward_reference<float>,
                      &delta_gates_backward_reference<float>},
    .cpu = {&delta_gates_forward_cpu, &delta_gates_backward_cpu, &delta_gates_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&delta_gates_forward_cuda, &delta_gates_backward_cuda,
                               &delta_gates_workspace_cuda),
};

DeltaGates delta_gates(Run& run, const Tensor& ba, const Tensor& a_log, const Tensor& dt_bias,
                       int64_t key_heads, const Tensor& starts) {
  const int64_t heads = a_log.dim(0);
  require(ba.dim(-1) == 2 * heads && dt_bias.shape() == a_log.shape() && heads % key_heads == 0,
          kDeltaGates.name, "ba {}, A_log {} and {} key heads do not fit", ba.shape().str(),
          a_log.shape().str(), key_heads);
  require(!starts || (starts.shape() == Shape({ba.dim(0), ba.dim(1)}) &&
                      starts.view().dtype == DType::kI32),
          kDeltaGates.name, "starts must be int32 [{}, {}]", ba.dim(0), ba.dim(1));
  const Shape shape = {ba.dim(0), ba.dim(1), heads};
  DeltaGates gates = {run.make("delta_gates.g", shape, run.wide()),
                      run.make("delta_gates.beta", shape, run.wide())};
  run.call(kDeltaGates, {ba, a_log, dt_bias, starts}, {gates.g, gates.beta}, {},
           DeltaGatesSettings{key_heads, ba.dim(1)});
  return gates;
}

}  // namespace fwpkm
