// Gated RMSNorm as the formula. With r = 1/rms, xhat = x r, s = sigmoid(z) and g = dy z s:
//   dx = r (g w - xhat mean(g w xhat)),   dw = sum over rows of g xhat,
//   dz = dy xhat w s (1 + z (1 - s)).
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/norm_gate/norm_gate.h"

namespace fwpkm {

// in: x, w, z. out: y. saved: r.
template <typename T>
void norm_gate_forward_reference(const OpArgs& args) {
  const T eps = T(args.attr<NormGateSettings>().eps);
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(args.in[0]), z_rows(args.in[2]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    const T* z = args.in[2].ptr<T>() + z_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    T squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += x[i] * x[i];
    }
    const T r = T(1) / std::sqrt(squares / T(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      y[i] = x[i] * r * w[i] * z[i] / (T(1) + std::exp(-z[i]));
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = r;
    }
  }
}

template <typename T>
void norm_gate_backward_reference(const OpArgs& args) {
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(args.in[0]), z_rows(args.in[2]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  T* dw = args.din[1].ptr<T>();
  if (dw != nullptr && !args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    const T* z = args.in[2].ptr<T>() + z_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    T* dx = args.din[0] ? args.din[0].ptr<T>() + Rows(args.din[0])[row] : nullptr;
    T* dz = args.din[2] ? args.din[2].ptr<T>() + Rows(args.din[2])[row] : nullptr;
    const T r = args.saved[0].ptr<T>()[row];
    T mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      const T s = T(1) / (T(1) + std::exp(-z[i]));
      mean += dy[i] * z[i] * s * w[i] * x[i] * r;
    }
    mean /= T(width);
    for (int64_t i = 0; i < width; ++i) {
      const T s = T(1) / (T(1) + std::exp(-z[i]));
      const T g = dy[i] * z[i] * s;
      if (dx != nullptr) {
        dx[i] = (args.accumulate[0] ? dx[i] : T(0)) + r * (g * w[i] - x[i] * r * mean);
      }
      if (dw != nullptr) {
        dw[i] += g * x[i] * r;
      }
      if (dz != nullptr) {
        const T d = dy[i] * x[i] * r * w[i] * s * (T(1) + z[i] * (T(1) - s));
        dz[i] = (args.accumulate[2] ? dz[i] : T(0)) + d;
      }
    }
  }
}

}  // namespace fwpkm
