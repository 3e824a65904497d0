// Blend and norm as the formula. With m = g a + (1 - g) b, r = 1/rms of m and G = dy (1 + w):
//   dm = r (G - m r mean(G m r)),   dw = sum over rows of dy m r,
//   da = g dm,   db = (1 - g) dm,   dg = sum over features of dm (a - b);   without g: da = db =
//   dm.
#pragma once

#include <cmath>
#include <vector>

#include "ops/blend_norm/blend_norm.h"
#include "ops/common/rows.h"

namespace fwpkm {

// A row of the call: a and b, their shares, and the mixture of them.
template <typename T>
struct BlendedRow {
  const T *a, *b;
  T of_a = 1, of_b = 1;
  std::vector<T> m;

  BlendedRow(const OpArgs& args, int64_t row) {
    using In = BlendNormIn;
    const View &a_view = args.in[In::a], &b_view = args.in[In::b];
    a = a_view.ptr<T>() + Rows(a_view)[row];
    b = b_view.ptr<T>() + Rows(b_view)[row];
    if (args.in[In::g]) {
      of_a = args.in[In::g].ptr<T>()[row];
      of_b = T(1) - of_a;
    }
    for (int64_t i = 0; i < a_view.dim(-1); ++i) {
      m.push_back(of_a * a[i] + of_b * b[i]);
    }
  }
};

// in: a, b, g or none, w. out: y. saved: r.
template <typename T>
void blend_norm_forward_reference(const OpArgs& args) {
  using In = BlendNormIn;
  const Rows y_rows(args.out[0]);
  const T* w = args.in[In::w].ptr<T>();
  for (int64_t row = 0; row < y_rows.count(); ++row) {
    const std::vector<T> m = BlendedRow<T>(args, row).m;
    T* y = args.out[0].ptr<T>() + y_rows[row];
    T squares = 0;
    for (const T value : m) {
      squares += value * value;
    }
    const T r = T(1) / std::sqrt(squares / T(m.size()) + T(args.attr<BlendNormSettings>().eps));
    for (size_t i = 0; i < m.size(); ++i) {
      y[i] = m[i] * r * (T(1) + w[i]);
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[row] = r;
    }
  }
}

template <typename T>
void blend_norm_backward_reference(const OpArgs& args) {
  using In = BlendNormIn;
  const Rows dy_rows(args.dout[0]);
  const T* w = args.in[In::w].ptr<T>();
  T* dw = args.din[In::w].ptr<T>();
  if (dw != nullptr && !args.accumulate[In::w]) {
    fill_zero(args.din[In::w]);
  }
  for (int64_t row = 0; row < dy_rows.count(); ++row) {
    const BlendedRow<T> blended(args, row);
    const std::vector<T>& m = blended.m;
    const T* dy = args.dout[0].ptr<T>() + dy_rows[row];
    const T r = args.saved[0].ptr<T>()[row];
    T mean = 0, dg = 0;
    for (size_t i = 0; i < m.size(); ++i) {
      mean += dy[i] * (T(1) + w[i]) * m[i] * r / T(m.size());
      if (dw != nullptr) {
        dw[i] += dy[i] * m[i] * r;
      }
    }
    const auto put = [&](int in, size_t i, T value) {
      if (args.din[in]) {
        T& to = args.din[in].ptr<T>()[Rows(args.din[in])[row] + static_cast<int64_t>(i)];
        to = args.accumulate[in] ? to + value : value;
      }
    };
    for (size_t i = 0; i < m.size(); ++i) {
      const T dm = r * (dy[i] * (T(1) + w[i]) - m[i] * r * mean);
      put(In::a, i, blended.of_a * dm);
      put(In::b, i, blended.of_b * dm);
      dg += dm * (blended.a[i] - blended.b[i]);
    }
    if (args.din[In::g]) {
      T& to = args.din[In::g].ptr<T>()[row];
      to = args.accumulate[In::g] ? to + dg : dg;
    }
  }
}

}  // namespace fwpkm
