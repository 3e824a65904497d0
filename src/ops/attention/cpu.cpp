// Forward by tiles: rows of stacked heads against blocks of keys, with a running softmax. Scores
// exist only a tile at a time.
#include "base/parallel.h"
#include "ops/attention/plan.h"
#include "ops/common/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

static void forward(const OpArgs& args) {
  const AttentionPlan plan(args);
  const HeadsView q(args.in[0]), k(args.in[1]), v(args.in[2]), o(args.out[0]);
  float* lse = args.saved[0].ptr<float>();
  const int64_t width = plan.width, group = plan.group;
  const int64_t tiles = plan.query_tiles();

  parallel_items(plan.pairs() * tiles, [&](int64_t item) {
    // Late queries see the most keys: they go first, so that threads end together.
    const int64_t tile = tiles - 1 - item / plan.pairs();
    const int64_t b = item % plan.pairs() / plan.kv_heads, kv = item % plan.kv_heads;
    const int64_t query0 = tile * plan.tile_queries();
    const int64_t count = std::min(plan.tile_queries(), plan.queries - query0);
    const int64_t rows = count * group;
    Scratch scratch(args.workspace, plan.forward_scratch(), thread_index());
    float* s = scratch.take(rows * kTileKeys);
    float* queries = scratch.take(rows * width);
    float* sums = scratch.take(rows * width);
    float* row_max = scratch.take(rows);
    float* row_sum = scratch.take(rows);
    std::fill(row_max, row_max + rows, kMinusInfinity);
    std::fill(row_sum, row_sum + rows, 0.0f);
    pack_rows(plan, q, b, query0, count, kv, queries);

    const int64_t first = plan.first_key(query0), end = plan.end_key(query0 + count - 1);
    for (int64_t key0 = first; key0 < end; key0 += kTileKeys) {
      const int64_t keys = std::min(kTileKeys, end - key0);
      gemm(false, true, rows, keys, width, plan.scale, queries, width, k.at(b, key0, kv), k.token,
           0.0f, s, kTileKeys);
      softmax_step(plan, b, query0, count, key0, keys, s, kTileKeys, row_max, row_sum,
                   key0 == first ? nullptr : sums);
      gemm(false, false, rows, width, keys, 1.0f, s, kTileKeys, v.at(b, key0, kv), v.token,
           key0 == first ? 0.0f : 1.0f, sums, width);
    }

    const F32 d;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t query = query0 + r / group, head = kv * group + r % group;
      const V32 factor = hn::Set(d, 1.0f / row_sum[r]);
      float* to = o.at(b, query, head);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        store_part(d, hn::Mul(load_part(d, sums + r * width + i, n), factor), to + i, n);
      });
      if (lse != nullptr) {
        lse[(b * plan.heads + head) * plan.queries + query] = row_max[r] + std::log(row_sum[r]);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);

void attention_forward_cpu(const OpArgs& args) {
  if (AttentionPlan(args).decode()) {
    attention_decode_cpu(args);
  } else {
    HWY_DYNAMIC_DISPATCH(forward)(args);
  }
}

size_t attention_workspace_cpu(const OpArgs& args, bool backward) {
  const AttentionPlan plan(args);
  int64_t floats = 0;
  if (backward) {
    floats = threads() * plan.backward_scratch() +
             2 * plan.pairs() * plan.keys_before(plan.chunks()) * plan.width;
  } else if (plan.decode()) {
    floats =
        threads() * plan.decode_scratch() + plan.pairs() * plan.splits() * plan.decode_partial();
  } else {
    floats = threads() * plan.forward_scratch();
  }
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace fwpkm
#endif
