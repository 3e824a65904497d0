#pragma once

#include "ops/linear/linear.h"

namespace fwpkm {

// in: x, w, b, residual. out: y.
template <typename T>
void linear_forward_reference(const OpArgs& args) {
  const T* x = args.in[0].ptr<T>();
  const T* w = args.in[1].ptr<T>();
  const T* b = args.in[2].ptr<T>();
  const T* residual = args.in[3].ptr<T>();
  T* y = args.out[0].ptr<T>();
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < outs; ++n) {
      T sum = 0;
      for (int64_t k = 0; k < ins; ++k) {
        sum += x[m * ins + k] * w[n * ins + k];
      }
      sum += b != nullptr ? b[n] : T(0);
      y[m * outs + n] = sum + (residual != nullptr ? residual[m * outs + n] : T(0));
    }
  }
}

template <typename T>
void linear_backward_reference(const OpArgs& args) {
  const T* x = args.in[0].ptr<T>();
  const T* w = args.in[1].ptr<T>();
  const T* dy = args.dout[0].ptr<T>();
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  for (int i = 0; i < 3; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  T* dx = args.din[0].ptr<T>();
  T* dw = args.din[1].ptr<T>();
  T* db = args.din[2].ptr<T>();
  T* dresidual = args.din[3].ptr<T>();
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < outs; ++n) {
      const T d = dy[m * outs + n];
      for (int64_t k = 0; k < ins && dx != nullptr; ++k) {
        dx[m * ins + k] += d * w[n * ins + k];
      }
      for (int64_t k = 0; k < ins && dw != nullptr; ++k) {
        dw[n * ins + k] += d * x[m * ins + k];
      }
      if (db != nullptr) {
        db[n] += d;
      }
      if (dresidual != nullptr && dresidual != dy) {
        T& to = dresidual[m * outs + n];
        to = args.accumulate[3] ? to + d : d;
      }
    }
  }
}

}  // namespace fwpkm
