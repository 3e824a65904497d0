#include "ops/registry.h"

#include "ops/attention/attention.h"
#include "ops/blend/blend.h"
#include "ops/delta_gates/delta_gates.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/embedding/embedding.h"
#include "ops/fast_mlp/fast_mlp.h"
#include "ops/fwpkm/fwpkm.h"
#include "ops/gate/gate.h"
#include "ops/lact/lact.h"
#include "ops/lact_out/lact_out.h"
#include "ops/lact_qk/lact_qk.h"
#include "ops/lact_rates/lact_rates.h"
#include "ops/linear/linear.h"
#include "ops/lm_loss/lm_loss.h"
#include "ops/low_rank/low_rank.h"
#include "ops/memory_gate/memory_gate.h"
#include "ops/norm_gate/norm_gate.h"
#include "ops/norm_rope/norm_rope.h"
#include "ops/pkm_read/pkm_read.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"
#include "ops/z_score/z_score.h"

namespace fwpkm {

std::vector<int32_t> packed_starts(int64_t batch, int64_t time) {
  constexpr int64_t kLengths[] = {1, 5, 2, 60};
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t document = b, start = 0;
    for (int64_t t = 0; t < time; ++t) {
      if (t == start + kLengths[document % 4]) {
        start = t;
        ++document;
      }
      starts.push_back(static_cast<int32_t>(start));
    }
  }
  return starts;
}

std::span<const OpInfo> all_ops() {
  static const OpInfo ops[] = {
      {&kEmbedding, &embedding_cases},
      {&kRmsNorm, &rms_norm_cases},
      {&kLinear, &linear_cases},
      {&kSwiglu, &swiglu_cases},
      {&kNormRope, &norm_rope_cases},
      {&kAttention, &attention_cases},
      {&kGate, &gate_cases},
      {&kShortConv, &short_conv_cases},
      {&kDeltaGates, &delta_gates_cases},
      {&kDeltaRule, &delta_rule_cases},
      {&kNormGate, &norm_gate_cases},
      {&kPkmRead, &pkm_read_cases},
      {&kFwpkm, &fwpkm_cases},
      {&kZScore, &z_score_cases},
      {&kMemoryGate, &memory_gate_cases},
      {&kBlend, &blend_cases},
      {&kFastMlp, &fast_mlp_cases},
      {&kRope, &rope_cases},
      {&kLowRank, &low_rank_cases},
      {&kLactQk, &lact_qk_cases},
      {&kLactRates, &lact_rates_cases},
      {&kLact, &lact_cases},
      {&kLactOut, &lact_out_cases},
      {&kLmLoss, &lm_loss_cases},
  };
  return ops;
}

}  // namespace fwpkm
