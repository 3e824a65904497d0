// The formulas of lact_out.h.
#pragma once

#include <cmath>

#include "ops/lact_out/lact_out.h"

namespace fwpkm {

// in: a, x, w, s. out: y. saved: r.
template <typename T>
void lact_out_forward_reference(const OpArgs& args) {
  const int64_t rows = args.in[1].rows(), width = args.in[1].dim(-1);
  const T* w = args.in[2].ptr<T>();
  for (int64_t row = 0; row < rows; ++row) {
    const T* a = args.in[0].ptr<T>() + row * width;
    const T* x = args.in[1].ptr<T>() + row * width;
    const T s = args.in[3].ptr<T>()[row];
    const T f = s / (T(1) + std::exp(-s));
    T squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      squares += x[i] * x[i];
    }
    const T r = T(1) / std::sqrt(squares / T(width) + T(args.attr<LactOutSettings>().eps));
    for (int64_t i = 0; i < width; ++i) {
      args.out[0].ptr<T>()[row * width + i] = a[i] + x[i] * r * w[i] * f;
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = r;
    }
  }
}

template <typename T>
void lact_out_backward_reference(const OpArgs& args) {
  const int64_t rows = args.in[1].rows(), width = args.in[1].dim(-1);
  const T* w = args.in[2].ptr<T>();
  if (args.din[2] && !args.accumulate[2]) {
    fill_zero(args.din[2]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = args.in[1].ptr<T>() + row * width;
    const T* dy = args.dout[0].ptr<T>() + row * width;
    const T s = args.in[3].ptr<T>()[row], r = args.saved[0].ptr<T>()[row];
    const T sigma = T(1) / (T(1) + std::exp(-s)), f = s * sigma;
    T sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      sum += dy[i] * w[i] * x[i] * r;
    }
    for (int64_t i = 0; i < width; ++i) {
      if (args.din[1]) {
        T& dx = args.din[1].ptr<T>()[row * width + i];
        dx = (args.accumulate[1] ? dx : T(0)) + r * f * (dy[i] * w[i] - x[i] * r * sum / T(width));
      }
      if (args.din[2]) {
        args.din[2].ptr<T>()[i] += f * dy[i] * x[i] * r;
      }
      if (args.din[0] && args.din[0].data != args.dout[0].data) {
        T& da = args.din[0].ptr<T>()[row * width + i];
        da = (args.accumulate[0] ? da : T(0)) + dy[i];
      }
    }
    if (args.din[3]) {
      T& ds = args.din[3].ptr<T>()[row];
      ds = (args.accumulate[3] ? ds : T(0)) + sigma * (T(1) + s * (T(1) - sigma)) * sum;
    }
  }
}

}  // namespace fwpkm
