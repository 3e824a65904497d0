// The decay and the writing strength of Gated DeltaNet from their projections.
//
//   beta = sigmoid(b),   g = -exp(A_log) softplus(a + dt_bias)
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct DeltaGatesSettings {
  int64_t key_heads;
  int64_t time;  // tokens of a sequence, to tell where in one a row stands
};

struct DeltaGates {
  Tensor g;     // [B,T,Hv], log of the decay, <= 0
  Tensor beta;  // [B,T,Hv], in (0, 1)
};

// The decay of a token whose document begins with it: exp(-100) forgets all that came before, and
// is still a number that chunks can add up without losing the decays around it.
inline constexpr double kForgetAll = -100.0;

// ba [B,T,2 Hv]: per key head its value heads' b, then their a. a_log, dt_bias [Hv].
// starts [B,T] int32, if given: where each token's document begins. g is kForgetAll there.
DeltaGates delta_gates(Run& run, const Tensor& ba, const Tensor& a_log, const Tensor& dt_bias,
                       int64_t key_heads, const Tensor& starts = {});

extern const Op kDeltaGates;
std::vector<struct Case> delta_gates_cases();
void delta_gates_forward_cpu(const OpArgs& args);
void delta_gates_backward_cpu(const OpArgs& args);
size_t delta_gates_workspace_cpu(const OpArgs& args, bool backward);
void delta_gates_forward_cuda(const OpArgs& args);
void delta_gates_backward_cuda(const OpArgs& args);
size_t delta_gates_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
