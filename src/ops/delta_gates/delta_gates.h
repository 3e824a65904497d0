// The decay and the writing strength of Gated DeltaNet from their projections.
//
//   beta = sigmoid(b),   g = -exp(A_log) softplus(a + dt_bias)
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct DeltaGates {
  Tensor g;     // [B,T,Hv], log of the decay, <= 0
  Tensor beta;  // [B,T,Hv], in (0, 1)
};

// ba [B,T,2 Hv]: per key head its value heads' b, then their a. a_log, dt_bias [Hv].
DeltaGates delta_gates(Run& run, const Tensor& ba, const Tensor& a_log, const Tensor& dt_bias,
                       int64_t key_heads);

extern const Op kDeltaGates;
std::vector<struct Case> delta_gates_cases();
void delta_gates_forward_cpu(const OpArgs& args);
void delta_gates_backward_cpu(const OpArgs& args);
size_t delta_gates_workspace_cpu(const OpArgs& args, bool backward);

}  // namespace fwpkm
