// The blend as the formula:
//   da = g dy,   db = (1 - g) dy,   dg = sum over features of dy (a - b);   without g: da = db =
//   dy.
#pragma once

#include "ops/blend/blend.h"
#include "ops/common/rows.h"

namespace fwpkm {

// in: a, b, g or none. out: y.
template <typename T>
void blend_forward_reference(const OpArgs& args) {
  const Rows a_rows(args.in[0]), b_rows(args.in[1]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const T* g = args.in[2].ptr<T>();
  for (int64_t row = 0; row < a_rows.count(); ++row) {
    const T* a = args.in[0].ptr<T>() + a_rows[row];
    const T* b = args.in[1].ptr<T>() + b_rows[row];
    T* y = args.out[0].ptr<T>() + y_rows[row];
    for (int64_t i = 0; i < width; ++i) {
      y[i] = g != nullptr ? g[row] * a[i] + (T(1) - g[row]) * b[i] : a[i] + b[i];
    }
  }
}

template <typename T>
void blend_backward_reference(const OpArgs& args) {
  const Rows a_rows(args.in[0]), b_rows(args.in[1]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  const T* g = args.in[2].ptr<T>();
  for (int64_t row = 0; row < a_rows.count(); ++row) {
    const T* a = args.in[0].ptr<T>() + a_rows[row];
    const T* b = args.in[1].ptr<T>() + b_rows[row];
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    // a and b may be one tensor: the gradient of b is then added to that of a.
    const auto put = [&](size_t input, T factor) {
      if (!args.din[input]) {
        return;
      }
      T* to = args.din[input].ptr<T>() + Rows(args.din[input])[row];
      for (int64_t i = 0; i < width; ++i) {
        to[i] = (args.accumulate[input] ? to[i] : T(0)) + factor * dy[i];
      }
    };
    put(0, g != nullptr ? g[row] : T(1));
    put(1, g != nullptr ? T(1) - g[row] : T(1));
    if (args.din[2]) {
      T sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        sum += dy[i] * (a[i] - b[i]);
      }
      T& dg = args.din[2].ptr<T>()[row];
      dg = (args.accumulate[2] ? dg : T(0)) + sum;
    }
  }
}

}  // namespace fwpkm
