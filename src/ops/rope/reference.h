// The rotation as the formula; backward is the rotation by the opposite angles.
#pragma once

#include <vector>

#include "ops/common/rows.h"
#include "ops/rope/rope.h"

namespace fwpkm {

// to = the row `from` of a head, turned by the angles (cos, sin) [half] of its token.
template <typename T>
void rope_turn(const T* from, const T* cos, const T* sin, int64_t half, int64_t width, bool back,
               T* to) {
  for (int64_t i = 0; i < half; ++i) {
    const T c = cos[i], s = back ? -sin[i] : sin[i];
    const T a = from[i], b = from[i + half];
    to[i] = a * c - b * s;
    to[i + half] = b * c + a * s;
  }
  for (int64_t i = 2 * half; i < width; ++i) {
    to[i] = from[i];
  }
}

// in: x, cos, sin. out: y.
template <typename T>
void rope_forward_reference(const OpArgs& args) {
  const View& x = args.in[0];
  const Rows x_rows(x), y_rows(args.out[0]);
  const int64_t half = args.in[1] ? args.in[1].dim(1) : 0;
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const int64_t at = row / x.dim(2) % x.dim(1) * half;
    rope_turn(x.ptr<T>() + x_rows[row], args.in[1].ptr<T>() + at, args.in[2].ptr<T>() + at, half,
              x.dim(3), false, args.out[0].ptr<T>() + y_rows[row]);
  }
}

template <typename T>
void rope_backward_reference(const OpArgs& args) {
  const View& x = args.in[0];
  if (!args.din[0]) {
    return;
  }
  const Rows dy_rows(args.dout[0]), dx_rows(args.din[0]);
  const int64_t half = args.in[1] ? args.in[1].dim(1) : 0;
  std::vector<T> turned(x.dim(3));
  for (int64_t row = 0; row < dy_rows.count(); ++row) {
    const int64_t at = row / x.dim(2) % x.dim(1) * half;
    rope_turn(args.dout[0].ptr<T>() + dy_rows[row], args.in[1].ptr<T>() + at,
              args.in[2].ptr<T>() + at, half, x.dim(3), true, turned.data());
    T* dx = args.din[0].ptr<T>() + dx_rows[row];
    for (int64_t i = 0; i < x.dim(3); ++i) {
      dx[i] = (args.accumulate[0] ? dx[i] : T(0)) + turned[i];
    }
  }
}

}  // namespace fwpkm
