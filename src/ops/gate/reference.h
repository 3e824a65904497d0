// The gate as the formula. With s = sigmoid(z):
//   dx = dy s,   dz = dy x s (1 - s).
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/gate/gate.h"

namespace fwpkm {

// in: x, z. out: y.
template <typename T>
void gate_forward_reference(const OpArgs& args) {
  const Rows x_rows(args.in[0]), z_rows(args.in[1]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    const T* z = args.in[1].ptr<T>() + z_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    for (int64_t i = 0; i < width; ++i) {
      y[i] = x[i] / (T(1) + std::exp(-z[i]));
    }
  }
}

template <typename T>
void gate_backward_reference(const OpArgs& args) {
  const Rows x_rows(args.in[0]), z_rows(args.in[1]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    const T* z = args.in[1].ptr<T>() + z_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    for (int64_t i = 0; i < width; ++i) {
      const T s = T(1) / (T(1) + std::exp(-z[i]));
      if (args.din[0]) {
        T& dx = args.din[0].ptr<T>()[Rows(args.din[0])[row] + i];
        dx = (args.accumulate[0] ? dx : T(0)) + dy[i] * s;
      }
      if (args.din[1]) {
        T& dz = args.din[1].ptr<T>()[Rows(args.din[1])[row] + i];
        dz = (args.accumulate[1] ? dz : T(0)) + dy[i] * x[i] * s * (T(1) - s);
      }
    }
  }
}

}  // namespace fwpkm
