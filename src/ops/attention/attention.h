// Softmax attention with a causal mask, an optional window and grouped heads.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct AttentionSettings {
  int64_t q_offset = 0;  // position of query 0 among the keys
  int64_t window = 0;    // keys that a query sees, itself included; 0: all up to itself
  double scale = 1.0;    // of the scores, as a rule 1/sqrt(D)
};

// q [B, Tq, Hq, D], k and v [B, Tk, Hkv, D] (all may be strided in all but the features: parts of a
// projection or of a longer cache) -> o [B, Tq, Hq, D] contiguous. Saves the log-sum-exp of each
// query's scores, [B, Hq, Tq].
//
// Query i stands at key position p = i + q_offset and sees the keys j <= p, with a window W only
// those with j > p - W. Query head h reads key head h / (Hq / Hkv). Every query must see a key.
// `starts` [B, Tq] int32, if given, hides the keys before starts[b, i] <= p from query i: where its
// document begins.
Tensor attention(Run& run, const Tensor& q, const Tensor& k, const Tensor& v,
                 AttentionSettings settings, const Tensor& starts = {});

extern const Op kAttention;
std::vector<struct Case> attention_cases();
void attention_forward_cpu(const OpArgs& args);
void attention_backward_cpu(const OpArgs& args);
size_t attention_workspace_cpu(const OpArgs& args, bool backward);
void attention_forward_cuda(const OpArgs& args);
void attention_backward_cuda(const OpArgs& args);
size_t attention_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
