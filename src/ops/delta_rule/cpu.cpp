// Forward: chunk by chunk for training and long inputs, token by token for decoding.
#include <cstring>

#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"
#include "ops/delta_rule/chunk-inl.h"

namespace fwpkm {
#ifndef FWPKM_DELTA_RULE_CPU_ONCE_
#define FWPKM_DELTA_RULE_CPU_ONCE_
// Work (tokens times elements of S) from which more than one thread pays in the recurrence.
inline constexpr int64_t kParallelWork = 1 << 18;

// Whether to go token by token instead of by chunks. The recurrence does the fewest operations, but
// walks through S for every token: it wins while S stays in the first-level cache, and for a few
// tokens always. Widths that leave partial vectors are better off with matrix products.
inline bool delta_recurrent(const DeltaSizes& n) {
  return n.length < 16 || (n.matrix() <= 4096 && n.dv % 16 == 0);
}
#endif
}  // namespace fwpkm

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace delta {

// One token on N vectors of columns of S [dk, dv]: reads S twice and writes it once. With x the
// decay, o = S^T q of the corrected S is x (S^T q) + <q, k> u of the old one. The last vector may
// be partial: `count` columns.
template <int N>
HWY_INLINE void recurrent_strip(F32 d, float* s, int64_t dk, int64_t dv, const float* q,
                                const float* k, float qk, float decay, float beta, const float* v,
                                float* o, size_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const V32 x = hn::Set(d, decay);
  V32 sk[N], sq[N];
  for (int c = 0; c < N; ++c) {
    sk[c] = sq[c] = hn::Zero(d);
  }
  const auto load = [&](const float* from, int c) {
    return N == 1 ? load_part(d, from, count) : hn::LoadU(d, from + c * lanes);
  };
  const auto store = [&](V32 value, float* to, int c) {
    if (N == 1) {
      store_part(d, value, to, count);
    } else {
      hn::StoreU(value, d, to + c * lanes);
    }
  };
  for (int64_t r = 0; r < dk; ++r) {
    const V32 kr = hn::Set(d, k[r]), qr = hn::Set(d, q[r]);
    for (int c = 0; c < N; ++c) {
      const V32 old = load(s + r * dv, c);
      sk[c] = hn::MulAdd(kr, old, sk[c]);
      sq[c] = hn::MulAdd(qr, old, sq[c]);
    }
  }
  V32 u[N];
  for (int c = 0; c < N; ++c) {
    u[c] = hn::Mul(hn::Set(d, beta), hn::NegMulAdd(x, sk[c], load(v, c)));
    store(hn::MulAdd(hn::Set(d, qk), u[c], hn::Mul(x, sq[c])), o, c);
  }
  for (int64_t r = 0; r < dk; ++r) {
    const V32 kr = hn::Set(d, k[r]);
    for (int c = 0; c < N; ++c) {
      store(hn::MulAdd(kr, u[c], hn::Mul(x, load(s + r * dv, c))), s + r * dv, c);
    }
  }
}

// Tokens t0 .. t0+n-1 of value head h, whose normalised keys are in `t`, one after the other; S
// [dk, dv] goes from the start to the end.
HWY_INLINE void recurrent_chunk(F32 d, const OpArgs& args, const DeltaSizes& sizes, int64_t b,
                                int64_t t0, int64_t h, int64_t n, const DeltaForwardScratch& t,
                                float* s) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t dk = sizes.dk, dv = sizes.dv;
  for (int64_t i = 0; i < n; ++i) {
    const float* q = t.qk + i * t.ldk;
    const float* k = q + n * t.ldk;
    const float qk = dot(d, q, k, dk);
    const float decay = std::exp(args.in[3].ptr<const float>()[sizes.at(b, t0 + i, h)]);
    const float beta = args.in[4].ptr<const float>()[sizes.at(b, t0 + i, h)];
    const float* v = delta_row<const float>(args.in[2], b, t0 + i, h);
    float* o = delta_row<float>(args.out[0], b, t0 + i, h);
    int64_t c = 0;
    for (; c + 4 * lanes <= dv; c += 4 * lanes) {
      recurrent_strip<4>(d, s + c, dk, dv, q, k, qk, decay, beta, v + c, o + c, 0);
    }
    for (; c + 2 * lanes <= dv; c += 2 * lanes) {
      recurrent_strip<2>(d, s + c, dk, dv, q, k, qk, decay, beta, v + c, o + c, 0);
    }
    for (; c < dv; c += lanes) {
      recurrent_strip<1>(d, s + c, dk, dv, q, k, qk, decay, beta, v + c, o + c,
                         static_cast<size_t>(HWY_MIN(lanes, dv - c)));
    }
  }
}

// Tokens t0 .. t0+n-1 of value head h, whose normalised keys and their products are in `t`; S
// [dk, dv] goes from the chunk's start to its end.
HWY_INLINE void forward_chunk(F32 d, const OpArgs& args, const DeltaSizes& sizes, int64_t b,
                              int64_t t0, int64_t h, int64_t n, const DeltaForwardScratch& t,
                              float* s) {
  const int64_t dk = sizes.dk, dv = sizes.dv;
  const DeltaGates& gates = t.gates;
  load_gates(d, args, sizes, b, t0, h, n, gates);
  decay_dots(d, gates, n, t.dots, t.p, t.a, nullptr);
  gemm(false, false, 2 * n, dv, dk, 1.0f, t.qk, t.ldk, s, dv, 0.0f, t.y, t.ldv);
  float* o = delta_row<float>(args.out[0], b, t0, h);
  const int64_t ldo = args.out[0].strides[1];
  for (int64_t i = 0; i < n; ++i) {
    const float* v = delta_row<const float>(args.in[2], b, t0 + i, h);
    const float* y = t.y + (n + i) * t.ldv;
    const V32 e = hn::Set(d, gates.e[i]), beta = hn::Set(d, gates.beta[i]);
    for_vectors(d, dv, [&](int64_t c, size_t count) {
      const V32 w = hn::NegMulAdd(e, load_part(d, y + c, count), load_part(d, v + c, count));
      hn::Store(hn::Mul(beta, w), d, t.u + i * t.ldv + c);
    });
    scale_row(d, t.y + i * t.ldv, gates.e[i], dv, o + i * ldo);
  }
  solve<false>(d, t.a, n, t.u, dv, t.ldv);
  gemm(false, false, n, dv, n, 1.0f, t.p, kDeltaChunk, t.u, t.ldv, 1.0f, o, ldo);
  for (int64_t i = 0; i < n; ++i) {
    scale_row(d, t.u + i * t.ldv, gates.f[i], dv, t.u + i * t.ldv);
  }
  gemm(true, false, dk, dv, n, 1.0f, t.qk + n * t.ldk, t.ldk, t.u, t.ldv, gates.e[n - 1], s, dv);
}

// All tokens of key head hk of batch row b.
HWY_INLINE void forward_item(const OpArgs& args, const DeltaSizes& sizes, int64_t b, int64_t hk,
                             float* scratch) {
  const F32 d;
  const DeltaForwardScratch t(sizes, scratch);
  const auto bytes = static_cast<size_t>(sizes.matrix()) * sizeof(float);
  const bool recurrent = delta_recurrent(sizes);
  float* s0 = t.s;
  if (args.state[0]) {
    s0 = args.state[0].ptr<float>() + sizes.state_at(b, hk * sizes.group);
  } else {
    std::memset(s0, 0, static_cast<size_t>(sizes.group) * bytes);
  }
  for (int64_t chunk = 0; chunk < sizes.chunks; ++chunk) {
    const int64_t t0 = chunk * kDeltaChunk, n = HWY_MIN(kDeltaChunk, sizes.length - t0);
    load_keys(d, args, b, t0, hk, n, t.qk, t.ldk, nullptr);
    if (!recurrent) {
      gemm(false, true, 2 * n, n, sizes.dk, 1.0f, t.qk, t.ldk, t.qk + n * t.ldk, t.ldk, 0.0f,
           t.dots, kDeltaChunk);
    }
    for (int64_t r = 0; r < sizes.group; ++r) {
      const int64_t h = hk * sizes.group + r;
      float* s = s0 + r * sizes.matrix();
      if (args.saved[0]) {
        std::memcpy(args.saved[0].ptr<float>() + sizes.saved_at(b, h, chunk), s, bytes);
      }
      if (recurrent) {
        recurrent_chunk(d, args, sizes, b, t0, h, n, t, s);
      } else {
        forward_chunk(d, args, sizes, b, t0, h, n, t, s);
      }
    }
  }
}

}  // namespace delta

// Chunks follow each other, so the items are the B * Hk key heads: with fewer of them than threads
// (one sequence and few heads) some threads have nothing to do.
void delta_forward(const OpArgs& args) {
  const DeltaSizes sizes(args);
  const int64_t items = sizes.batch * sizes.key_heads;
  const int64_t size = DeltaForwardScratch(sizes, nullptr).size;
  const auto one = [&](int64_t item) {
    float* scratch = static_cast<float*>(args.workspace) + thread_index() * size;
    delta::forward_item(args, sizes, item / sizes.key_heads, item % sizes.key_heads, scratch);
  };
  const int64_t work = sizes.batch * sizes.value_heads * sizes.length * sizes.matrix();
  if (delta_recurrent(sizes) && work < kParallelWork) {
    for (int64_t item = 0; item < items; ++item) {
      one(item);
    }
  } else {
    parallel_items(items, one);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(delta_forward);

void delta_rule_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(delta_forward)(args);
}

size_t delta_rule_workspace_cpu(const OpArgs& args, bool backward) {
  const DeltaSizes sizes(args);
  const int64_t size = backward ? DeltaBackwardScratch(sizes, nullptr).size
                                : DeltaForwardScratch(sizes, nullptr).size;
  return static_cast<size_t>(threads() * size) * sizeof(float);
}

}  // namespace fwpkm
#endif
