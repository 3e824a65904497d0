// Reads and writes as the formulas, token by token; README.md derives the backward.
#pragma once

#include <cmath>
#include <vector>

#include "ops/fast_mlp/fast_mlp.h"

namespace fwpkm {

// y = W x + b, or y += W x without b; W [rows, columns].
template <typename T>
void fast_mlp_times(const T* w, const T* b, const T* x, int64_t rows, int64_t columns, T* y) {
  for (int64_t i = 0; i < rows; ++i) {
    T sum = 0;
    for (int64_t j = 0; j < columns; ++j) {
      sum += w[i * columns + j] * x[j];
    }
    y[i] = b != nullptr ? sum + b[i] : y[i] + sum;
  }
}

// x += W^T y.
template <typename T>
void fast_mlp_times_transposed(const T* w, const T* y, int64_t rows, int64_t columns, T* x) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      x[j] += w[i * columns + j] * y[i];
    }
  }
}

// W += y x^T and, where given, b += y.
template <typename T>
void fast_mlp_add_outer(const T* y, const T* x, int64_t rows, int64_t columns, T* w, T* b) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      w[i * columns + j] += y[i] * x[j];
    }
    if (b != nullptr) {
      b[i] += y[i];
    }
  }
}

template <typename T>
struct FastMlpHidden {
  using Vector = std::vector<T>;
  Vector up, gate;
  Vector a;                // up * silu(gate)
  Vector s, slope, curve;  // silu(gate) and its first and second derivative

  FastMlpHidden(const FastMlpWeights<T>& w, const FastMlpSizes& n, const T* q) {
    for (Vector* v : {&up, &gate, &a, &s, &slope, &curve}) {
      v->resize(static_cast<size_t>(n.hidden));
    }
    fast_mlp_times(w.up, w.b_up, q, n.hidden, n.dk, up.data());
    fast_mlp_times(w.gate, w.b_gate, q, n.hidden, n.dk, gate.data());
    for (int64_t i = 0; i < n.hidden; ++i) {
      const T g = gate[i], sigmoid = T(1) / (T(1) + std::exp(-g));
      s[i] = g * sigmoid;
      slope[i] = sigmoid * (T(1) + g * (T(1) - sigmoid));
      curve[i] = sigmoid * (T(1) - sigmoid) * (T(2) + g * (T(1) - T(2) * sigmoid));
      a[i] = up[i] * s[i];
    }
  }
};

// The error of token t of batch row b, which writes.
template <typename T>
std::vector<T> fast_mlp_error(const OpArgs& args, const FastMlpSizes& n, int64_t b, int64_t t) {
  const T* v = args.in[1].ptr<T>();
  const T* y = args.out[0].ptr<T>() + (b * n.length + t) * n.dv;
  std::vector<T> error(y, y + n.dv);
  for (int64_t from = n.target_first(t); from <= t + n.set.lookahead; ++from) {
    for (int64_t i = 0; i < n.dv; ++i) {
      error[i] -= static_cast<T>(n.target_weight()) * v[(b * n.length + from) * n.dv + i];
    }
  }
  return error;
}

template <typename T>
void fast_mlp_forward_reference(const OpArgs& args) {
  const FastMlpSizes n(args);
  const T* q = args.in[0].ptr<T>();
  T* losses = args.out[1].ptr<T>();
  std::vector<T> weights(static_cast<size_t>(n.packed)), gradient(weights.size()),
      da(static_cast<size_t>(n.hidden)), dup(da.size()), dgate(da.size());
  const auto w = FastMlpWeights<T>::of(weights.data(), n);
  const auto g = FastMlpWeights<T>::of(gradient.data(), n);
  for (int64_t r = 0; r < n.sets; ++r) {
    const auto start = FastMlpWeights<T>::of(args.in.subspan(2), n, r).all();
    for (int i = 0; i < 6; ++i) {
      std::copy_n(start[i], n.parts[i], w.all()[i]);
    }
    for (int64_t c = 0; c < n.chunks; ++c) {
      std::fill(gradient.begin(), gradient.end(), T(0));
      for (int64_t b = r * n.rows; b < (r + 1) * n.rows; ++b) {
        for (int64_t t = n.begin(c); t < n.end(c); ++t) {
          const int64_t token = b * n.length + t;
          const T* x = q + token * n.dk;
          const FastMlpHidden<T> h(w, n, x);
          fast_mlp_times(w.down, w.b_down, h.a.data(), n.dv, n.hidden,
                         args.out[0].ptr<T>() + token * n.dv);
          losses[token] = 0;
          if (t >= n.begin(c) + n.pairs(c)) {
            continue;
          }
          std::vector<T> dy = fast_mlp_error<T>(args, n, b, t);
          for (T& e : dy) {
            losses[token] += e * e / static_cast<T>(n.dv);
            e *= static_cast<T>(n.error_scale(c));
          }
          std::fill(da.begin(), da.end(), T(0));
          fast_mlp_times_transposed(w.down, dy.data(), n.dv, n.hidden, da.data());
          for (int64_t i = 0; i < n.hidden; ++i) {
            dup[i] = da[i] * h.s[i];
            dgate[i] = da[i] * h.up[i] * h.slope[i];
          }
          fast_mlp_add_outer(dy.data(), h.a.data(), n.dv, n.hidden, g.down, g.b_down);
          fast_mlp_add_outer(dup.data(), x, n.hidden, n.dk, g.up, g.b_up);
          fast_mlp_add_outer(dgate.data(), x, n.hidden, n.dk, g.gate, g.b_gate);
        }
      }
      if (c < n.writes) {
        for (size_t i = 0; i < weights.size(); ++i) {
          weights[i] -= static_cast<T>(n.set.lr) * gradient[i];
        }
        if (args.saved[0] && c < n.versions) {
          std::copy(weights.begin(), weights.end(),
                    args.saved[0].ptr<T>() + (c * n.sets + r) * n.packed);
        }
      }
    }
    if (n.set.write) {
      const auto after = FastMlpWeights<T>::of(args.out.subspan(2), n, r).all();
      for (int i = 0; i < 6; ++i) {
        std::copy_n(w.all()[i], n.parts[i], after[i]);
      }
    }
  }
}

// One token of chunk c. d is the gradient of the weights that the chunk leaves; what the token adds
// to the gradient of those that it reads goes to `to`; `behind` is w, but see late_weights. Names
// as in README.md; x_dot is the change of x along d.
template <typename T>
void fast_mlp_backward_token(const OpArgs& args, const FastMlpSizes& n, int64_t c, int64_t b,
                             int64_t t, const FastMlpWeights<T>& w, const FastMlpWeights<T>& behind,
                             const FastMlpWeights<T>& d, const FastMlpWeights<T>& to) {
  const int64_t token = b * n.length + t;
  const T* q = args.in[0].ptr<T>() + token * n.dk;
  const T* dvhat = args.dout[0].ptr<T>() + token * n.dv;
  T* dq = args.din[0].ptr<T>();
  T* dv = args.din[1].ptr<T>();
  const FastMlpHidden<T> h(w, n, q);
  const auto zeros = [&] { return std::vector<T>(static_cast<size_t>(n.hidden)); };
  std::vector<T> ybar(dvhat, dvhat + n.dv), abar = zeros(), ubar = zeros(), gbar = zeros();
  std::vector<T> dqt(static_cast<size_t>(n.dk));
  if (t < n.begin(c) + n.pairs(c)) {
    const T scale = static_cast<T>(-n.set.lr * n.error_scale(c));
    std::vector<T> p = fast_mlp_error<T>(args, n, b, t);
    for (T& e : p) {
      e *= scale;
    }
    std::vector<T> da = zeros(), u_dot = zeros(), g_dot = zeros(), a_dot = zeros(), du = zeros(),
                   dg = zeros(), y_dot(static_cast<size_t>(n.dv));
    fast_mlp_times_transposed(w.down, p.data(), n.dv, n.hidden, da.data());
    fast_mlp_times(d.up, d.b_up, q, n.hidden, n.dk, u_dot.data());
    fast_mlp_times(d.gate, d.b_gate, q, n.hidden, n.dk, g_dot.data());
    for (int64_t i = 0; i < n.hidden; ++i) {
      a_dot[i] = u_dot[i] * h.s[i] + h.up[i] * h.slope[i] * g_dot[i];
      ubar[i] = da[i] * h.slope[i] * g_dot[i];
      gbar[i] = da[i] * (h.slope[i] * u_dot[i] + h.up[i] * h.curve[i] * g_dot[i]);
      du[i] = da[i] * h.s[i];
      dg[i] = da[i] * h.up[i] * h.slope[i];
    }
    fast_mlp_times(d.down, d.b_down, h.a.data(), n.dv, n.hidden, y_dot.data());
    fast_mlp_times<T>(behind.down, nullptr, a_dot.data(), n.dv, n.hidden, y_dot.data());
    for (int64_t i = 0; i < n.dv; ++i) {
      ybar[i] += scale * y_dot[i];
      for (int64_t from = n.target_first(t); from <= t + n.set.lookahead && dv != nullptr; ++from) {
        dv[(b * n.length + from) * n.dv + i] -=
            static_cast<T>(n.target_weight()) * scale * y_dot[i];
      }
    }
    fast_mlp_times_transposed(d.down, p.data(), n.dv, n.hidden, abar.data());
    fast_mlp_add_outer<T>(p.data(), a_dot.data(), n.dv, n.hidden, to.down, nullptr);
    fast_mlp_times_transposed(d.up, du.data(), n.hidden, n.dk, dqt.data());
    fast_mlp_times_transposed(d.gate, dg.data(), n.hidden, n.dk, dqt.data());
  }
  fast_mlp_times_transposed(behind.down, ybar.data(), n.dv, n.hidden, abar.data());
  for (int64_t i = 0; i < n.hidden; ++i) {
    ubar[i] += abar[i] * h.s[i];
    gbar[i] += abar[i] * h.up[i] * h.slope[i];
  }
  fast_mlp_add_outer(ybar.data(), h.a.data(), n.dv, n.hidden, to.down, to.b_down);
  fast_mlp_add_outer(ubar.data(), q, n.hidden, n.dk, to.up, to.b_up);
  fast_mlp_add_outer(gbar.data(), q, n.hidden, n.dk, to.gate, to.b_gate);
  fast_mlp_times_transposed(behind.up, ubar.data(), n.hidden, n.dk, dqt.data());
  fast_mlp_times_transposed(behind.gate, gbar.data(), n.hidden, n.dk, dqt.data());
  for (int64_t i = 0; i < n.dk && dq != nullptr; ++i) {
    dq[token * n.dk + i] += dqt[i];
  }
}

template <typename T>
void fast_mlp_backward_reference(const OpArgs& args) {
  const FastMlpSizes n(args);
  for (int i = 0; i < 2; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  for (int64_t r = 0; r < n.sets; ++r) {
    std::vector<T> d(static_cast<size_t>(n.packed));  // nothing reads the weights after the end
    for (int64_t c = n.chunks - 1; c >= 0; --c) {
      const auto w = FastMlpWeights<T>::at_chunk(args, n, r, c);
      const auto behind = FastMlpWeights<T>::behind_chunk(args, n, r, c);
      std::vector<T> next = d;
      for (int64_t b = r * n.rows; b < (r + 1) * n.rows; ++b) {
        for (int64_t t = n.begin(c); t < n.end(c); ++t) {
          fast_mlp_backward_token(args, n, c, b, t, w, behind, FastMlpWeights<T>::of(d.data(), n),
                                  FastMlpWeights<T>::of(next.data(), n));
        }
      }
      d = next;
      if (!n.passes(c)) {
        std::fill(d.begin(), d.end(), T(0));
      }
    }
  }
}

}  // namespace fwpkm
