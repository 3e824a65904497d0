// Per-head RMSNorm, then a rotary position embedding of the first features.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct NormRopeSettings {
  double eps = 1e-6;
};

// x [B, T, H, D] (rows may be strided: a part of a projection), w [D], cos and sin [T, R/2] ->
// y [B, T, H, D] contiguous. Saves 1/rms of each row.
//
//   n = x * rsqrt(mean(x^2) + eps) * (1 + w)
//   y_i       = n_i cos_i       - n_{i+R/2} sin_i
//   y_{i+R/2} = n_{i+R/2} cos_i + n_i sin_i         for i < R/2
//   y_i       = n_i                                 for i >= R
//
// The tables are those of these T tokens (see rope_table.h); they get no gradient. Without tables
// nothing is rotated.
Tensor norm_rope(Run& run, const Tensor& x, const Tensor& w, const Tensor& cos, const Tensor& sin,
                 double eps);

extern const Op kNormRope;
std::vector<struct Case> norm_rope_cases();
void norm_rope_forward_cpu(const OpArgs& args);
void norm_rope_backward_cpu(const OpArgs& args);
size_t norm_rope_workspace_cpu(const OpArgs& args, bool backward);
void norm_rope_forward_cuda(const OpArgs& args);
void norm_rope_backward_cuda(const OpArgs& args);
size_t norm_rope_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
