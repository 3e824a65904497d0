// Row operations on tiles of scores, shared by the attention kernels. Included once per target.
#if defined(FWPKM_OPS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_ATTENTION_TILE_INL_H_
#undef FWPKM_OPS_ATTENTION_TILE_INL_H_
#else
#define FWPKM_OPS_ATTENTION_TILE_INL_H_
#endif

#include <cmath>
#include <limits>

#include "ops/attention/plan.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HWY_INLINE int64_t round_to_lanes(F32 d, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  return (count + lanes - 1) / lanes * lanes;
}

// Sets the scores of a row that its query does not see, and those up to a whole vector, to minus
// infinity. `tile` is a multiple of the longest vector, so that the row has room.
HWY_INLINE void hide(F32 d, float* row, int64_t low, int64_t high, int64_t count) {
  for (int64_t i = 0; i < low; ++i) {
    row[i] = kMinusInfinity;
  }
  const int64_t end = round_to_lanes(d, count);
  for (int64_t i = high; i < end; ++i) {
    row[i] = kMinusInfinity;
  }
}

// Copies the rows of `count` queries from `first` on, of the heads of one group, to or from a
// contiguous [count * group, D].
HWY_INLINE void pack_rows(const AttentionPlan& plan, const HeadsView& from, int64_t b,
                          int64_t first, int64_t count, int64_t kv, float* to) {
  for (int64_t r = 0; r < count * plan.group; ++r) {
    std::memcpy(to + r * plan.width,
                from.at(b, first + r / plan.group, kv * plan.group + r % plan.group),
                static_cast<size_t>(plan.width) * sizeof(float));
  }
}

// One step of the running softmax over a tile of scores s [count * group, tile], columns
// key0..key0+keys-1: scores become exp(s - max), `max` and `sum` go on, and the rows of o seen so
// far are scaled to the new maximum (`o` null: there are none yet).
HWY_INLINE void softmax_step(const AttentionPlan& plan, int64_t b, int64_t query0, int64_t count,
                             int64_t key0, int64_t keys, float* s, int64_t tile, float* max,
                             float* sum, float* o) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = round_to_lanes(d, keys);
  for (int64_t r = 0; r < count * plan.group; ++r) {
    const int64_t query = query0 + r / plan.group;
    const int64_t low = std::clamp<int64_t>(plan.first_visible(b, query) - key0, 0, keys);
    const int64_t high = std::clamp<int64_t>(plan.end_key(query) - key0, 0, keys);
    float* row = s + r * tile;
    if (low >= high) {
      std::memset(row, 0, static_cast<size_t>(keys) * sizeof(float));
      continue;
    }
    hide(d, row, low, high, keys);
    V32 largest = hn::Set(d, max[r]);
    for (int64_t i = 0; i < end; i += lanes) {
      largest = hn::Max(largest, hn::LoadU(d, row + i));
    }
    const float top = hn::GetLane(hn::MaxOfLanes(d, largest));
    const V32 shift = hn::Set(d, top);
    V32 total = hn::Zero(d);
    for (int64_t i = 0; i < end; i += lanes) {
      const V32 e = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), shift));
      hn::StoreU(e, d, row + i);
      total = hn::Add(total, e);
    }
    const float row_sum = hn::GetLane(hn::SumOfLanes(d, total));
    if (top == max[r]) {
      sum[r] += row_sum;
      continue;
    }
    const float shrink = std::exp(max[r] - top);  // 0 at a row's first visible tile
    sum[r] = sum[r] * shrink + row_sum;
    max[r] = top;
    if (o != nullptr) {
      const V32 factor = hn::Set(d, shrink);
      for_vectors(d, plan.width, [&](int64_t i, size_t n) {
        float* at = o + r * plan.width + i;
        store_part(d, hn::Mul(load_part(d, at, n), factor), at, n);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
