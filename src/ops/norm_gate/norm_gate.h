// y = x * rsqrt(mean(x^2) + eps) * w * silu(z), over the last dimension.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct NormGateSettings {
  double eps = 1e-5;
};

// x [B, T, H, D] contiguous, w [D] (a plain weight, no offset), z [B, T, H, D] (rows may be
// strided) -> y contiguous. Saves 1/rms of each row.
Tensor norm_gate(Run& run, const Tensor& x, const Tensor& w, const Tensor& z, double eps);

extern const Op kNormGate;
std::vector<struct Case> norm_gate_cases();
void norm_gate_forward_cpu(const OpArgs& args);
void norm_gate_backward_cpu(const OpArgs& args);
size_t norm_gate_workspace_cpu(const OpArgs& args, bool backward);
void norm_gate_forward_cuda(const OpArgs& args);
void norm_gate_backward_cuda(const OpArgs& args);
size_t norm_gate_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
