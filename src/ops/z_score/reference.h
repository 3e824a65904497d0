// The z-score as the formula; README.md derives backward. With h = dy - mean(dy), s = std:
//   dx = (h - y <h, y> (s + eps) / ((N-1) s)) / (s + eps),   without the second term where s = 0.
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/z_score/z_score.h"

namespace fwpkm {

// in: x. out: y. saved: std.
template <typename T>
void z_score_forward_reference(const OpArgs& args) {
  const Rows x_rows(args.in[0]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = args.in[0].ptr<T>() + x_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    // Relative to the first feature: equal features then have std 0 in every precision.
    T mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += x[i] - x[0];
    }
    mean /= T(width);
    T squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      y[i] = (x[i] - x[0]) - mean;
      squares += y[i] * y[i];
    }
    const T s = width > 1 ? std::sqrt(squares / T(width - 1)) : T(0);
    for (int64_t i = 0; i < width; ++i) {
      y[i] /= s + T(kZScoreEps);
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = s;
    }
  }
}

template <typename T>
void z_score_backward_reference(const OpArgs& args) {
  if (!args.din[0]) {
    return;
  }
  const Rows y_rows(args.out[0]), dy_rows(args.dout[0]), dx_rows(args.din[0]);
  const int64_t width = args.in[0].dim(-1);
  for (int64_t row = 0; row < y_rows.count(); ++row) {
    const T* y = args.out[0].ptr<T>() + y_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    T* dx = args.din[0].ptr<T>() + dx_rows[row];
    const T s = args.saved[0].ptr<T>()[row], divisor = s + T(kZScoreEps);
    T mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += dy[i];
    }
    mean /= T(width);
    T along = 0;  // <h, y>
    for (int64_t i = 0; i < width; ++i) {
      along += (dy[i] - mean) * y[i];
    }
    const T share = s > T(0) ? along * divisor / (T(width - 1) * s) : T(0);
    for (int64_t i = 0; i < width; ++i) {
      const T d = (dy[i] - mean - y[i] * share) / divisor;
      dx[i] = args.accumulate[0] ? dx[i] + d : d;
    }
  }
}

}  // namespace fwpkm
