// What a memory hands on: the mixture of what was read and what the token brought itself, with one
// gate per token, normalised:
//   y = m rsqrt(mean(m^2) + eps) (1 + w),   m = g a + (1 - g) b,   or m = a + b without gates
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// a, b [B, T, D] (two tensors; rows may be strided), g [B, T] contiguous or an empty handle, w [D]
// -> y [B, T, D] contiguous. Saves 1/rms of each row; the mixture is made again by backward.
Tensor blend_norm(Run& run, const Tensor& a, const Tensor& b, const Tensor& g, const Tensor& w,
                  double eps);

struct BlendNormSettings {
  double eps = 1e-5;
};

extern const Op kBlendNorm;
std::vector<struct Case> blend_norm_cases();
void blend_norm_forward_cpu(const OpArgs& args);
void blend_norm_backward_cpu(const OpArgs& args);
size_t blend_norm_workspace_cpu(const OpArgs& args, bool backward);
void blend_norm_forward_cuda(const OpArgs& args);
void blend_norm_backward_cuda(const OpArgs& args);
size_t blend_norm_workspace_cuda(const OpArgs& args, bool backward);

// Places of inputs in a call.
struct BlendNormIn {
  enum : int { a, b, g, w, count };
};

}  // namespace fwpkm
