// g = sigmoid(mean of a token's logits): how much a token trusts what the memory gave.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// logits [.., R] (rows may be strided) -> g [..] contiguous: [B, T, R] gives [B, T].
// Saves nothing: backward computes the mean again.
Tensor memory_gate(Run& run, const Tensor& logits);

extern const Op kMemoryGate;
std::vector<struct Case> memory_gate_cases();
void memory_gate_forward_cpu(const OpArgs& args);
void memory_gate_backward_cpu(const OpArgs& args);
void memory_gate_forward_cuda(const OpArgs& args);
void memory_gate_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
