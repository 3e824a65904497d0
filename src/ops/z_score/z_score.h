// y = (x - mean) / (std + 1e-6) over the last dimension, std with N-1: the values of a memory.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

inline constexpr double kZScoreEps = 1e-6;

// x [.., D] (rows may be strided) -> y [.., D] contiguous. Saves the std of each row.
//
// A single feature has no std with N-1; it counts as 0. Where std is 0 (one feature, or all
// features equal), y is exactly 0 and the gradient goes through the mean alone, since std has no
// derivative there.
Tensor z_score(Run& run, const Tensor& x);

extern const Op kZScore;
std::vector<struct Case> z_score_cases();
void z_score_forward_cpu(const OpArgs& args);
void z_score_backward_cpu(const OpArgs& args);
void z_score_forward_cuda(const OpArgs& args);
void z_score_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
