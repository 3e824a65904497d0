// Forward for a few queries, as when decoding: nothing but reading k and v once costs time, so keys
// are streamed without padding rows to tiles. Long caches are split into items of their own.
#include "base/parallel.h"
#include "ops/attention/plan.h"

#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/cpu_decode.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

inline constexpr int64_t kAhead = 16;  // keys

// Asks for the features of `count` tokens. One head's share of a token is a few cache lines out of
// a long stride, which the processor does not foresee by itself.
HWY_INLINE void prefetch(const float* from, int64_t stride, int64_t count, int64_t width) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < width; i += 16) {
      hwy::Prefetch(from + j * stride + i);
    }
  }
}

// s [rows, kDecodeKeys] = scale q [rows, D] k^T; four keys at a time, so that the sums of one do
// not wait for the other. Meanwhile the values of the tile are on their way. `left` keys are to be
// read from here on, those of later tiles included.
HWY_INLINE void scores(F32 d, const AttentionPlan& plan, const float* q, const float* k,
                       int64_t stride, int64_t keys, int64_t left, const float* v, int64_t v_stride,
                       float* s) {
  const int64_t width = plan.width;
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4) {
    if (j + kAhead + 4 <= left) {
      prefetch(k + (j + kAhead) * stride, stride, 4, width);
    }
    prefetch(v + j * v_stride, v_stride, 4, width);
    const float *k0 = k + j * stride, *k1 = k0 + stride, *k2 = k1 + stride, *k3 = k2 + stride;
    for (int64_t r = 0; r < plan.decode_rows(); ++r) {
      V32 s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 x = load_part(d, q + r * width + i, n);
        s0 = hn::MulAdd(x, load_part(d, k0 + i, n), s0);
        s1 = hn::MulAdd(x, load_part(d, k1 + i, n), s1);
        s2 = hn::MulAdd(x, load_part(d, k2 + i, n), s2);
        s3 = hn::MulAdd(x, load_part(d, k3 + i, n), s3);
      });
      float* to = s + r * kDecodeKeys + j;
      to[0] = plan.scale * hn::GetLane(hn::SumOfLanes(d, s0));
      to[1] = plan.scale * hn::GetLane(hn::SumOfLanes(d, s1));
      to[2] = plan.scale * hn::GetLane(hn::SumOfLanes(d, s2));
      to[3] = plan.scale * hn::GetLane(hn::SumOfLanes(d, s3));
    }
  }
  for (; j < keys; ++j) {
    for (int64_t r = 0; r < plan.decode_rows(); ++r) {
      s[r * kDecodeKeys + j] = plan.scale * dot(d, q + r * width, k + j * stride, width);
    }
  }
}

// o [rows, D] += p [rows, kDecodeKeys] v; a few vectors of o stay in registers over all keys.
HWY_INLINE void add_values(F32 d, const AttentionPlan& plan, const float* p, const float* v,
                           int64_t stride, int64_t keys, float* o) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < plan.decode_rows(); ++r) {
    const float* weights = p + r * kDecodeKeys;
    float* to = o + r * plan.width;
    int64_t i = 0;
    for (; i + 4 * lanes <= plan.width; i += 4 * lanes) {
      V32 s0 = hn::LoadU(d, to + i), s1 = hn::LoadU(d, to + i + lanes);
      V32 s2 = hn::LoadU(d, to + i + 2 * lanes), s3 = hn::LoadU(d, to + i + 3 * lanes);
      for (int64_t j = 0; j < keys; ++j) {
        const V32 weight = hn::Set(d, weights[j]);
        const float* from = v + j * stride + i;
        s0 = hn::MulAdd(weight, hn::LoadU(d, from), s0);
        s1 = hn::MulAdd(weight, hn::LoadU(d, from + lanes), s1);
        s2 = hn::MulAdd(weight, hn::LoadU(d, from + 2 * lanes), s2);
        s3 = hn::MulAdd(weight, hn::LoadU(d, from + 3 * lanes), s3);
      }
      hn::StoreU(s0, d, to + i);
      hn::StoreU(s1, d, to + i + lanes);
      hn::StoreU(s2, d, to + i + 2 * lanes);
      hn::StoreU(s3, d, to + i + 3 * lanes);
    }
    for_vectors(d, plan.width - i, [&](int64_t at, size_t n) {
      V32 sum = load_part(d, to + i + at, n);
      for (int64_t j = 0; j < keys; ++j) {
        sum = hn::MulAdd(hn::Set(d, weights[j]), load_part(d, v + j * stride + i + at, n), sum);
      }
      store_part(d, sum, to + i + at, n);
    });
  }
}

// Merges the splits of a pair into its outputs. A split's row holds sum_j exp(s_j - max) v_j, max
// and sum_j exp(s_j - max); a row that sees nothing there has max = -inf and weight 0.
HWY_INLINE void merge(const AttentionPlan& plan, int64_t b, int64_t kv, const float* partials,
                      const HeadsView& o, float* lse) {
  const F32 d;
  const int64_t rows = plan.decode_rows(), width = plan.width, splits = plan.splits();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t query = r / plan.group, head = kv * plan.group + r % plan.group;
    const auto row_max = [&](int64_t split) {
      return partials[split * plan.decode_partial() + rows * width + r];
    };
    float top = kMinusInfinity;
    for (int64_t split = 0; split < splits; ++split) {
      top = std::max(top, row_max(split));
    }
    float total = 0;
    for (int64_t split = 0; split < splits; ++split) {
      total += std::exp(row_max(split) - top) *
               partials[split * plan.decode_partial() + rows * width + rows + r];
    }
    float* to = o.at(b, query, head);
    for (int64_t split = 0; split < splits; ++split) {
      const V32 weight = hn::Set(d, std::exp(row_max(split) - top) / total);
      const float* from = partials + split * plan.decode_partial() + r * width;
      for_vectors(d, width, [&](int64_t i, size_t n) {
        put(d, hn::Mul(weight, load_part(d, from + i, n)), to + i, n, split > 0);
      });
    }
    if (lse != nullptr) {
      lse[(b * plan.heads + head) * plan.queries + query] = top + std::log(total);
    }
  }
}

static void decode(const OpArgs& args) {
  const AttentionPlan plan(args);
  const HeadsView q(args.in[0]), k(args.in[1]), v(args.in[2]), o(args.out[0]);
  const int64_t rows = plan.decode_rows(), width = plan.width, splits = plan.splits();
  float* partials =  // [pairs, splits, o and max and sum]
      static_cast<float*>(args.workspace) + threads() * plan.decode_scratch();
  const int64_t first = plan.first_key(0), end = plan.end_key(plan.queries - 1);

  parallel_items(plan.pairs() * splits, [&](int64_t item) {
    const F32 d;
    const int64_t pair = item / splits, split = item % splits;
    const int64_t b = pair / plan.kv_heads, kv = pair % plan.kv_heads;
    Scratch scratch(args.workspace, plan.decode_scratch(), thread_index());
    float* s = scratch.take(rows * kDecodeKeys);
    float* queries = scratch.take(rows * width);
    pack_rows(plan, q, b, 0, plan.queries, kv, queries);
    float* sums = partials + item * plan.decode_partial();
    float* row_max = sums + rows * width;
    float* row_sum = row_max + rows;
    std::fill(sums, row_max, 0.0f);
    std::fill(row_max, row_sum, kMinusInfinity);
    std::fill(row_sum, row_sum + rows, 0.0f);
    const int64_t split_end = std::min(end, first + (split + 1) * kDecodeSplit);
    for (int64_t key0 = first + split * kDecodeSplit; key0 < split_end; key0 += kDecodeKeys) {
      const int64_t keys = std::min(kDecodeKeys, split_end - key0);
      scores(d, plan, queries, k.at(b, key0, kv), k.token, keys, split_end - key0,
             v.at(b, key0, kv), v.token, s);
      softmax_step(plan, b, 0, plan.queries, key0, keys, s, kDecodeKeys, row_max, row_sum, sums);
      add_values(d, plan, s, v.at(b, key0, kv), v.token, keys, sums);
    }
  });
  for (int64_t pair = 0; pair < plan.pairs(); ++pair) {
    merge(plan, pair / plan.kv_heads, pair % plan.kv_heads,
          partials + pair * splits * plan.decode_partial(), o, args.saved[0].ptr<float>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(decode);

void attention_decode_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(decode)(args);
}

}  // namespace fwpkm
#endif
