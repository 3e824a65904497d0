#include "ops/registry.h"

#include "ops/attention/attention.h"
#include "ops/gate/gate.h"
#include "ops/norm_gate/norm_gate.h"
#include "ops/norm_rope/norm_rope.h"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {

std::span<const OpInfo> all_ops() {
  static const OpInfo ops[] = {
      {&kRmsNorm, &rms_norm_cases},
      {&kNormRope, &norm_rope_cases},
      {&kAttention, &attention_cases},
      {&kGate, &gate_cases},
      {&kNormGate, &norm_gate_cases},
  };
  return ops;
}

}  // namespace fwpkm
