#include "ops/registry.h"

#include "ops/attention/attention.h"
#include "ops/blend_norm/blend_norm.h"
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
#include "ops/memory_norm/memory_norm.h"
#include "ops/memory_qv/memory_qv.h"
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
      {&kEmbedding, &embedding_cases, "", "table"},
      {&kRmsNorm, &rms_norm_cases, "w"},
      {&kLinear, &linear_cases, "", "w b"},
      {&kSwiglu, &swiglu_cases},
      {&kNormRope, &norm_rope_cases, "w cos sin"},
      {&kAttention, &attention_cases},
      {&kGate, &gate_cases},
      {&kShortConv, &short_conv_cases, "w"},
      {&kDeltaGates, &delta_gates_cases, "A_log dt_bias"},
      {&kDeltaRule, &delta_rule_cases, "g beta state"},
      {&kNormGate, &norm_gate_cases, "w"},
      {&kPkmRead, &pkm_read_cases, "", "keys values"},
      {&kFwpkm, &fwpkm_cases, "g keys values"},
      {&kZScore, &z_score_cases},
      {&kMemoryNorm, &memory_norm_cases, "w_q w_v w_g", "gate b"},
      {&kMemoryQv, &memory_qv_cases, "w_q w_v w_g", "gate b q b_q v b_v"},
      {&kBlendNorm, &blend_norm_cases, "g w"},
      {&kFastMlp, &fast_mlp_cases, "w_up b_up w_gate b_gate w_down b_down"},
      {&kRope, &rope_cases, "cos sin"},
      {&kLowRank, &low_rank_cases, "left right"},
      {&kLactQk, &lact_qk_cases, "scale offset cos sin"},
      {&kLactRates, &lact_rates_cases},
      {&kLact, &lact_cases, "lr momentum w0 w1 w2"},
      {&kLactOut, &lact_out_cases, "w"},
      {&kLmLoss, &lm_loss_cases, "", "table"},
  };
  return ops;
}

}  // namespace fwpkm
