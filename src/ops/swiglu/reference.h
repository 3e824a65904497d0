// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)), dup = dy gate s.
#pragma once

#include <cmath>

#include "ops/swiglu/swiglu.h"

namespace fwpkm {

// in: gate, up. out: y.
template <typename T>
void swiglu_forward_reference(const OpArgs& args) {
  const T* gate = args.in[0].ptr<T>();
  const T* up = args.in[1].ptr<T>();
  T* y = args.out[0].ptr<T>();
  for (int64_t i = 0; i < args.in[0].size(); ++i) {
    y[i] = gate[i] / (T(1) + std::exp(-gate[i])) * up[i];
  }
}

template <typename T>
void swiglu_backward_reference(const OpArgs& args) {
  const T* gate = args.in[0].ptr<T>();
  const T* up = args.in[1].ptr<T>();
  const T* dy = args.dout[0].ptr<T>();
  T* dgate = args.din[0].ptr<T>();
  T* dup = args.din[1].ptr<T>();
  for (int64_t i = 0; i < args.in[0].size(); ++i) {
    const T s = T(1) / (T(1) + std::exp(-gate[i]));
    if (dgate != nullptr) {
      const T d = dy[i] * up[i] * s * (T(1) + gate[i] * (T(1) - s));
      dgate[i] = args.accumulate[0] ? dgate[i] + d : d;
    }
    if (dup != nullptr) {
      const T d = dy[i] * gate[i] * s;
      dup[i] = args.accumulate[1] ? dup[i] + d : d;
    }
  }
}

}  // namespace fwpkm
