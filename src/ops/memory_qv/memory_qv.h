// What a memory is asked and what it is told, with its gate, from a hidden state: memory_norm and
// the projections behind it, and the z-score of values where a memory wants that:
//   q = xhat (1 + w_q) W_q^T + b_q,   v = z(xhat (1 + w_v) W_v^T + b_v),   g as memory_norm has it
// As a rule these are the ops of those names, one after the other. Where a GPU learns in 16 bits
// they are one op, which moves fewer bytes (README.md).
#pragma once

#include "ops/memory_norm/memory_norm.h"

namespace fwpkm {

struct MemoryProjection {
  Tensor norm;    // [D]
  Tensor weight;  // [N, D]
  Tensor bias;    // [N] or none
};

struct MemoryQv {
  Tensor q, v;  // [.., N]
  Tensor g;     // [..], or empty
};

// x [.., D], contiguous for the one op.
MemoryQv memory_qv(Run& run, const Tensor& x, const MemoryProjection& q, const MemoryProjection& v,
                   const MemoryGate& gate, bool value_norm, double eps);

struct MemoryQvSettings {
  double eps = 1e-5;
};

extern const Op kMemoryQv;
std::vector<struct Case> memory_qv_cases();
void memory_qv_forward_cuda(const OpArgs& args);
void memory_qv_backward_cuda(const OpArgs& args);
size_t memory_qv_workspace_cuda(const OpArgs& args, bool backward);

// Places of tensors in a call.
struct MemoryQvIn {
  enum : int { x, q_norm, v_norm, gate_norm, gate, gate_bias, q, q_bias, v, v_bias, count };
};
struct MemoryQvOut {
  enum : int { q, v, g, count };
};
struct MemoryQvSaved {
  enum : int {
    r,        // 1/rms of each row
    logits,   // of its gate
    spread,   // the std of its values; empty: they have no z-score
    xhat,     // [.., D], bf16
    weights,  // [2 N, D], bf16: of q and v, each times its norm's
    count
  };
};

}  // namespace fwpkm
