// Selection by counting instead of by sorting: the rank of a number is how many others beat it, and
// counting that for a vector of numbers at a time has no branches. It is quadratic, so the row is
// first thinned to little more than k candidates by a threshold that is never above the k-th best.
#include "memory/topk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "memory/topk.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

#ifndef FWPKM_MEMORY_TOPK_ONCE
#define FWPKM_MEMORY_TOPK_ONCE
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace fwpkm {
namespace {

constexpr int64_t kPad = 64;  // elements past the end that vector stores may touch: >= any vector

// Scratch of a selection: up to `count` candidates.
struct Candidates {
  uint64_t* keys;
  float* scores;
  int32_t* ids;
  float* group;  // maxima of groups, or padded sub-scores
  int32_t* group_ids;

  Candidates(void* scratch, int64_t count, int64_t groups) {
    keys = static_cast<uint64_t*>(scratch);
    scores = reinterpret_cast<float*>(keys + count);
    ids = reinterpret_cast<int32_t*>(scores + count + kPad);
    group = reinterpret_cast<float*>(ids + count + kPad);
    group_ids = reinterpret_cast<int32_t*>(group + groups + kPad);
  }
  static size_t bytes(int64_t count, int64_t groups) {
    return static_cast<size_t>(16 * count + 8 * groups + 16 * kPad);
  }
};

// More candidates than this are selected from by select_by_key, in linear time.
int64_t count_limit(int64_t k) {
  return std::min<int64_t>(4 * k + 64, 256);
}

// A number that sorts as (score, then lower id); -0 equals 0, and NaN is below everything.
uint64_t key_of(float score, int32_t id) {
  uint32_t bits = 0;
  if (!std::isnan(score)) {
    bits = std::bit_cast<uint32_t>(score + 0.0f);
    bits = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

float score_of(uint64_t key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return bits == 0 ? std::numeric_limits<float>::quiet_NaN()
                   : std::bit_cast<float>((bits >> 31) != 0 ? bits & 0x7fffffffu : ~bits);
}

void select_by_key(uint64_t* keys, int64_t count, int64_t k, float* best, int32_t* ids) {
  std::nth_element(keys, keys + k - 1, keys + count, std::greater<>());
  std::sort(keys, keys + k, std::greater<>());
  for (int64_t r = 0; r < k; ++r) {
    best[r] = score_of(keys[r]);
    ids[r] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(keys[r]));
  }
}

}  // namespace
}  // namespace fwpkm
#endif

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {

using I32 = hn::ScalableTag<int32_t>;
using VI32 = hn::Vec<I32>;
using M32 = hn::Mask<I32>;

HWY_INLINE M32 as_int(hn::Mask<F32> mask) {
  return hn::RebindMask(I32(), mask);
}

// n + 1 where the mask is set.
HWY_INLINE VI32 count_up(VI32 n, M32 mask) {
  const I32 di;
#if HWY_TARGET <= HWY_AVX3
  return hn::IfThenElse(mask, hn::Add(n, hn::Set(di, 1)), n);  // one masked addition
#else
  return hn::Sub(n, hn::VecFromMask(di, mask));
#endif
}

// Stores the lanes chosen by the mask one after the other, and anything behind them up to a vector;
// returns how many were chosen. (Compressing straight to memory is very slow on some processors.)
HWY_INLINE int64_t append(V32 v, VI32 id, hn::Mask<F32> mask, float* scores, int32_t* ids) {
  hn::StoreU(hn::Compress(v, mask), F32(), scores);
  hn::StoreU(hn::Compress(id, as_int(mask)), I32(), ids);
  return static_cast<int64_t>(hn::CountTrue(F32(), mask));
}

// The k-th largest of values[0..count): the largest value that at least k values reach. Writes up
// to a vector of padding behind them.
float kth_largest(float* values, int64_t count, int64_t k) {
  const F32 d;
  const I32 di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const V32 lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  hn::StoreU(lowest, d, values + count);
  const VI32 too_few = hn::Set(di, static_cast<int32_t>(k - 1));
  V32 found = lowest;
  int64_t i = 0;
  for (; i + 3 * lanes < count; i += 4 * lanes) {
    const V32 v0 = hn::LoadU(d, values + i), v1 = hn::LoadU(d, values + i + lanes);
    const V32 v2 = hn::LoadU(d, values + i + 2 * lanes), v3 = hn::LoadU(d, values + i + 3 * lanes);
    VI32 n0 = hn::Zero(di), n1 = n0, n2 = n0, n3 = n0;
    for (int64_t j = 0; j < count; ++j) {
      const V32 x = hn::Set(d, values[j]);
      n0 = count_up(n0, as_int(hn::Ge(x, v0)));
      n1 = count_up(n1, as_int(hn::Ge(x, v1)));
      n2 = count_up(n2, as_int(hn::Ge(x, v2)));
      n3 = count_up(n3, as_int(hn::Ge(x, v3)));
    }
    const auto keep = [&](V32 v, VI32 n) {
      found = hn::Max(found, hn::IfThenElse(hn::RebindMask(d, hn::Gt(n, too_few)), v, lowest));
    };
    keep(v0, n0), keep(v1, n1), keep(v2, n2), keep(v3, n3);
  }
  for (; i < count; i += lanes) {
    const V32 v = hn::LoadU(d, values + i);
    VI32 n = hn::Zero(di);
    for (int64_t j = 0; j < count; ++j) {
      n = count_up(n, as_int(hn::Ge(hn::Set(d, values[j]), v)));
    }
    found = hn::Max(found, hn::IfThenElse(hn::RebindMask(d, hn::Gt(n, too_few)), v, lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, found));
}

// Ranks of the candidates: how many beat each of them. kTies: of equal scores the lower id wins;
// otherwise equal scores share a rank. Puts candidates at their ranks in `sorted` and `sorted_ids`
// and returns the sum of the ranks. No NaN; ids differ.
template <bool kTies>
HWY_INLINE int64_t place_by_rank(const Candidates& c, int64_t count, float* sorted,
                                 int32_t* sorted_ids) {
  const F32 d;
  const I32 di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN int32_t ranks[2 * hn::MaxLanes(F32())];
  int64_t total = 0;
  for (int64_t i = 0; i < count; i += 2 * lanes) {
    // Lanes past the end hold anything; their ranks are not looked at.
    const V32 v0 = hn::LoadU(d, c.scores + i), v1 = hn::LoadU(d, c.scores + i + lanes);
    const VI32 id0 = hn::LoadU(di, c.ids + i), id1 = hn::LoadU(di, c.ids + i + lanes);
    VI32 n0 = hn::Zero(di), n1 = n0;
    for (int64_t j = 0; j < count; ++j) {
      const V32 x = hn::Set(d, c.scores[j]);
      const auto beats = [&](V32 v, VI32 v_id) {
        M32 mask = as_int(hn::Gt(x, v));
        if constexpr (kTies) {
          const M32 lower = hn::Lt(hn::Set(di, c.ids[j]), v_id);
          mask = hn::Or(mask, hn::And(as_int(hn::Eq(x, v)), lower));
        }
        return mask;
      };
      n0 = count_up(n0, beats(v0, id0));
      n1 = count_up(n1, beats(v1, id1));
    }
    hn::Store(n0, di, ranks);
    hn::Store(n1, di, ranks + lanes);
    const int64_t end = HWY_MIN(2 * lanes, count - i);
    for (int64_t l = 0; l < end; ++l) {
      sorted[ranks[l]] = c.scores[i + l];
      sorted_ids[ranks[l]] = c.ids[i + l];
      total += ranks[l];
    }
  }
  return total;
}

void select_by_rank(const Candidates& c, int64_t count, int64_t k, float* best, int32_t* ids) {
  auto* sorted = reinterpret_cast<float*>(c.keys);
  auto* sorted_ids = reinterpret_cast<int32_t*>(sorted + count);
  // Without ties the ranks are 0..count-1; each tie makes their sum smaller.
  if (place_by_rank<false>(c, count, sorted, sorted_ids) != count * (count - 1) / 2) {
    place_by_rank<true>(c, count, sorted, sorted_ids);
  }
  std::memcpy(best, sorted, static_cast<size_t>(k) * sizeof(float));
  std::memcpy(ids, sorted_ids, static_cast<size_t>(k) * sizeof(int32_t));
}

void select(const Candidates& c, int64_t count, int64_t k, float* best, int32_t* ids) {
  if (count <= count_limit(k)) {
    select_by_rank(c, count, k, best, ids);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    c.keys[i] = key_of(c.scores[i], c.ids[i]);
  }
  select_by_key(c.keys, count, k, best, ids);
}

// A number that at least k of scores[0..n) reach (less if some are NaN): the k-th largest of the
// maxima of disjoint groups, of which there are at least 2k. -infinity if n is too small for that.
float lower_bound(const float* scores, int64_t n, int64_t k, float* group) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t vectors = n / lanes;
  const int64_t run = HWY_MIN(vectors, n / (2 * k));  // vectors to a group
  if (run < 2 || k > 256) {
    return -std::numeric_limits<float>::infinity();
  }
  int64_t groups = 0;
  for (int64_t v = 0; v + run <= vectors; v += run, groups += lanes) {
    V32 most = hn::LoadU(d, scores + v * lanes);
    for (int64_t i = 1; i < run; ++i) {
      most = hn::Max(most, hn::LoadU(d, scores + (v + i) * lanes));
    }
    hn::StoreU(most, d, group + groups);
  }
  return groups < k ? -std::numeric_limits<float>::infinity() : kth_largest(group, groups, k);
}

}  // namespace

void top_k_simd(const float* scores, int64_t n, int64_t k, float* best, int32_t* ids,
                void* scratch) {
  const F32 d;
  const I32 di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Candidates c(scratch, n, n);
  const V32 bound = hn::Set(d, lower_bound(scores, n, k, c.group));
  const VI32 step = hn::Set(di, static_cast<int32_t>(lanes));
  VI32 id = hn::Iota(di, 0);
  int64_t count = 0;
  for_vectors(d, n, [&](int64_t i, size_t part) {
    const V32 v = load_part(d, scores + i, part);
    auto mask = hn::Ge(v, bound);
    if (HWY_UNLIKELY(part < static_cast<size_t>(lanes))) {
      mask = hn::And(mask, hn::FirstN(d, part));
    }
    count += append(v, id, mask, c.scores + count, c.ids + count);
    id = hn::Add(id, step);
  });
  if (HWY_UNLIKELY(count < k)) {  // only with NaN
    for (int64_t i = 0; i < n; ++i) {
      c.keys[i] = key_of(scores[i], static_cast<int32_t>(i));
    }
    select_by_key(c.keys, n, k, best, ids);
    return;
  }
  select(c, count, k, best, ids);
}

// Rounding keeps order, so the sums fall along both i and j, and at least (i+1)(j+1) of them reach
// sum (i, j). The k-th best *value* is therefore found among the pairs with (i+1)(j+1) <= k; but
// any of the others may tie with it and win by its slot, so all that reach it are collected.
void product_top_k_simd(const float* a, const int32_t* a_ids, const float* b, const int32_t* b_ids,
                        int64_t k, int64_t n, float* best, int32_t* slots, void* scratch) {
  const F32 d;
  const I32 di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Candidates c(scratch, k * k, k);
  std::memcpy(c.group, b, static_cast<size_t>(k) * sizeof(float));
  std::memcpy(c.group_ids, b_ids, static_cast<size_t>(k) * sizeof(int32_t));

  int64_t count = 0;
  for (int64_t i = 0; i < k; ++i) {
    const V32 first = hn::Set(d, a[i]);
    const int64_t end = k / (i + 1);
    for (int64_t j = 0; j < end; j += lanes) {
      hn::StoreU(hn::Add(first, hn::LoadU(d, c.group + j)), d, c.scores + count + j);
    }
    count += end;
  }
  float kth;
  if (count <= 512) {
    kth = kth_largest(c.scores, count, k);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      c.keys[i] = key_of(c.scores[i], 0);
    }
    std::nth_element(c.keys, c.keys + k - 1, c.keys + count, std::greater<>());
    kth = score_of(c.keys[k - 1]);
  }

  const V32 bound = hn::Set(d, kth);
  count = 0;
  for (int64_t i = 0; i < k && a[i] + b[0] >= kth; ++i) {
    const V32 first = hn::Set(d, a[i]);
    const VI32 base = hn::Set(di, static_cast<int32_t>(a_ids[i] * n));
    for (int64_t j = 0; j < k; j += lanes) {
      const V32 sum = hn::Add(first, hn::LoadU(d, c.group + j));
      const auto mask =
          hn::And(hn::Ge(sum, bound), hn::FirstN(d, static_cast<size_t>(HWY_MIN(lanes, k - j))));
      const VI32 slot = hn::Add(base, hn::LoadU(di, c.group_ids + j));
      const int64_t got = append(sum, slot, mask, c.scores + count, c.ids + count);
      count += got;
      if (got < lanes) {
        break;
      }
    }
  }
  if (HWY_UNLIKELY(count < k)) {  // only with NaN
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        c.keys[i * k + j] = key_of(a[i] + b[j], static_cast<int32_t>(a_ids[i] * n + b_ids[j]));
      }
    }
    select_by_key(c.keys, k * k, k, best, slots);
    return;
  }
  select(c, count, k, best, slots);
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(top_k_simd);
HWY_EXPORT(product_top_k_simd);

void top_k(const float* scores, int64_t n, int64_t k, float* best, int32_t* ids, void* scratch) {
  HWY_DYNAMIC_DISPATCH(top_k_simd)(scores, n, k, best, ids, scratch);
}

size_t top_k_scratch(int64_t n) {
  return Candidates::bytes(n, n);
}

void product_top_k(const float* a, const int32_t* a_ids, const float* b, const int32_t* b_ids,
                   int64_t k, int64_t n, float* best, int32_t* slots, void* scratch) {
  HWY_DYNAMIC_DISPATCH(product_top_k_simd)(a, a_ids, b, b_ids, k, n, best, slots, scratch);
}

size_t product_top_k_scratch(int64_t k) {
  return Candidates::bytes(k * k, k);
}

}  // namespace fwpkm
#endif
