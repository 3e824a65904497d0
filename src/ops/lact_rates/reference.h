// The rates as the formula:  dx = dlr sigmoid(x + shift),   dy = dmomentum momentum (1 - momentum).
#pragma once

#include <cmath>

#include "ops/lact_rates/lact_rates.h"

namespace fwpkm {

// in: x, y. out: lr, momentum. Elements begin..end of x where `i` is 0, of y where it is 1.
template <typename T>
void lact_rates_forward_range(const OpArgs& args, int i, int64_t begin, int64_t end) {
  const T shift = T(args.attr<LactRatesSettings>().shift);
  const T* in = args.in[i].ptr<T>();
  T* out = args.out[i].ptr<T>();
  for (int64_t at = begin; at < end; ++at) {
    if (i == 0) {
      const T x = in[at] + shift;
      out[at] = std::max(x, T(0)) + std::log1p(std::exp(-std::fabs(x)));
    } else {
      out[at] = T(1) / (T(1) + std::exp(-in[at]));
    }
  }
}

template <typename T>
void lact_rates_backward_range(const OpArgs& args, int i, int64_t begin, int64_t end) {
  const T shift = T(args.attr<LactRatesSettings>().shift);
  for (int64_t at = begin; at < end; ++at) {
    T slope = 0;
    if (i == 0) {
      slope = T(1) / (T(1) + std::exp(-args.in[0].ptr<T>()[at] - shift));
    } else {
      const T m = args.out[1].ptr<T>()[at];
      slope = m * (T(1) - m);
    }
    const T d = args.dout[i] ? args.dout[i].ptr<T>()[at] * slope : T(0);
    T& to = args.din[i].ptr<T>()[at];
    to = args.accumulate[i] ? to + d : d;
  }
}

template <typename T>
void lact_rates_forward_reference(const OpArgs& args) {
  for (int i = 0; i < 2; ++i) {
    lact_rates_forward_range<T>(args, i, 0, args.in[i].size());
  }
}

template <typename T>
void lact_rates_backward_reference(const OpArgs& args) {
  for (int i = 0; i < 2; ++i) {
    if (args.din[i]) {
      lact_rates_backward_range<T>(args, i, 0, args.in[i].size());
    }
  }
}

}  // namespace fwpkm
