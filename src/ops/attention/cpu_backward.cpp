// Backward by tiles: scores are computed again from q and k, and the log-sum-exp of forward makes
// them probabilities at once. A work item is a chunk of queries of one key head. It owns its dq; dk
// and dv it sums in buffers of its own, which are added up in order when all chunks are done.
#include "base/parallel.h"
#include "ops/attention/plan.h"
#include "ops/common/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/cpu_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

// s: scores -> p = exp(s - lse); dp -> ds = p (dp - delta); rows as in softmax_step.
HWY_INLINE void score_gradients(const AttentionPlan& plan, int64_t b, int64_t query0, int64_t count,
                                int64_t key0, int64_t keys, const float* lse, const float* delta,
                                float* s, float* dp) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = round_to_lanes(d, keys);
  for (int64_t r = 0; r < count * plan.group; ++r) {
    const int64_t query = query0 + r / plan.group;
    const int64_t low = std::clamp<int64_t>(plan.first_visible(b, query) - key0, 0, keys);
    const int64_t high = std::clamp<int64_t>(plan.end_key(query) - key0, 0, keys);
    float* p = s + r * kTileKeys;
    float* ds = dp + r * kTileKeys;
    if (low >= high) {
      std::memset(p, 0, static_cast<size_t>(keys) * sizeof(float));
      std::memset(ds, 0, static_cast<size_t>(keys) * sizeof(float));
      continue;
    }
    hide(d, p, low, high, keys);
    const V32 shift = hn::Set(d, lse[r]), center = hn::Set(d, delta[r]);
    for (int64_t i = 0; i < end; i += lanes) {
      const V32 e = hn::Exp(d, hn::Sub(hn::LoadU(d, p + i), shift));
      hn::StoreU(e, d, p + i);
      hn::StoreU(hn::Mul(e, hn::Sub(hn::LoadU(d, ds + i), center)), d, ds + i);
    }
  }
}

// to [count * group, D] rows, written or added to a gradient.
HWY_INLINE void unpack_rows(const AttentionPlan& plan, const float* from, int64_t b, int64_t first,
                            int64_t count, int64_t kv, bool add, const HeadsView& to) {
  const F32 d;
  for (int64_t r = 0; r < count * plan.group; ++r) {
    float* row = to.at(b, first + r / plan.group, kv * plan.group + r % plan.group);
    for_vectors(d, plan.width, [&](int64_t i, size_t n) {
      put(d, load_part(d, from + r * plan.width + i, n), row + i, n, add);
    });
  }
}

// Adds the chunks' sums for keys begin..end-1 of a pair, in order, and hands them on.
HWY_INLINE void add_chunks(const AttentionPlan& plan, const float* sums, int64_t b, int64_t kv,
                           int64_t begin, int64_t end, bool add, const HeadsView& to) {
  const F32 d;
  const int64_t width = plan.width;
  int64_t before = 0;
  bool written = add;
  for (int64_t chunk = 0; chunk < plan.chunks(); ++chunk) {
    const int64_t first = plan.chunk_first_key(chunk), last = plan.chunk_end_key(chunk);
    if (!written) {
      for (int64_t key = begin; key < end; ++key) {
        std::memset(to.at(b, key, kv), 0, static_cast<size_t>(width) * sizeof(float));
      }
      written = true;
    }
    for (int64_t key = std::max(begin, first); key < std::min(end, last); ++key) {
      const float* from = sums + (before + key - first) * width;
      float* row = to.at(b, key, kv);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        put(d, load_part(d, from + i, n), row + i, n, true);
      });
    }
    before += last - first;
  }
}

static void backward(const OpArgs& args) {
  const AttentionPlan plan(args);
  const HeadsView q(args.in[0]), k(args.in[1]), v(args.in[2]), o(args.out[0]);
  const HeadsView grad(args.dout[0]), dq(args.din[0]), dk(args.din[1]), dv(args.din[2]);
  const float* saved = args.saved[0].ptr<float>();
  const int64_t width = plan.width, group = plan.group, chunks = plan.chunks();
  const int64_t pair_keys = plan.keys_before(chunks);  // over all chunks
  float* chunk_dk =                                    // [pairs, pair_keys, D]
      static_cast<float*>(args.workspace) + threads() * plan.backward_scratch();
  float* chunk_dv = chunk_dk + plan.pairs() * pair_keys * width;

  parallel_items(plan.pairs() * chunks, [&](int64_t item) {
    // Late chunks see the most keys: they go first, so that threads end together.
    const int64_t chunk = chunks - 1 - item / plan.pairs(), pair = item % plan.pairs();
    const int64_t b = pair / plan.kv_heads, kv = pair % plan.kv_heads;
    const int64_t chunk_first = plan.chunk_first_key(chunk);
    const int64_t at = (pair * pair_keys + plan.keys_before(chunk)) * width;
    const int64_t floats = (plan.chunk_end_key(chunk) - chunk_first) * width;
    float* dk_sums = chunk_dk + at;
    float* dv_sums = chunk_dv + at;
    std::fill(dk_sums, dk_sums + floats, 0.0f);
    std::fill(dv_sums, dv_sums + floats, 0.0f);
    Scratch scratch(args.workspace, plan.backward_scratch(), thread_index());
    float* s = scratch.take(plan.tile_rows() * kTileKeys);
    float* ds = scratch.take(plan.tile_rows() * kTileKeys);
    float* queries = scratch.take(plan.tile_rows() * width);
    float* grads = scratch.take(plan.tile_rows() * width);
    float* dq_sums = scratch.take(plan.tile_rows() * width);
    float* lse = scratch.take(plan.tile_rows());
    float* delta = scratch.take(plan.tile_rows());

    for (int64_t query0 = chunk * plan.chunk_queries(); query0 < plan.chunk_end(chunk);
         query0 += plan.tile_queries()) {
      const int64_t count = std::min(plan.tile_queries(), plan.chunk_end(chunk) - query0);
      const int64_t rows = count * group;
      pack_rows(plan, q, b, query0, count, kv, queries);
      pack_rows(plan, grad, b, query0, count, kv, grads);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t query = query0 + r / group, head = kv * group + r % group;
        lse[r] = saved[(b * plan.heads + head) * plan.queries + query];
        delta[r] = dot(F32(), grads + r * width, o.at(b, query, head), width);
      }
      const int64_t first = plan.first_key(query0), end = plan.end_key(query0 + count - 1);
      for (int64_t key0 = first; key0 < end; key0 += kTileKeys) {
        const int64_t keys = std::min(kTileKeys, end - key0);
        const float* key = k.at(b, key0, kv);
        gemm(false, true, rows, keys, width, plan.scale, queries, width, key, k.token, 0.0f, s,
             kTileKeys);
        gemm(false, true, rows, keys, width, 1.0f, grads, width, v.at(b, key0, kv), v.token, 0.0f,
             ds, kTileKeys);
        score_gradients(plan, b, query0, count, key0, keys, lse, delta, s, ds);
        if (dv.data != nullptr) {
          gemm(true, false, keys, width, rows, 1.0f, s, kTileKeys, grads, width, 1.0f,
               dv_sums + (key0 - chunk_first) * width, width);
        }
        if (dk.data != nullptr) {
          gemm(true, false, keys, width, rows, plan.scale, ds, kTileKeys, queries, width, 1.0f,
               dk_sums + (key0 - chunk_first) * width, width);
        }
        if (dq.data != nullptr) {
          gemm(false, false, rows, width, keys, plan.scale, ds, kTileKeys, key, k.token,
               key0 == first ? 0.0f : 1.0f, dq_sums, width);
        }
      }
      if (dq.data != nullptr) {
        unpack_rows(plan, dq_sums, b, query0, count, kv, args.accumulate[0], dq);
      }
    }
  });

  constexpr int64_t kKeys = 64;
  const int64_t blocks = (plan.keys + kKeys - 1) / kKeys;
  parallel_items(plan.pairs() * blocks, [&](int64_t item) {
    const int64_t pair = item / blocks, begin = item % blocks * kKeys;
    const int64_t b = pair / plan.kv_heads, kv = pair % plan.kv_heads;
    const int64_t end = std::min(plan.keys, begin + kKeys);
    if (dk.data != nullptr) {
      add_chunks(plan, chunk_dk + pair * pair_keys * width, b, kv, begin, end, args.accumulate[1],
                 dk);
    }
    if (dv.data != nullptr) {
      add_chunks(plan, chunk_dv + pair * pair_keys * width, b, kv, begin, end, args.accumulate[2],
                 dv);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(backward);

void attention_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
