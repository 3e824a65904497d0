// Backward, chunk by chunk from the last. README.md derives the formulas; names follow it.
#include <cstring>

#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"
#include "ops/delta_rule/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace delta {

// Where a chunk of a value head is.
struct Place {
  int64_t b, t0, h;
  int64_t n;   // tokens
  bool first;  // of the value heads of its key head
};

// w = v - e Y and u = (I + A)^-1 diag(beta) w, from S0 [dk, dv].
HWY_INLINE void redo_forward(F32 d, const OpArgs& args, const DeltaSizes& sizes, const Place& at,
                             const DeltaBackwardScratch& t, const float* s0) {
  const int64_t n = at.n, dv = sizes.dv;
  load_gates(d, args, sizes, at.b, at.t0, at.h, n, t.gates);
  decay_dots(d, t.gates, n, t.dots, t.p, t.a, t.decay);
  gemm(false, false, n, dv, sizes.dk, 1.0f, t.qk + n * t.ldk, t.ldk, s0, dv, 0.0f, t.w, t.ldv);
  for (int64_t i = 0; i < n; ++i) {
    const float* v = delta_row<const float>(args.in[2], at.b, at.t0 + i, at.h);
    const V32 e = hn::Set(d, t.gates.e[i]), beta = hn::Set(d, t.gates.beta[i]);
    for_vectors(d, dv, [&](int64_t c, size_t count) {
      float* w = t.w + i * t.ldv + c;
      const V32 value = hn::NegMulAdd(e, load_part(d, w, count), load_part(d, v + c, count));
      hn::Store(value, d, w);
      hn::Store(hn::Mul(beta, value), d, t.u + i * t.ldv + c);
    });
  }
  solve<false>(d, t.a, n, t.u, dv, t.ldv);
}

// Fills `dor`: dO above, and below dR = (I + A)^-T (P^T dO + f K dS1).
HWY_INLINE void solve_back(F32 d, const OpArgs& args, const DeltaSizes& sizes, const Place& at,
                           const DeltaBackwardScratch& t, const float* ds) {
  const int64_t n = at.n, dv = sizes.dv;
  float* dr = t.dor + n * t.ldv;
  gemm(false, false, n, dv, sizes.dk, 1.0f, t.qk + n * t.ldk, t.ldk, ds, dv, 0.0f, dr, t.ldv);
  for (int64_t i = 0; i < n; ++i) {
    scale_row(d, dr + i * t.ldv, t.gates.f[i], dv, dr + i * t.ldv);
    std::memcpy(t.dor + i * t.ldv, delta_row<const float>(args.dout[0], at.b, at.t0 + i, at.h),
                static_cast<size_t>(dv) * sizeof(float));
  }
  gemm(true, false, n, dv, n, 1.0f, t.p, kDeltaChunk, t.dor, t.ldv, 1.0f, dr, t.ldv);
  solve<true>(d, t.a, n, dr, dv, t.ldv);
}

// What flows through the products <q_i, k_j> and <k_i, k_j>: M, and the parts of dgamma and dbeta.
// The diagonal of P does not depend on gamma; left out, it need not cancel.
HWY_INLINE void through_dots(F32 d, const Place& at, const DeltaBackwardScratch& t) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t n = at.n;
  const V32 zero = hn::Zero(d);
  for_vectors(d, kDeltaChunk, [&](int64_t j, size_t) { hn::Store(zero, d, t.columns + j); });
  for (int64_t i = 0; i < n; ++i) {
    const int64_t upper = i * kDeltaChunk, lower = (n + i) * kDeltaChunk;
    const V32 beta = hn::Set(d, t.gates.beta[i]);
    V32 for_gamma = zero, for_beta = zero;
    int64_t j = 0;
    for (; j <= i; j += lanes) {
      const auto below = hn::FirstN(d, static_cast<size_t>(i - j));
      const auto inside = hn::FirstN(d, static_cast<size_t>(i + 1 - j));
      const V32 decay = hn::Load(d, t.decay + upper + j);
      const V32 dp = hn::IfThenElseZero(inside, hn::Load(d, t.dor_u + upper + j));
      const V32 minus_da = hn::IfThenElseZero(below, hn::Load(d, t.dor_u + lower + j));
      const V32 da_decay = hn::Neg(hn::Mul(minus_da, decay));
      const V32 kk = hn::IfThenElseZero(below, hn::Load(d, t.dots + lower + j));
      const V32 dbeta = hn::Mul(da_decay, kk);
      const V32 p = hn::IfThenElseZero(below, hn::Load(d, t.p + upper + j));
      const V32 dgamma = hn::MulAdd(beta, dbeta, hn::Mul(dp, p));
      for_beta = hn::Add(for_beta, dbeta);
      for_gamma = hn::Add(for_gamma, dgamma);
      hn::Store(hn::Add(hn::Load(d, t.columns + j), dgamma), d, t.columns + j);
      const V32 of_q = hn::Mul(dp, decay), of_k = hn::Mul(beta, da_decay);
      put(d, of_q, t.m + upper + j, static_cast<size_t>(lanes), !at.first);
      put(d, of_k, t.m + lower + j, static_cast<size_t>(lanes), !at.first);
    }
    for (; j < n && at.first; j += lanes) {
      hn::Store(zero, d, t.m + upper + j);
      hn::Store(zero, d, t.m + lower + j);
    }
    t.dgamma[i] = hn::GetLane(hn::SumOfLanes(d, for_gamma));
    t.dbeta[i] = hn::GetLane(hn::SumOfLanes(d, for_beta));
  }
  for (int64_t i = 0; i < n; ++i) {
    t.dgamma[i] -= t.columns[i];
  }
}

// What flows through e, f and the products with S0 and dS1: into dqk, dgamma, dbeta and dv.
HWY_INLINE void through_states(F32 d, const OpArgs& args, const DeltaSizes& sizes, const Place& at,
                               const DeltaBackwardScratch& t) {
  const int64_t n = at.n, dk = sizes.dk, ldk = t.ldk;
  const DeltaGates& gates = t.gates;
  float of_last = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* q = t.qk + i * ldk;
    const float* k = q + n * ldk;
    const float* do_s = t.dor_s + i * ldk;
    const float* dr_s = do_s + n * ldk;
    const float* u_ds = t.u_ds + i * ldk;
    const float* dr = t.dor + (n + i) * t.ldv;
    float* dq = t.dqk + i * ldk;
    float* dkey = dq + n * ldk;
    const float be = gates.beta[i] * gates.e[i];
    const V32 e = hn::Set(d, gates.e[i]), f = hn::Set(d, gates.f[i]), vbe = hn::Set(d, be);
    V32 de = hn::Zero(d), df = hn::Zero(d), dy = hn::Zero(d);
    for_vectors(d, dk, [&](int64_t c, size_t count) {
      const V32 key = load_part(d, k + c, count), query = load_part(d, q + c, count);
      const V32 x = load_part(d, do_s + c, count), y = load_part(d, dr_s + c, count);
      const V32 z = load_part(d, u_ds + c, count);
      de = hn::MulAdd(query, x, de);
      dy = hn::MulAdd(key, y, dy);
      df = hn::MulAdd(key, z, df);
      put(d, hn::Mul(e, x), dq + c, count, !at.first);
      put(d, hn::NegMulAdd(vbe, y, hn::Mul(f, z)), dkey + c, count, !at.first);
      store_part(d, hn::Mul(e, query), t.weighed + i * ldk + c, count);
      store_part(d, hn::Neg(hn::Mul(vbe, key)), t.weighed + (n + i) * ldk + c, count);
    });
    const float through_f = gates.f[i] * hn::GetLane(hn::SumOfLanes(d, df));
    t.dgamma[i] +=
        gates.e[i] * hn::GetLane(hn::SumOfLanes(d, de)) - be * hn::GetLane(hn::SumOfLanes(d, dy));
    if (i + 1 < n) {  // the last f is 1 whatever gamma is
      t.dgamma[i] -= through_f;
      of_last += through_f;
    }
    t.dbeta[i] += dot(d, dr, t.w + i * t.ldv, sizes.dv);
    if (args.din[2]) {
      float* dv = delta_row<float>(args.din[2], at.b, at.t0 + i, at.h);
      const V32 beta = hn::Set(d, gates.beta[i]);
      for_vectors(d, sizes.dv, [&](int64_t c, size_t count) {
        put(d, hn::Mul(beta, load_part(d, dr + c, count)), dv + c, count, args.accumulate[2]);
      });
    }
  }
  t.dgamma[n - 1] += of_last;
}

HWY_INLINE void store_gates(const OpArgs& args, const DeltaSizes& sizes, const Place& at,
                            const DeltaBackwardScratch& t) {
  const auto put_one = [&](int input, int64_t i, float value) {
    if (args.din[input]) {
      float* to = args.din[input].ptr<float>() + sizes.at(at.b, at.t0 + i, at.h);
      *to = args.accumulate[input] ? *to + value : value;
    }
  };
  double sum = 0;  // gamma_s holds every g_t with t <= s
  for (int64_t i = at.n - 1; i >= 0; --i) {
    sum += static_cast<double>(t.dgamma[i]);
    put_one(3, i, static_cast<float>(sum));
    put_one(4, i, t.dbeta[i]);
  }
}

// One value head of a chunk; dS [dk, dv] goes from the chunk's end to its start.
HWY_INLINE void backward_chunk(F32 d, const OpArgs& args, const DeltaSizes& sizes, const Place& at,
                               const DeltaBackwardScratch& t, const float* s0, float* ds) {
  const int64_t n = at.n, dk = sizes.dk, dv = sizes.dv;
  redo_forward(d, args, sizes, at, t, s0);
  solve_back(d, args, sizes, at, t, ds);
  gemm(false, true, 2 * n, n, dv, 1.0f, t.dor, t.ldv, t.u, t.ldv, 0.0f, t.dor_u, kDeltaChunk);
  gemm(false, true, 2 * n, dk, dv, 1.0f, t.dor, t.ldv, s0, dv, 0.0f, t.dor_s, t.ldk);
  gemm(false, true, n, dk, dv, 1.0f, t.u, t.ldv, ds, dv, 0.0f, t.u_ds, t.ldk);
  through_dots(d, at, t);
  through_states(d, args, sizes, at, t);
  const float whole = t.gates.e[n - 1];
  t.dgamma[n - 1] += whole * dot(d, s0, ds, sizes.matrix());
  store_gates(args, sizes, at, t);
  gemm(true, false, dk, dv, 2 * n, 1.0f, t.weighed, t.ldk, t.dor, t.ldv, whole, ds, dv);
}

// dx = scale r (dy - y/scale <y/scale, dy>) for the n rows y of normalised q or k.
HWY_INLINE void through_norm(F32 d, const OpArgs& args, int input, const Place& at, int64_t hk,
                             float scale, const DeltaBackwardScratch& t) {
  if (!args.din[input]) {
    return;
  }
  const int64_t dk = args.in[0].dim(-1);
  for (int64_t i = 0; i < at.n; ++i) {
    const int64_t row = input * at.n + i;
    const float* y = t.qk + row * t.ldk;
    const float* dy = t.dqk + row * t.ldk;
    float* dx = delta_row<float>(args.din[input], at.b, at.t0 + i, hk);
    const V32 along = hn::Set(d, dot(d, y, dy, dk) / (scale * scale));
    const V32 factor = hn::Set(d, scale * t.norms[row]);
    for_vectors(d, dk, [&](int64_t c, size_t count) {
      const V32 rest =
          hn::NegMulAdd(load_part(d, y + c, count), along, load_part(d, dy + c, count));
      put(d, hn::Mul(factor, rest), dx + c, count, args.accumulate[input]);
    });
  }
}

HWY_INLINE void backward_item(const OpArgs& args, const DeltaSizes& sizes, int64_t b, int64_t hk,
                              float* scratch) {
  const F32 d;
  const DeltaBackwardScratch t(sizes, scratch);
  const int64_t dk = sizes.dk;
  std::memset(t.ds, 0, static_cast<size_t>(sizes.group * sizes.matrix()) * sizeof(float));
  for (int64_t chunk = sizes.chunks - 1; chunk >= 0; --chunk) {
    const int64_t t0 = chunk * kDeltaChunk, n = HWY_MIN(kDeltaChunk, sizes.length - t0);
    const float* k = t.qk + n * t.ldk;
    load_keys(d, args, b, t0, hk, n, t.qk, t.ldk, t.norms);
    gemm(false, true, 2 * n, n, dk, 1.0f, t.qk, t.ldk, k, t.ldk, 0.0f, t.dots, kDeltaChunk);
    Place at{b, t0, hk * sizes.group, n, true};
    for (int64_t r = 0; r < sizes.group; ++r) {
      const float* s0 = args.saved[0].ptr<const float>() + sizes.saved_at(b, at.h, chunk);
      backward_chunk(d, args, sizes, at, t, s0, t.ds + r * sizes.matrix());
      at.first = false;
      ++at.h;
    }
    // The value heads share q and k, so their M are summed and multiplied once:
    // [dQ; dK] += M K, dK += M^T [Q; K].
    gemm(false, false, 2 * n, dk, n, 1.0f, t.m, kDeltaChunk, k, t.ldk, 1.0f, t.dqk, t.ldk);
    gemm(true, false, n, dk, 2 * n, 1.0f, t.m, kDeltaChunk, t.qk, t.ldk, 1.0f, t.dqk + n * t.ldk,
         t.ldk);
    through_norm(d, args, 0, at, hk, 1.0f / std::sqrt(static_cast<float>(dk)), t);
    through_norm(d, args, 1, at, hk, 1.0f, t);
  }
}

}  // namespace delta

// Items are the B * Hk key heads, as in forward; gradients of q and k are summed over the value
// heads of an item in order.
void delta_backward(const OpArgs& args) {
  const DeltaSizes sizes(args);
  const int64_t size = DeltaBackwardScratch(sizes, nullptr).size;
  parallel_items(sizes.batch * sizes.key_heads, [&](int64_t item) {
    float* scratch = static_cast<float*>(args.workspace) + thread_index() * size;
    delta::backward_item(args, sizes, item / sizes.key_heads, item % sizes.key_heads, scratch);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(delta_backward);

void delta_rule_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(delta_backward)(args);
}

}  // namespace fwpkm
#endif
