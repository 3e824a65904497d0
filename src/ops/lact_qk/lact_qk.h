// The fast queries and keys of LaCT from those of its attention: a scale and an offset per channel,
// SiLU, then each fast head divided by its length, then the rotation of the attention heads.
//
//   y = silu(x * scale + offset),   n = y / (|y| + eps) per fast head,   out = rope(n)
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

inline constexpr double kLactUnitEps = 1e-5;

struct LactQkSettings {
  int64_t heads;  // fast ones
};

struct LactQk {
  Tensor q, k;
};

// q, k [B, T, Ha, Da] may be strided, but the heads of a token must follow each other; scale and
// offset [Ha Da, 2]: column 0 is for q, column 1 for k. The `heads` fast heads take Ha Da / heads
// features each, whatever Ha is. cos and sin [T, R/2] turn the attention heads as in rope.h.
// -> q, k [B, T, Ha, Da] contiguous. Saves |y| of each fast head.
LactQk lact_qk(Run& run, const Tensor& q, const Tensor& k, const Tensor& scale,
               const Tensor& offset, int64_t heads, const Tensor& cos, const Tensor& sin);

extern const Op kLactQk;
std::vector<struct Case> lact_qk_cases();
void lact_qk_forward_cpu(const OpArgs& args);
void lact_qk_backward_cpu(const OpArgs& args);
size_t lact_qk_workspace_cpu(const OpArgs& args, bool backward);
void lact_qk_forward_cuda(const OpArgs& args);
void lact_qk_backward_cuda(const OpArgs& args);
size_t lact_qk_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
