// The gated delta rule as the recurrence, and its backward from all stored states. Per token, with
// S' = exp(g) S the decayed state and w = v - S'^T kn:
//
//   dS += qn do^T,  dqn = S do,  du = dS^T kn,  dkn = dS u - S' (beta du),
//   dv = beta du,  dbeta = <du, w>,  dS' = dS - kn (beta du)^T,
//   dg = <dS', S'>,  and exp(g) dS' goes on to the token before.
#pragma once

#include <cmath>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fwpkm {

// y = x * scale / sqrt(|x|^2 + eps); returns 1 / sqrt(|x|^2 + eps).
template <typename T>
T delta_normalize(const T* x, int64_t width, T scale, T* y) {
  T squares = 0;
  for (int64_t i = 0; i < width; ++i) {
    squares += x[i] * x[i];
  }
  const T r = T(1) / std::sqrt(squares + T(kDeltaEps));
  for (int64_t i = 0; i < width; ++i) {
    y[i] = x[i] * r * scale;
  }
  return r;
}

// dx = scale r (dy - x r^2 <x, dy>), put into or added to dx.
template <typename T>
void delta_normalize_backward(const T* x, const T* dy, int64_t width, T scale, bool add, T* dx) {
  T squares = 0, along = 0;
  for (int64_t i = 0; i < width; ++i) {
    squares += x[i] * x[i];
    along += x[i] * dy[i];
  }
  const T r = T(1) / std::sqrt(squares + T(kDeltaEps));
  for (int64_t i = 0; i < width; ++i) {
    const T d = scale * r * (dy[i] - x[i] * r * r * along);
    dx[i] = add ? dx[i] + d : d;
  }
}

// One token: S [dk, dv] is decayed to S' and then corrected; leaves w = v - S'^T kn [dv].
template <typename T>
void delta_step(T* s, int64_t dk, int64_t dv, const T* kn, const T* v, T g, T beta, T* w) {
  for (int64_t c = 0; c < dv; ++c) {
    w[c] = v[c];
  }
  const T decay = std::exp(g);
  for (int64_t r = 0; r < dk; ++r) {
    for (int64_t c = 0; c < dv; ++c) {
      s[r * dv + c] *= decay;
      w[c] -= kn[r] * s[r * dv + c];
    }
  }
  for (int64_t r = 0; r < dk; ++r) {
    for (int64_t c = 0; c < dv; ++c) {
      s[r * dv + c] += kn[r] * (beta * w[c]);
    }
  }
}

// in: q, k, v, g, beta. out: o. saved: states. state: S.
template <typename T>
void delta_rule_forward_reference(const OpArgs& args) {
  const DeltaSizes n(args);
  const T scale = T(1) / std::sqrt(T(n.dk));
  const T* g = args.in[3].ptr<T>();
  const T* beta = args.in[4].ptr<T>();
  std::vector<T> s(n.matrix()), qn(n.dk), kn(n.dk), w(n.dv);
  for (int64_t b = 0; b < n.batch; ++b) {
    for (int64_t h = 0; h < n.value_heads; ++h) {
      T* state = args.state[0] ? args.state[0].ptr<T>() + n.state_at(b, h) : nullptr;
      for (int64_t i = 0; i < n.matrix(); ++i) {
        s[i] = state != nullptr ? state[i] : T(0);
      }
      for (int64_t t = 0; t < n.length; ++t) {
        if (args.saved[0] && t % kDeltaChunk == 0) {
          std::copy(s.begin(), s.end(), args.saved[0].ptr<T>() + n.saved_at(b, h, t / kDeltaChunk));
        }
        delta_normalize(delta_row<T>(args.in[0], b, t, h / n.group), n.dk, scale, qn.data());
        delta_normalize(delta_row<T>(args.in[1], b, t, h / n.group), n.dk, T(1), kn.data());
        delta_step(s.data(), n.dk, n.dv, kn.data(), delta_row<T>(args.in[2], b, t, h),
                   g[n.at(b, t, h)], beta[n.at(b, t, h)], w.data());
        T* o = delta_row<T>(args.out[0], b, t, h);
        for (int64_t c = 0; c < n.dv; ++c) {
          o[c] = 0;
          for (int64_t r = 0; r < n.dk; ++r) {
            o[c] += qn[r] * s[r * n.dv + c];
          }
        }
      }
      if (state != nullptr) {
        std::copy(s.begin(), s.end(), state);
      }
    }
  }
}

// The gradients of one head's qn and kn are added to dqn and dkn [T, dk].
template <typename T>
void delta_rule_backward_head(const OpArgs& args, int64_t b, int64_t h, T* dqn, T* dkn) {
  const DeltaSizes n(args);
  const T scale = T(1) / std::sqrt(T(n.dk));
  const T* g = args.in[3].ptr<T>();
  const T* beta = args.in[4].ptr<T>();
  // states[t] is S before token t; w[t] = v_t - S'^T kn_t.
  std::vector<T> states((n.length + 1) * n.matrix()), w(n.length * n.dv);
  std::vector<T> qn(n.length * n.dk), kn(n.length * n.dk);
  const T* start = args.saved[0].ptr<T>() + n.saved_at(b, h, 0);
  std::copy(start, start + n.matrix(), states.begin());
  for (int64_t t = 0; t < n.length; ++t) {
    T* s = states.data() + t * n.matrix();
    std::copy(s, s + n.matrix(), s + n.matrix());
    delta_normalize(delta_row<T>(args.in[0], b, t, h / n.group), n.dk, scale, &qn[t * n.dk]);
    delta_normalize(delta_row<T>(args.in[1], b, t, h / n.group), n.dk, T(1), &kn[t * n.dk]);
    delta_step(s + n.matrix(), n.dk, n.dv, &kn[t * n.dk], delta_row<T>(args.in[2], b, t, h),
               g[n.at(b, t, h)], beta[n.at(b, t, h)], &w[t * n.dv]);
  }
  const auto put = [&](int input, T* to, T value) {
    *to = args.accumulate[input] ? *to + value : value;
  };
  std::vector<T> ds(n.matrix(), T(0)), du(n.dv);
  for (int64_t t = n.length - 1; t >= 0; --t) {
    const T* before = states.data() + t * n.matrix();
    const T* after = before + n.matrix();
    const T* dout = delta_row<T>(args.dout[0], b, t, h);
    const T b_t = beta[n.at(b, t, h)], decay = std::exp(g[n.at(b, t, h)]);
    const T* wt = &w[t * n.dv];
    std::fill(du.begin(), du.end(), T(0));
    for (int64_t r = 0; r < n.dk; ++r) {
      for (int64_t c = 0; c < n.dv; ++c) {
        T& d = ds[r * n.dv + c];
        d += qn[t * n.dk + r] * dout[c];
        dqn[t * n.dk + r] += after[r * n.dv + c] * dout[c];
        dkn[t * n.dk + r] += d * b_t * wt[c];
        du[c] += d * kn[t * n.dk + r];
      }
    }
    T dg = 0, dbeta = 0;
    for (int64_t c = 0; c < n.dv; ++c) {
      dbeta += du[c] * wt[c];
    }
    for (int64_t r = 0; r < n.dk; ++r) {
      for (int64_t c = 0; c < n.dv; ++c) {
        T& d = ds[r * n.dv + c];
        const T decayed = decay * before[r * n.dv + c];
        dkn[t * n.dk + r] -= decayed * b_t * du[c];
        d -= kn[t * n.dk + r] * b_t * du[c];
        dg += d * decayed;
        d *= decay;
      }
    }
    if (args.din[2]) {
      T* dv = delta_row<T>(args.din[2], b, t, h);
      for (int64_t c = 0; c < n.dv; ++c) {
        put(2, dv + c, b_t * du[c]);
      }
    }
    if (args.din[3]) {
      put(3, args.din[3].ptr<T>() + n.at(b, t, h), dg);
    }
    if (args.din[4]) {
      put(4, args.din[4].ptr<T>() + n.at(b, t, h), dbeta);
    }
  }
}

template <typename T>
void delta_rule_backward_reference(const OpArgs& args) {
  const DeltaSizes n(args);
  const T scale[2] = {T(1) / std::sqrt(T(n.dk)), T(1)};
  std::vector<T> d[2];  // of qn and kn: [T, dk], summed over the value heads of a key head
  for (int64_t b = 0; b < n.batch; ++b) {
    for (int64_t hk = 0; hk < n.key_heads; ++hk) {
      d[0].assign(n.length * n.dk, T(0));
      d[1].assign(n.length * n.dk, T(0));
      for (int64_t h = hk * n.group; h < (hk + 1) * n.group; ++h) {
        delta_rule_backward_head(args, b, h, d[0].data(), d[1].data());
      }
      for (int input : {0, 1}) {
        for (int64_t t = 0; t < n.length && args.din[input]; ++t) {
          delta_normalize_backward(delta_row<T>(args.in[input], b, t, hk), &d[input][t * n.dk],
                                   n.dk, scale[input], args.accumulate[input],
                                   delta_row<T>(args.din[input], b, t, hk));
        }
      }
    }
  }
}

}  // namespace fwpkm
