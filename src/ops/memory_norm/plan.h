// Where the CPU kernels keep their intermediate results in the workspace.
#pragma once

#include "ops/common/carver.h"
#include "ops/common/rows.h"
#include "ops/memory_norm/memory_norm.h"

namespace fwpkm {

struct MemoryNormParts {
  float* gate;    // [D]: the mean of the gate's rows
  float* scaled;  // [D]: times 1 + w_g
  float* q_sums;  // [groups, D] each
  float* v_sums;
  float* g_sums;
  float* g_sum;  // [D]: over all groups
  size_t bytes;

  MemoryNormParts(const OpArgs& args, bool backward, void* workspace) {
    const View& x = args.in[MemoryNormIn::x];
    const int64_t width = x.dim(-1), groups = backward ? row_groups(x.rows()) : 0;
    Carver carver(workspace);
    gate = carver.take<float>(width);
    scaled = carver.take<float>(width);
    q_sums = carver.take<float>(groups * width);
    v_sums = carver.take<float>(groups * width);
    g_sums = carver.take<float>(groups * width);
    g_sum = carver.take<float>(backward ? width : 0);
    bytes = carver.used();
  }
};

}  // namespace fwpkm
