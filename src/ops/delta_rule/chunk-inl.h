// The parts of a chunk that forward and backward share. Included once per Highway target, like
// ops/common/simd-inl.h.
#if defined(FWPKM_OPS_DELTA_RULE_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_DELTA_RULE_CHUNK_INL_H_
#undef FWPKM_OPS_DELTA_RULE_CHUNK_INL_H_
#else
#define FWPKM_OPS_DELTA_RULE_CHUNK_INL_H_
#endif

#include <cmath>

#include "ops/common/pair-inl.h"
#include "ops/common/simd-inl.h"
#include "ops/delta_rule/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace delta {

// to = scale * from.
HWY_INLINE void scale_row(F32 d, const float* from, float scale, int64_t width, float* to) {
  const V32 s = hn::Set(d, scale);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    store_part(d, hn::Mul(s, load_part(d, from + i, n)), to + i, n);
  });
}

// y = x * scale / sqrt(|x|^2 + eps); returns 1 / sqrt(|x|^2 + eps).
HWY_INLINE float normalize(F32 d, const float* x, int64_t width, double scale, float* y) {
  const double r = inverse_norm(x, width, 1.0, kDeltaEps);
  const Pair factor = pair_of(d, r * scale);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    store_part(d, rounded(times(d, factor, load_part(d, x + i, n))), y + i, n);
  });
  return static_cast<float>(r);
}

// Normalises tokens t .. t+n-1 of key head hk: q into rows 0..n-1 of `qk`, k into rows n..2n-1.
// `norms` [2n], if given, takes the factors.
HWY_INLINE void load_keys(F32 d, const OpArgs& args, int64_t b, int64_t t, int64_t hk, int64_t n,
                          float* qk, int64_t ldk, float* norms) {
  const int64_t dk = args.in[0].dim(-1);
  const double scale[2] = {1.0 / std::sqrt(static_cast<double>(dk)), 1.0};
  for (int input : {0, 1}) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = input * n + i;
      const float r = normalize(d, delta_row<const float>(args.in[input], b, t + i, hk), dk,
                                scale[input], qk + row * ldk);
      if (norms != nullptr) {
        norms[row] = r;
      }
    }
  }
}

// Gates of tokens t .. t+n-1 of value head h.
HWY_INLINE void load_gates(F32 d, const OpArgs& args, const DeltaSizes& sizes, int64_t b, int64_t t,
                           int64_t h, int64_t n, const DeltaGates& gates) {
  const float* g = args.in[3].ptr<const float>() + sizes.at(b, t, h);
  const float* beta = args.in[4].ptr<const float>() + sizes.at(b, t, h);
  double gamma = 0;
  for (int64_t i = 0; i < kDeltaChunk; ++i) {
    gamma += i < n ? static_cast<double>(g[i * sizes.value_heads]) : 0.0;
    gates.gamma[i] = static_cast<float>(gamma);
    gates.gamma_low[i] = static_cast<float>(gamma - static_cast<double>(gates.gamma[i]));
    gates.beta[i] = i < n ? beta[i * sizes.value_heads] : 0.0f;
  }
  const V32 last = hn::Set(d, gates.gamma[n - 1]), low = hn::Set(d, gates.gamma_low[n - 1]);
  for_vectors(d, kDeltaChunk, [&](int64_t i, size_t) {
    const V32 x = hn::Load(d, gates.gamma + i);
    const V32 x_low = hn::Load(d, gates.gamma_low + i), e = hn::Exp(d, x);
    hn::Store(hn::MulAdd(e, x_low, e), d, gates.e + i);
    const V32 rest = hn::Add(hn::Sub(last, x), hn::Sub(low, x_low));
    hn::Store(hn::Exp(d, rest), d, gates.f + i);
  });
}

// From `dots` (see scratch.h), with D_ij = exp(gamma_i - gamma_j): p_ij = D_ij <q_i, k_j> for
// j <= i and 0 above; a_ij = beta_i D_ij <k_i, k_j> for j < i, undefined from there on. `decay`, if
// given, takes D for j <= i. Only differences <= 0 are exponentiated.
HWY_INLINE void decay_dots(F32 d, const DeltaGates& gates, int64_t n, const float* dots, float* p,
                           float* a, float* decay) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; ++i) {
    const float* qk = dots + i * kDeltaChunk;
    const float* kk = dots + (n + i) * kDeltaChunk;
    const V32 gamma = hn::Set(d, gates.gamma[i]), low = hn::Set(d, gates.gamma_low[i]);
    const V32 beta = hn::Set(d, gates.beta[i]);
    const int64_t row = i * kDeltaChunk;
    int64_t j = 0;
    for (; j <= i; j += lanes) {
      const V32 difference = hn::Add(hn::Sub(gamma, hn::Load(d, gates.gamma + j)),
                                     hn::Sub(low, hn::Load(d, gates.gamma_low + j)));
      const auto inside = hn::FirstN(d, static_cast<size_t>(i + 1 - j));
      const V32 factor = hn::IfThenElseZero(inside, hn::Exp(d, hn::Min(difference, hn::Zero(d))));
      // Masked last: what lies past the chunk's end may be anything.
      hn::Store(hn::IfThenElseZero(inside, hn::Mul(factor, hn::Load(d, qk + j))), d, p + row + j);
      hn::Store(hn::Mul(hn::Mul(beta, factor), hn::Load(d, kk + j)), d, a + row + j);
      if (decay != nullptr) {
        hn::Store(factor, d, decay + row + j);
      }
    }
    for (; j < n; j += lanes) {
      hn::Store(hn::Zero(d), d, p + row + j);
    }
  }
}

// Columns of `x` that a solve keeps in registers at a time, in vectors.
inline constexpr int kSolveVectors = 4;

// One strip of `solve`, N vectors wide.
template <int N, bool kTransposed>
HWY_INLINE void solve_strip(F32 d, const float* a, int64_t n, float* x, int64_t ld) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t step = 1; step < n; ++step) {
    const int64_t i = kTransposed ? n - 1 - step : step;
    V32 sums[N];
    for (int v = 0; v < N; ++v) {
      sums[v] = hn::Load(d, x + i * ld + v * lanes);
    }
    const int64_t begin = kTransposed ? i + 1 : 0, end = kTransposed ? n : i;
    for (int64_t j = begin; j < end; ++j) {
      const V32 factor = hn::Set(d, kTransposed ? a[j * kDeltaChunk + i] : a[i * kDeltaChunk + j]);
      for (int v = 0; v < N; ++v) {
        sums[v] = hn::NegMulAdd(factor, hn::Load(d, x + j * ld + v * lanes), sums[v]);
      }
    }
    for (int v = 0; v < N; ++v) {
      hn::Store(sums[v], d, x + i * ld + v * lanes);
    }
  }
}

// x = (I + A)^-1 x, or (I + A)^-T x, by substitution; A [n, C] is strictly lower triangular and x
// is [n, width] with rows of ld >= width elements that may all be touched.
template <bool kTransposed>
HWY_INLINE void solve(F32 d, const float* a, int64_t n, float* x, int64_t width, int64_t ld) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t at = 0;
  for (; at + kSolveVectors * lanes <= ld; at += kSolveVectors * lanes) {
    solve_strip<kSolveVectors, kTransposed>(d, a, n, x + at, ld);
  }
  for (; at < width; at += lanes) {
    solve_strip<1, kTransposed>(d, a, n, x + at, ld);
  }
}

}  // namespace delta
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
