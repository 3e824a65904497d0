// RMSNorm as the formula. With r = 1/rms and xhat = x r:
//   dx = r (dy (offset + w) - xhat mean(dy (offset + w) xhat)),   dw = sum over rows of dy xhat.
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {

// in: x, w. out: y. saved: r.
template <typename T>
void rms_norm_forward_reference(const OpArgs& args) {
  const auto [eps, offset] = args.attr<RmsNormSettings>();
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(args.in[0]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    T squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += x[i] * x[i];
    }
    const T r = T(1) / std::sqrt(squares / T(width) + T(eps));
    for (int64_t i = 0; i < width; ++i) {
      y[i] = x[i] * r * (T(offset) + w[i]);
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = r;
    }
  }
}

template <typename T>
void rms_norm_backward_reference(const OpArgs& args) {
  const T offset = T(args.attr<RmsNormSettings>().offset);
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(args.in[0]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  T* dw = args.din[1].ptr<T>();
  if (dw != nullptr && !args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    const T r = args.saved[0].ptr<T>()[row];
    T mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += dy[i] * (offset + w[i]) * x[i] * r;
    }
    mean /= T(width);
    if (args.din[0]) {
      T* dx = args.din[0].ptr<T>() + Rows(args.din[0])[row];
      for (int64_t i = 0; i < width; ++i) {
        const T d = r * (dy[i] * (offset + w[i]) - x[i] * r * mean);
        dx[i] = args.accumulate[0] ? dx[i] + d : d;
      }
    }
    if (dw != nullptr) {
      for (int64_t i = 0; i < width; ++i) {
        dw[i] += dy[i] * x[i] * r;
      }
    }
  }
}

}  // namespace fwpkm
