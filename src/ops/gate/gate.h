// y = x * sigmoid(z), element by element.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// x [B, T, H, D] contiguous, z of the same shape (rows may be strided: a part of a projection)
// -> y contiguous. Saves nothing: backward computes the sigmoid again.
Tensor sigmoid_gate(Run& run, const Tensor& x, const Tensor& z);

extern const Op kGate;
std::vector<struct Case> gate_cases();
void gate_forward_cpu(const OpArgs& args);
void gate_backward_cpu(const OpArgs& args);
void gate_forward_cuda(const OpArgs& args);
void gate_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
