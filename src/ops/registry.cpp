#include "ops/registry.h"

#include "ops/delta_rule/delta_rule.h"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {

std::span<const OpInfo> all_ops() {
  static const OpInfo ops[] = {
      {&kDeltaRule, &delta_rule_cases},
      {&kRmsNorm, &rms_norm_cases},
  };
  return ops;
}

}  // namespace fwpkm
