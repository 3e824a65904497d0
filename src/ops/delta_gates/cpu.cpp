// A few numbers per token: plain code over rows in parallel is enough, in double where decays,
// whose errors multiply along the sequence, are made.
#include <cstring>

#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/delta_gates/delta_gates.h"
#include "ops/delta_gates/reference.h"

namespace fwpkm {

void delta_gates_forward_cpu(const OpArgs& args) {
  parallel_ranges(args.in[0].rows(), kRowGroup, [&](int64_t begin, int64_t end) {
    delta_gates_forward_rows<float, double>(args, begin, end);
  });
}

void delta_gates_backward_cpu(const OpArgs& args) {
  const int64_t heads = args.in[1].dim(0), rows = args.in[0].rows(), groups = row_groups(rows);
  auto* sums = static_cast<float*>(args.workspace);  // [groups, 2, heads]
  parallel_ranges(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      float* mine = sums + group * 2 * heads;
      std::memset(mine, 0, static_cast<size_t>(2 * heads) * sizeof(float));
      delta_gates_backward_rows<float>(args, group * kRowGroup,
                                       std::min(rows, (group + 1) * kRowGroup), mine, mine + heads);
    }
  });
  for (int i = 0; i < 2; ++i) {
    float* to = args.din[1 + i].ptr<float>();
    for (int64_t h = 0; h < heads && to != nullptr; ++h) {
      float sum = args.accumulate[1 + i] ? to[h] : 0.0f;
      for (int64_t group = 0; group < groups; ++group) {
        sum += sums[(group * 2 + i) * heads + h];
      }
      to[h] = sum;
    }
  }
}

size_t delta_gates_workspace_cpu(const OpArgs& args, bool backward) {
  return backward ? static_cast<size_t>(row_groups(args.in[0].rows()) * 2 * args.in[1].dim(0)) *
                        sizeof(float)
                  : 0;
}

}  // namespace fwpkm
