// Norm and rotation as the formula. The rotation is orthogonal up to the tables' factor, so
// backward turns dy back (the transposed matrix) and goes on as RMSNorm does:
//   dn_i = dy_i cos_i + dy_{i+R/2} sin_i,   dn_{i+R/2} = dy_{i+R/2} cos_i - dy_i sin_i,
//   dx = r (dn (1 + w) - xhat mean(dn (1 + w) xhat)),   dw = sum over rows of dn xhat,
// with r = 1/rms and xhat = x r.
#pragma once

#include <cmath>

#include "ops/common/rows.h"
#include "ops/norm_rope/norm_rope.h"

namespace fwpkm {

// in: x, w, cos, sin. out: y. saved: r.
template <typename T>
void norm_rope_forward_reference(const OpArgs& args) {
  const View& x_view = args.in[0];
  const T eps = T(args.attr<NormRopeSettings>().eps);
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(x_view), y_rows(args.out[0]);
  const int64_t tokens = x_view.dim(1), heads = x_view.dim(2), width = x_view.dim(3);
  const int64_t half = args.in[2] ? args.in[2].dim(1) : 0;
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = x_view.ptr<T>() + x_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    T squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += x[i] * x[i];
    }
    const T r = T(1) / std::sqrt(squares / T(width) + eps);
    for (int64_t i = 0; i < width; ++i) {
      y[i] = x[i] * r * (T(1) + w[i]);
    }
    const int64_t token = row / heads % tokens;
    for (int64_t i = 0; i < half; ++i) {
      const T c = args.in[2].ptr<T>()[token * half + i], s = args.in[3].ptr<T>()[token * half + i];
      const T a = y[i], b = y[i + half];
      y[i] = a * c - b * s;
      y[i + half] = b * c + a * s;
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = r;
    }
  }
}

template <typename T>
void norm_rope_backward_reference(const OpArgs& args) {
  const View& x_view = args.in[0];
  const T* w = args.in[1].ptr<T>();
  const Rows x_rows(x_view), dy_rows(args.dout[0]);
  const int64_t tokens = x_view.dim(1), heads = x_view.dim(2), width = x_view.dim(3);
  const int64_t half = args.in[2] ? args.in[2].dim(1) : 0;
  T* dw = args.din[1].ptr<T>();
  if (dw != nullptr && !args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = x_view.ptr<T>() + x_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    T* dx = args.din[0] ? args.din[0].ptr<T>() + Rows(args.din[0])[row] : nullptr;
    const T r = args.saved[0].ptr<T>()[row];
    const int64_t token = row / heads % tokens;
    const auto dn = [&](int64_t i) {
      if (i >= 2 * half) {
        return dy[i];
      }
      const int64_t at = token * half + i % half;
      const T c = args.in[2].ptr<T>()[at], s = args.in[3].ptr<T>()[at];
      return i < half ? dy[i] * c + dy[i + half] * s : dy[i] * c - dy[i - half] * s;
    };
    T mean = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += dn(i) * (T(1) + w[i]) * x[i] * r;
    }
    mean /= T(width);
    for (int64_t i = 0; i < width; ++i) {
      if (dx != nullptr) {
        const T d = r * (dn(i) * (T(1) + w[i]) - x[i] * r * mean);
        dx[i] = args.accumulate[0] ? dx[i] + d : d;
      }
      if (dw != nullptr) {
        dw[i] += dn(i) * x[i] * r;
      }
    }
  }
}

}  // namespace fwpkm
