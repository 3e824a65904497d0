// A rotary position embedding of the first features of each head; norm_rope is the same after a
// norm.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// x [B, T, H, D] (rows may be strided: a part of a projection), cos and sin [T, R/2] ->
// y [B, T, H, D] contiguous.
//
//   y_i       = x_i cos_i       - x_{i+R/2} sin_i
//   y_{i+R/2} = x_{i+R/2} cos_i + x_i sin_i         for i < R/2
//   y_i       = x_i                                 for i >= R
//
// The tables are those of these T tokens (norm_rope/rope_table.h); they get no gradient. Without
// tables nothing is rotated. Backward turns dy back.
Tensor rope(Run& run, const Tensor& x, const Tensor& cos, const Tensor& sin);

extern const Op kRope;
std::vector<struct Case> rope_cases();
void rope_forward_cpu(const OpArgs& args);
void rope_backward_cpu(const OpArgs& args);
size_t rope_workspace_cpu(const OpArgs& args, bool backward);
void rope_forward_cuda(const OpArgs& args);
void rope_backward_cuda(const OpArgs& args);

// Refuses tables that do not fit `tokens` tokens with heads of `width` features.
void require_rope_tables(const char* tag, const Tensor& cos, const Tensor& sin, int64_t tokens,
                         int64_t width);

}  // namespace fwpkm
