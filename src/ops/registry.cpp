#include "ops/registry.h"

#include "ops/delta_gates/delta_gates.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/lm_loss/lm_loss.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {

std::span<const OpInfo> all_ops() {
  static const OpInfo ops[] = {
      {&kEmbedding, &embedding_cases},    {&kRmsNorm, &rms_norm_cases},
      {&kLinear, &linear_cases},          {&kSwiglu, &swiglu_cases},
      {&kShortConv, &short_conv_cases},   {&kDeltaGates, &delta_gates_cases},
      {&kDeltaRule, &delta_rule_cases},   {&kLmLoss, &lm_loss_cases},
  };
  return ops;
}

}  // namespace fwpkm
