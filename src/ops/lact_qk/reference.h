// The formulas token by token; README.md derives backward.
#pragma once

#include <cmath>
#include <vector>

#include "ops/lact_qk/lact_qk.h"
#include "ops/rope/reference.h"

namespace fwpkm {

// The sizes of a call. in: q, k, scale, offset, cos, sin.
struct LactQkSizes {
  int64_t tokens, time, turned_heads, turned_width, half;  // attention heads, which are turned
  int64_t features, heads, width;                          // fast heads

  explicit LactQkSizes(const OpArgs& args)
      : tokens(args.in[0].dim(0) * args.in[0].dim(1)),
        time(args.in[0].dim(1)),
        turned_heads(args.in[0].dim(2)),
        turned_width(args.in[0].dim(3)),
        half(args.in[4] ? args.in[4].dim(1) : 0),
        features(turned_heads * turned_width),
        heads(args.attr<LactQkSettings>().heads),
        width(features / heads) {}

  // Offset of a token in a view [B, T, Ha, Da].
  int64_t row(const View& view, int64_t token) const {
    return token / time * view.strides[0] + token % time * view.strides[1];
  }
};

// in: q, k, scale, offset, cos, sin. out: q, k. saved: |y|.
template <typename T>
void lact_qk_forward_reference(const OpArgs& args) {
  const LactQkSizes n(args);
  std::vector<T> y(n.features);
  for (int which = 0; which < 2; ++which) {
    for (int64_t token = 0; token < n.tokens; ++token) {
      const T* x = args.in[which].ptr<T>() + n.row(args.in[which], token);
      T* out = args.out[which].ptr<T>() + n.row(args.out[which], token);
      for (int64_t i = 0; i < n.features; ++i) {
        const T a = x[i] * args.in[2].ptr<T>()[2 * i + which] + args.in[3].ptr<T>()[2 * i + which];
        y[i] = a / (T(1) + std::exp(-a));
      }
      for (int64_t h = 0; h < n.heads; ++h) {
        T squares = 0;
        for (int64_t i = h * n.width; i < (h + 1) * n.width; ++i) {
          squares += y[i] * y[i];
        }
        const T length = std::sqrt(squares);
        for (int64_t i = h * n.width; i < (h + 1) * n.width; ++i) {
          y[i] /= length + T(kLactUnitEps);
        }
        if (args.saved[0]) {
          args.saved[0].ptr<T>()[(which * n.tokens + token) * n.heads + h] = length;
        }
      }
      const int64_t at = token % n.time * n.half;
      for (int64_t h = 0; h < n.turned_heads; ++h) {
        rope_turn(y.data() + h * n.turned_width, args.in[4].ptr<T>() + at, args.in[5].ptr<T>() + at,
                  n.half, n.turned_width, false, out + h * n.turned_width);
      }
    }
  }
}

template <typename T>
void lact_qk_backward_reference(const OpArgs& args) {
  const LactQkSizes n(args);
  for (int i = 2; i < 4; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  std::vector<T> dn(n.features), a(n.features), y(n.features);
  for (int which = 0; which < 2; ++which) {
    for (int64_t token = 0; token < n.tokens; ++token) {
      const T* x = args.in[which].ptr<T>() + n.row(args.in[which], token);
      const int64_t at = token % n.time * n.half;
      for (int64_t h = 0; h < n.turned_heads && args.dout[which]; ++h) {
        const T* dout = args.dout[which].ptr<T>() + n.row(args.dout[which], token);
        rope_turn(dout + h * n.turned_width, args.in[4].ptr<T>() + at, args.in[5].ptr<T>() + at,
                  n.half, n.turned_width, true, dn.data() + h * n.turned_width);
      }
      if (!args.dout[which]) {
        std::fill(dn.begin(), dn.end(), T(0));
      }
      for (int64_t i = 0; i < n.features; ++i) {
        a[i] = x[i] * args.in[2].ptr<T>()[2 * i + which] + args.in[3].ptr<T>()[2 * i + which];
        y[i] = a[i] / (T(1) + std::exp(-a[i]));
      }
      for (int64_t i = 0; i < n.features; ++i) {
        const int64_t h = i / n.width;
        const T length = args.saved[0].ptr<T>()[(which * n.tokens + token) * n.heads + h];
        const T r = T(1) / (length + T(kLactUnitEps));
        T along = 0;
        for (int64_t j = h * n.width; j < (h + 1) * n.width; ++j) {
          along += y[j] * dn[j];
        }
        const T dy = r * dn[i] - (length > T(0) ? y[i] * r * r * along / length : T(0));
        const T s = T(1) / (T(1) + std::exp(-a[i]));
        const T da = dy * s * (T(1) + a[i] * (T(1) - s));
        if (args.din[which]) {
          T& dx = args.din[which].ptr<T>()[n.row(args.din[which], token) + i];
          dx = (args.accumulate[which] ? dx : T(0)) + da * args.in[2].ptr<T>()[2 * i + which];
        }
        if (args.din[2]) {
          args.din[2].ptr<T>()[2 * i + which] += da * x[i];
        }
        if (args.din[3]) {
          args.din[3].ptr<T>()[2 * i + which] += da;
        }
      }
    }
  }
}

}  // namespace fwpkm
