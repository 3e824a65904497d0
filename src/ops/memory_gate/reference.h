// The memory's gate as the formula:
//   dlogits_r = dg g (1 - g) / R   for each of the R logits of a token.
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/memory_gate/memory_gate.h"

namespace fwpkm {

template <typename T>
T memory_gate_row(const T* logits, int64_t width) {
  T sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    sum += logits[i];
  }
  return T(1) / (T(1) + std::exp(-sum / T(width)));
}

// in: logits. out: g.
template <typename T>
void memory_gate_forward_reference(const OpArgs& args) {
  const Rows rows(args.in[0]);
  for (int64_t row = 0; row < rows.count(); ++row) {
    args.out[0].ptr<T>()[row] =
        memory_gate_row(args.in[0].ptr<T>() + rows[row], args.in[0].dim(-1));
  }
}

template <typename T>
void memory_gate_backward_reference(const OpArgs& args) {
  if (!args.din[0]) {
    return;
  }
  const Rows rows(args.in[0]), d_rows(args.din[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < rows.count(); ++row) {
    const T g = memory_gate_row(args.in[0].ptr<T>() + rows[row], width);
    const T each = args.dout[0].ptr<T>()[row] * g * (T(1) - g) / T(width);
    T* d = args.din[0].ptr<T>() + d_rows[row];
    for (int64_t i = 0; i < width; ++i) {
      d[i] = args.accumulate[0] ? d[i] + each : each;
    }
  }
}

}  // namespace fwpkm
