// Depthwise causal convolution over time, then SiLU: the short convolution of Gated DeltaNet.
//
//   y[b,t,c] = silu(sum_j w[c,j] x[b, t-(K-1)+j, c]),  x before the first token from the tail
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// q, k [B,T,H,dk], v [B,T,H,dv] (strided, last stride 1), w [C,1,K] with C = H (2 dk + dv)
// -> y [B,T,C], channels in the order: q of all heads, k of all heads, v of all heads.
// tail [B,K-1,C], if given, holds the last K-1 inputs, oldest first; read, then moved on. Without
// it the past is zero. No gradient flows into the tail. starts [B,T] int32, if given: where each
// token's document begins; inputs before it count as zero.
Tensor short_conv(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& w,
                  const Tensor& tail = {}, const Tensor& starts = {});

inline constexpr int64_t kMaxTaps = 64;  // the largest K

extern const Op kShortConv;
std::vector<struct Case> short_conv_cases();
void short_conv_forward_cpu(const OpArgs& args);
void short_conv_backward_cpu(const OpArgs& args);
size_t short_conv_workspace_cpu(const OpArgs& args, bool backward);
void short_conv_forward_cuda(const OpArgs& args);
void short_conv_backward_cuda(const OpArgs& args);
size_t short_conv_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
