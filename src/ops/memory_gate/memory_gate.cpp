#include "ops/memory_gate/memory_gate.h"

#include "ops/memory_gate/reference.h"

namespace fwpkm {

const Op kMemoryGate = {
    .name = "memory_gate",
    .reference_f64 = {&memory_gate_forward_reference<double>,
                      &memory_gate_backward_reference<double>},
    .reference_f32 = {&memory_gate_forward_reference<float>,
                      &memory_gate_backward_reference<float>},
    .cpu = {&memory_gate_forward_cpu, &memory_gate_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&memory_gate_forward_cuda, &memory_gate_backward_cuda),
};

Tensor memory_gate(Run& run, const Tensor& logits) {
  const View& view = logits.view();
  require(view.rank() >= 2 && view.dim(-1) >= 1 && view.stride(-1) == 1, kMemoryGate.name,
          "logits must be [.., R] with the logits of a token next to each other, not {}",
          view.shape.str());
  const Shape tokens(std::span(view.shape.dims).first(static_cast<size_t>(view.rank() - 1)));
  Tensor g = run.make("memory_gate.g", tokens, run.wide());
  run.call(kMemoryGate, {logits}, {g});
  return g;
}

}  // namespace fwpkm
