// What a memory takes from a hidden state: the row, normalised once and scaled for the projections
// of queries and of values, and the gate, which says how much a token trusts what it reads:
//   q = xhat (1 + w_q),   v = xhat (1 + w_v),   xhat = x rsqrt(mean(x^2) + eps)
//   g = sigmoid(mean over R rows of <xhat (1 + w_g), gate row> + its bias)
// The mean of R dot products is one with the mean of the rows.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// The gate's weights; all empty if there is none.
struct MemoryGate {
  Tensor norm;    // [D]
  Tensor weight;  // [R, D]
  Tensor bias;    // [R]

  // Memory for the gates of x; throws if these weights do not fit it.
  Tensor make(Run& run, const Tensor& x) const;
};

struct MemoryNorm {
  Tensor q, v;  // as x
  Tensor g;     // [..]: [B, T, D] gives [B, T]; or empty
};

// x [.., D] (rows may be strided), weights [D]. Saves 1/rms and the gate's logit of each row.
MemoryNorm memory_norm(Run& run, const Tensor& x, const Tensor& q_norm, const Tensor& v_norm,
                       const MemoryGate& gate, double eps);

struct MemoryNormSettings {
  double eps = 1e-5;
};

extern const Op kMemoryNorm;
std::vector<struct Case> memory_norm_cases();
void memory_norm_forward_cpu(const OpArgs& args);
void memory_norm_backward_cpu(const OpArgs& args);
size_t memory_norm_workspace_cpu(const OpArgs& args, bool backward);
void memory_norm_forward_cuda(const OpArgs& args);
void memory_norm_backward_cuda(const OpArgs& args);
size_t memory_norm_workspace_cuda(const OpArgs& args, bool backward);

// Places of tensors in a call. On a GPU a call may have one output, q, without weights: xhat.
struct MemoryNormIn {
  enum : int { x, q_norm, v_norm, gate_norm, gate, bias, count };
};
struct MemoryNormOut {
  enum : int { q, v, g, count };
};
struct MemoryNormSaved {
  enum : int { r, logits, count };
};

}  // namespace fwpkm
