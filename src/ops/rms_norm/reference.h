// RMSNorm as the formula. With r = 1/rms and xhat = x r:
//   dx = r (dy (offset + w) - xhat mean(dy (offset + w) xhat)),   dw = sum over rows of dy xhat.
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/single.h"

namespace fwpkm {

// in: x, w. out: y. saved: r.
template <typename T>
void rms_norm_forward_reference(const OpArgs& args) {
  const auto [eps, offset, single] = args.attr<RmsNormSettings>();
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(args.in[0]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    if constexpr (std::is_same_v<T, double>) {
      if (single) {
        const float r = rms_norm_single_row(x, w, static_cast<size_t>(width), eps, y);
        if (args.saved[0]) {
          args.saved[0].ptr<T>()[row] = r;
        }
        continue;
      }
    }
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
  const auto settings = args.attr<RmsNormSettings>();
  const T offset = T(settings.offset);
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
    if constexpr (std::is_same_v<T, double>) {
      if (settings.single) {
        std::vector<double> d(static_cast<size_t>(width));
        rms_norm_single_row_backward(x, w, dy, static_cast<float>(r), d.size(), d.data(), dw);
        for (int64_t i = 0; i < width && args.din[0]; ++i) {
          T& to = args.din[0].ptr<T>()[Rows(args.din[0])[row] + i];
          to = args.accumulate[0] ? to + d[i] : d[i];
        }
        continue;
      }
    }
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
