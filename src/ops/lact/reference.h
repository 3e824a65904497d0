// The formulas token by token; README.md derives backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/lact/lact.h"

namespace fwpkm {
namespace lact_reference {

// a = silu(g) and its first two derivatives.
template <typename T>
struct Silu {
  T value, slope, bend;

  explicit Silu(T g) {
    const T s = T(1) / (T(1) + std::exp(-g));
    value = g * s;
    slope = s * (T(1) + g * (T(1) - s));
    bend = s * (T(1) - s) * (T(2) + g * (T(1) - T(2) * s));
  }
};

template <typename T>
using Vector = std::vector<T>;

// W x and W^T x.
template <typename T>
Vector<T> times(const T* w, const T* x, int64_t width) {
  Vector<T> y(width, T(0));
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      y[i] += w[i * width + j] * x[j];
    }
  }
  return y;
}

template <typename T>
Vector<T> transposed_times(const T* w, const T* x, int64_t width) {
  Vector<T> y(width, T(0));
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      y[j] += w[i * width + j] * x[i];
    }
  }
  return y;
}

// w += c a b^T.
template <typename T>
void add_outer(T* w, T c, const T* a, const T* b, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      w[i * width + j] += c * a[i] * b[j];
    }
  }
}

template <typename T>
T dot(const T* a, const T* b, int64_t width) {
  T sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// One token as an update sees it.
template <typename T>
struct Token {
  const T *k, *v, *lr;
  T momentum;
};

// The first norms of the rows of three matrices.
template <typename T>
void first_norms(const T* w, const LactSizes& n, T* norms) {
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    norms[r] = std::sqrt(dot(w + r * n.width, w + r * n.width, n.width));
  }
}

// W = W + M with its rows at their first norms.
template <typename T>
void apply(const T* m, const T* norms, const LactSizes& n, T* w) {
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    T* row = w + r * n.width;
    for (int64_t j = 0; j < n.width; ++j) {
      row[j] += m[r * n.width + j];
    }
    const T scale = norms[r] / std::sqrt(dot(row, row, n.width) + T(kLactNormEps));
    for (int64_t j = 0; j < n.width; ++j) {
      row[j] *= scale;
    }
  }
}

// M = mean(momentum) M + the steps of the chunk's tokens.
template <typename T>
void step(const Vector<Token<T>>& tokens, const LactSizes& n, const T* w, T* m) {
  const int64_t size = n.matrix();
  T mean = 0;
  for (const Token<T>& t : tokens) {
    mean += t.momentum;
  }
  mean /= T(tokens.size());
  for (int64_t i = 0; i < n.matrices(); ++i) {
    m[i] *= mean;
  }
  for (const Token<T>& t : tokens) {
    const Vector<T> g = times(w, t.k, n.width), u = times(w + 2 * size, t.k, n.width),
                    p = transposed_times(w + size, t.v, n.width);
    Vector<T> h(n.width), e0(n.width), e2(n.width);
    for (int64_t i = 0; i < n.width; ++i) {
      const Silu<T> a(g[i]);
      h[i] = a.value * u[i];
      e0[i] = p[i] * u[i] * a.slope;
      e2[i] = p[i] * a.value;
    }
    add_outer(m, t.lr[0], e0.data(), t.k, n.width);
    add_outer(m + size, t.lr[1], t.v, h.data(), n.width);
    add_outer(m + 2 * size, t.lr[2], e2.data(), t.k, n.width);
  }
}

template <typename T>
void read(const T* w, const T* q, const LactSizes& n, T* o) {
  const Vector<T> a = times(w, q, n.width), b = times(w + 2 * n.matrix(), q, n.width);
  Vector<T> s(n.width);
  for (int64_t i = 0; i < n.width; ++i) {
    s[i] = Silu<T>(a[i]).value * b[i];
  }
  const Vector<T> y = times(w + n.matrix(), s.data(), n.width);
  std::copy(y.begin(), y.end(), o);
}

// The three matrices of head h at the start of the sequence, as one block.
template <typename T>
void load_start(const OpArgs& args, const LactSizes& n, int64_t h, T* w) {
  for (int i = 0; i < 3; ++i) {
    const T* from = args.in[5 + i].ptr<T>() + h * n.matrix();
    std::copy(from, from + n.matrix(), w + i * n.matrix());
  }
}

template <typename T>
Token<T> input_token(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h) {
  return {lact_row<T>(args.in[1], n, b, t, h), lact_row<T>(args.in[2], n, b, t, h),
          args.in[3].ptr<T>() + 3 * n.at(b, t, h), args.in[4].ptr<T>()[n.at(b, t, h)]};
}

template <typename T>
void forward(const OpArgs& args, const LactSizes& n, int64_t b, int64_t h) {
  const int64_t item = n.item(b, h);
  Vector<T> own(n.keeps ? 0 : 2 * n.matrices() + 3 * n.width);
  T* w = n.keeps ? args.state[0].ptr<T>() + item * n.matrices() : own.data();
  T* m = n.keeps ? args.state[1].ptr<T>() + item * n.matrices() : w + n.matrices();
  T* norms = n.keeps ? args.state[2].ptr<T>() + item * 3 * n.width : m + n.matrices();
  T* pending = n.keeps ? args.state[3].ptr<T>() + item * n.chunk * n.pending_width() : nullptr;
  if (args.attr<LactSettings>().begins) {
    load_start(args, n, h, w);
    first_norms(w, n, norms);
    std::fill(m, m + n.matrices(), T(0));
  }
  int64_t filled = n.pending, update = 0;
  for (int64_t t = 0; t < n.length; ++t) {
    read(w, lact_row<T>(args.in[0], n, b, t, h), n, lact_row<T>(args.out[0], n, b, t, h));
    if (n.keeps) {
      const Token<T> token = input_token<T>(args, n, b, t, h);
      T* to = pending + filled * n.pending_width();
      std::copy(token.k, token.k + n.width, to);
      std::copy(token.v, token.v + n.width, to + n.width);
      std::copy(token.lr, token.lr + 3, to + 2 * n.width);
      to[2 * n.width + 3] = token.momentum;
    }
    if (++filled < n.chunk || update == n.updates) {
      continue;
    }
    Vector<Token<T>> tokens;
    for (int64_t i = 0; i < n.chunk; ++i) {
      const T* from = n.keeps ? pending + i * n.pending_width() : nullptr;
      tokens.push_back(
          n.keeps ? Token<T>{from, from + n.width, from + 2 * n.width, from[2 * n.width + 3]}
                  : input_token<T>(args, n, b, t + 1 - n.chunk + i, h));
    }
    step(tokens, n, w, m);
    if (args.saved[0]) {
      std::copy(m, m + n.matrices(), args.saved[0].ptr<T>() + n.saved_at(b, h, update));
    }
    apply(m, norms, n, w);
    filled = 0;
    ++update;
  }
}

// Adds to, or overwrites, a gradient that may not be wanted.
template <typename T>
void put(const View& view, T* to, const Vector<T>& from, bool add) {
  if (view) {
    for (size_t i = 0; i < from.size(); ++i) {
      to[i] = (add ? to[i] : T(0)) + from[i];
    }
  }
}

template <typename T>
void backward_read(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h,
                   const T* w, T* dw) {
  const int64_t width = n.width, size = n.matrix();
  const T* q = lact_row<T>(args.in[0], n, b, t, h);
  const T* d_o = lact_row<T>(args.dout[0], n, b, t, h);
  const Vector<T> a = times(w, q, width), x = times(w + 2 * size, q, width),
                  ds = transposed_times(w + size, d_o, width);
  Vector<T> s(width), da(width), dx(width);
  for (int64_t i = 0; i < width; ++i) {
    const Silu<T> silu(a[i]);
    s[i] = silu.value * x[i];
    da[i] = ds[i] * x[i] * silu.slope;
    dx[i] = ds[i] * silu.value;
  }
  add_outer(dw + size, T(1), d_o, s.data(), width);
  add_outer(dw, T(1), da.data(), q, width);
  add_outer(dw + 2 * size, T(1), dx.data(), q, width);
  Vector<T> dq = transposed_times(w, da.data(), width);
  const Vector<T> more = transposed_times(w + 2 * size, dx.data(), width);
  for (int64_t i = 0; i < width; ++i) {
    dq[i] += more[i];
  }
  put(args.din[0], args.din[0] ? lact_row<T>(args.din[0], n, b, t, h) : nullptr, dq,
      args.accumulate[0]);
}

// `step` is the gradient of the chunk's G.
template <typename T>
void backward_step(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h,
                   const T* w, const T* step, T* dw) {
  const int64_t width = n.width, size = n.matrix();
  const Token<T> token = input_token<T>(args, n, b, t, h);
  const T* lr = token.lr;
  const Vector<T> g = times(w, token.k, width), u = times(w + 2 * size, token.k, width),
                  p = transposed_times(w + size, token.v, width), z0 = times(step, token.k, width),
                  z2 = times(step + 2 * size, token.k, width),
                  z1 = transposed_times(step + size, token.v, width);
  Vector<T> h_lr(width), e0_lr(width), e2_lr(width), dp(width), du(width), dg(width), dlr(3, T(0));
  for (int64_t i = 0; i < width; ++i) {
    const Silu<T> a(g[i]);
    const T hi = a.value * u[i], e0 = p[i] * u[i] * a.slope, e2 = p[i] * a.value;
    const T dh = lr[1] * z1[i], de0 = lr[0] * z0[i], de2 = lr[2] * z2[i];
    dlr[0] += z0[i] * e0;
    dlr[1] += z1[i] * hi;
    dlr[2] += z2[i] * e2;
    dp[i] = de0 * u[i] * a.slope + de2 * a.value;
    du[i] = dh * a.value + de0 * p[i] * a.slope;
    dg[i] = dh * u[i] * a.slope + de0 * p[i] * u[i] * a.bend + de2 * p[i] * a.slope;
    h_lr[i] = lr[1] * hi;
    e0_lr[i] = lr[0] * e0;
    e2_lr[i] = lr[2] * e2;
  }
  add_outer(dw, T(1), dg.data(), token.k, width);
  add_outer(dw + size, T(1), token.v, dp.data(), width);
  add_outer(dw + 2 * size, T(1), du.data(), token.k, width);
  Vector<T> dk(width, T(0)), dv(width, T(0));
  const auto add = [&](Vector<T>* to, const Vector<T>& from) {
    for (int64_t i = 0; i < width; ++i) {
      (*to)[i] += from[i];
    }
  };
  add(&dk, transposed_times(step, e0_lr.data(), width));
  add(&dk, transposed_times(step + 2 * size, e2_lr.data(), width));
  add(&dk, transposed_times(w, dg.data(), width));
  add(&dk, transposed_times(w + 2 * size, du.data(), width));
  add(&dv, times(step + size, h_lr.data(), width));
  add(&dv, times(w + size, dp.data(), width));
  const auto row = [&](int i) {
    return args.din[i] ? lact_row<T>(args.din[i], n, b, t, h) : nullptr;
  };
  put(args.din[1], row(1), dk, args.accumulate[1]);
  put(args.din[2], row(2), dv, args.accumulate[2]);
  put(args.din[3], args.din[3].ptr<T>() + (args.din[3] ? 3 * n.at(b, t, h) : 0), dlr,
      args.accumulate[3]);
}

// From the gradients of W' (in dw) and of M' (in dm) to that of the chunk's G (in step) and, as far
// as the update itself goes, those of W and the first norms. dm becomes that of M; returns that of
// the mean momentum.
template <typename T>
T backward_update(const LactSizes& n, const T* w, const T* m, const T* before, const T* norms,
                  T mean, T* dw, T* dm, T* step, T* dnorms) {
  T dmean = 0;
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    const int64_t at = r * n.width;
    Vector<T> x(n.width);
    for (int64_t j = 0; j < n.width; ++j) {
      x[j] = w[at + j] + m[at + j];
    }
    const T scale = T(1) / std::sqrt(dot(x.data(), x.data(), n.width) + T(kLactNormEps));
    const T along = dot(x.data(), dw + at, n.width);
    dnorms[r] += scale * along;
    for (int64_t j = 0; j < n.width; ++j) {
      dw[at + j] = norms[r] * scale * (dw[at + j] - x[j] * scale * scale * along);
      step[at + j] = dw[at + j] + dm[at + j];
      dmean += before == nullptr ? T(0) : step[at + j] * before[at + j];
      dm[at + j] = mean * step[at + j];
    }
  }
  return dmean;
}

template <typename T>
void backward(const OpArgs& args, const LactSizes& n, int64_t b, int64_t h) {
  const int64_t size = n.matrices();
  // The weights of every chunk again, from the saved M.
  Vector<T> chain((n.updates + 1) * size), norms(3 * n.width), dnorms(3 * n.width, T(0));
  load_start(args, n, h, chain.data());
  first_norms(chain.data(), n, norms.data());
  const T* m = args.saved[0] ? args.saved[0].ptr<T>() + n.saved_at(b, h, 0) : nullptr;
  for (int64_t c = 0; c < n.updates; ++c) {
    std::copy_n(chain.begin() + c * size, size, chain.begin() + (c + 1) * size);
    apply(m + c * size, norms.data(), n, chain.data() + (c + 1) * size);
  }
  Vector<T> dw(size, T(0)), dm(size, T(0)), step(size);
  for (int64_t c = n.updates; c >= 0; --c) {
    const T* w = chain.data() + c * size;
    const int64_t begin = c * n.chunk, end = std::min(n.length, begin + n.chunk);
    T dmean = 0;
    if (c < n.updates) {
      T mean = 0;
      for (int64_t t = begin; t < end; ++t) {
        mean += args.in[4].ptr<T>()[n.at(b, t, h)];
      }
      mean /= T(n.chunk);
      dmean = backward_update(n, w, m + c * size, c == 0 ? nullptr : m + (c - 1) * size,
                              norms.data(), mean, dw.data(), dm.data(), step.data(), dnorms.data());
    }
    for (int64_t t = begin; t < end; ++t) {
      if (c < n.updates) {
        backward_step(args, n, b, t, h, w, step.data(), dw.data());
      } else {
        const Vector<T> none(n.width, T(0));
        for (int i = 1; i < 3; ++i) {
          put(args.din[i], args.din[i] ? lact_row<T>(args.din[i], n, b, t, h) : nullptr, none,
              args.accumulate[i]);
        }
        put(args.din[3], args.din[3].ptr<T>() + (args.din[3] ? 3 * n.at(b, t, h) : 0),
            Vector<T>(3, T(0)), args.accumulate[3]);
      }
      put(args.din[4], args.din[4].ptr<T>() + (args.din[4] ? n.at(b, t, h) : 0),
          Vector<T>(1, dmean / T(n.chunk)), args.accumulate[4]);
      backward_read(args, n, b, t, h, w, dw.data());
    }
  }
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    for (int64_t j = 0; j < n.width && norms[r] > T(0); ++j) {
      dw[r * n.width + j] += dnorms[r] * chain[r * n.width + j] / norms[r];
    }
  }
  for (int i = 0; i < 3; ++i) {
    if (args.din[5 + i]) {
      T* to = args.din[5 + i].ptr<T>() + h * n.matrix();
      for (int64_t j = 0; j < n.matrix(); ++j) {
        to[j] = (args.accumulate[5 + i] || b > 0 ? to[j] : T(0)) + dw[i * n.matrix() + j];
      }
    }
  }
}

}  // namespace lact_reference

template <typename T>
void lact_forward_reference(const OpArgs& args) {
  const LactSizes n(args);
  for (int64_t b = 0; b < n.batch; ++b) {
    for (int64_t h = 0; h < n.heads; ++h) {
      lact_reference::forward<T>(args, n, b, h);
    }
  }
}

template <typename T>
void lact_backward_reference(const OpArgs& args) {
  const LactSizes n(args);
  for (int64_t b = 0; b < n.batch; ++b) {
    for (int64_t h = 0; h < n.heads; ++h) {
      lact_reference::backward<T>(args, n, b, h);
    }
  }
}

}  // namespace fwpkm
