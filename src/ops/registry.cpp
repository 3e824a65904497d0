#include "ops/registry.h"

#include "ops/pkm_read/pkm_read.h"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {

std::span<const OpInfo> all_ops() {
  static const OpInfo ops[] = {
      {&kRmsNorm, &rms_norm_cases},
      {&kPkmRead, &pkm_read_cases},
  };
  return ops;
}

}  // namespace fwpkm
