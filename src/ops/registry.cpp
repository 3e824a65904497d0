#include "ops/registry.h"

#include "ops/attention/attention.h"
#include "ops/delta_gates/delta_gates.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/embedding/embedding.h"
#include "ops/gate/gate.h"
#include "ops/linear/linear.h"
#include "ops/lm_loss/lm_loss.h"
#include "ops/norm_gate/norm_gate.h"
#include "ops/norm_rope/norm_rope.h"
#include "ops/pkm_read/pkm_read.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {

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
      {&kLmLoss, &lm_loss_cases},
  };
  return ops;
}

}  // namespace fwpkm
