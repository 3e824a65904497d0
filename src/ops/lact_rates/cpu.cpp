// A few numbers per token: plain code in parallel is enough.
#include "base/parallel.h"
#include "ops/lact_rates/lact_rates.h"
#include "ops/lact_rates/reference.h"

namespace fwpkm {
namespace {

constexpr int64_t kGrain = 1024;

}  // namespace

void lact_rates_forward_cpu(const OpArgs& args) {
  for (int i = 0; i < 2; ++i) {
    parallel_ranges(args.in[i].size(), kGrain, [&](int64_t begin, int64_t end) {
      lact_rates_forward_range<float>(args, i, begin, end);
    });
  }
}

void lact_rates_backward_cpu(const OpArgs& args) {
  for (int i = 0; i < 2; ++i) {
    parallel_ranges(args.din[i].size(), kGrain, [&](int64_t begin, int64_t end) {
      lact_rates_backward_range<float>(args, i, begin, end);
    });
  }
}

}  // namespace fwpkm
