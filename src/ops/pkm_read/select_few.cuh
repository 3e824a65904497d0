// The selections of select.cuh for the 32 best at most: in registers, a lane for each. A number
// that at least k, but not many more, reach is found by halving; those are collected and ranked.
// Where they are too many (ties) or what is not finite gets in the way, select.cuh does it.
//
// Keys are those of key_of; a key of 0 is none.
#pragma once

#include "ops/pkm_read/select.cuh"

namespace fwpkm {

inline constexpr int kFewKeys = 64;                    // that can be sorted, two in each lane
inline constexpr int kFewList = 96;                    // keys of shared memory for a warp
inline constexpr uint32_t kLowestOrder = 0x007fffffu;  // of minus infinity
inline constexpr uint32_t kCorner = 32;                // pairs (i, j) with (i+1)(j+1) <= 32

__device__ inline uint32_t order_of_key(uint64_t key) {
  return static_cast<uint32_t>(key >> 32);
}
__device__ inline int32_t id_of_key(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ inline unsigned lanes_below() {
  return (1u << (threadIdx.x % 32)) - 1;
}

// One step of a sort: of the keys of two lanes, the one with the larger goes where it is asked for.
__device__ inline uint64_t exchange_key(uint64_t key, int step, bool larger) {
  const uint64_t other = __shfl_xor_sync(kWholeWarp, key, step);
  return (other > key) == larger ? other : key;
}
// The keys of all lanes, the best first or, if `rising`, last.
__device__ inline uint64_t sort_lanes(uint64_t key, bool rising) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      key = exchange_key(key, step, ((lane & step) == 0) == (((lane & size) == 0) != rising));
    }
  }
  return key;
}

// A number that at least k of the orders that lanes hold reach (if so many are not 0), and at most
// k + slack unless some are equal.
template <int kHeld>
__device__ inline uint32_t near_kth(const uint32_t (&held)[kHeld], int k, int slack) {
  uint32_t own = held[0];
#pragma unroll
  for (int i = 1; i < kHeld; ++i) {
    own = max(own, held[i]);
  }
  uint32_t high = __reduce_max_sync(kWholeWarp, own);
  const uint32_t least = __reduce_min_sync(kWholeWarp, own > 0 ? own : 0xffffffffu);
  const bool enough = __popc(__ballot_sync(kWholeWarp, own > 0)) >= k;
  uint32_t low = enough ? least : kLowestOrder;  // at least k reach it
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    int reach = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      reach += __popc(__ballot_sync(kWholeWarp, held[i] >= middle));
    }
    if (reach < k) {
      high = middle - 1;
    } else {
      low = middle;
      if (reach <= k + slack) {
        break;
      }
    }
  }
  return low;
}

// Puts those of the lanes' keys into `list` whose order reaches `least`; returns how many do, of
// which only the first kFewKeys are there.
template <int kHeld>
__device__ inline int collect_keys(const uint64_t (&keys)[kHeld], uint32_t least, uint64_t* list) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const bool take = order_of_key(keys[i]) >= least;
    const unsigned mask = __ballot_sync(kWholeWarp, take);
    const int at = count + __popc(mask & lanes_below());
    if (take && at < kFewKeys) {
      list[at] = keys[i];
    }
    count += __popc(mask);
  }
  __syncwarp();
  return count;
}

// The 32 best of `count` <= 64 keys by how many others each one's order is below, best first. The
// first keys are in keys[0] of all lanes. False if some are equal.
__device__ inline bool rank_keys(const uint64_t (&keys)[2], int count, uint64_t* list,
                                 uint64_t* best) {
  const int lane = threadIdx.x % 32;
  auto* orders = reinterpret_cast<uint32_t*>(list);
  uint64_t* ranked = list + kFewKeys / 2;
  const uint32_t own[2] = {order_of_key(keys[0]), order_of_key(keys[1])};
  orders[lane] = own[0];
  orders[32 + lane] = own[1];
  __syncwarp();
  int rank[2] = {};
#pragma unroll 4
  for (int j = 0; j < count; j += 4) {  // those past the end are 0
    const uint4 four = *reinterpret_cast<const uint4*>(orders + j);
    const uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rank[0] += others[i] > own[0] ? 1 : 0;
      rank[1] += others[i] > own[1] ? 1 : 0;
    }
  }
  int found = 0;
  unsigned ranks = 0;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const bool take = keys[u] != 0 && rank[u] < 32;
    found += __popc(__ballot_sync(kWholeWarp, take));
    ranks |= take ? 1u << rank[u] : 0;
  }
  // Equal ones have one rank.
  if (__popc(__reduce_or_sync(kWholeWarp, ranks)) != found) {
    __syncwarp();
    return false;
  }
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    if (keys[u] != 0 && rank[u] < 32) {
      ranked[rank[u]] = keys[u];
    }
  }
  __syncwarp();
  *best = lane < found ? ranked[lane] : 0;
  __syncwarp();
  return true;
}

// The k best of 64 keys, best first.
__device__ inline uint64_t best_keys(uint64_t (&keys)[2], int k, uint64_t* list) {
  const int lane = threadIdx.x % 32;
  if (__ballot_sync(kWholeWarp, keys[1] != 0) == 0) {
    return sort_lanes(keys[0], false);
  }
  const uint32_t orders[2] = {order_of_key(keys[0]), order_of_key(keys[1])};
  const int count = collect_keys(keys, near_kth(orders, k, 32 - k), list);
  if (count <= 32) {
    const uint64_t key = lane < count ? list[lane] : 0;
    __syncwarp();
    return sort_lanes(key, false);
  }
  __syncwarp();
  // Of two sorted lists, one rising, the larger of each pair are the 32 best of both.
  uint64_t key = max(sort_lanes(keys[0], false), sort_lanes(keys[1], true));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    key = exchange_key(key, step, (lane & step) == 0);
  }
  return key;
}

// The sum of the numbers of this lane and those before. The shuffle itself says whether there is a
// lane to add.
__device__ inline int sum_upto_lane(int number) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    asm volatile(
        "{\n"
        " .reg .pred there;\n"
        " .reg .s32 before;\n"
        " shfl.sync.up.b32 before|there, %0, %1, 0, 0xffffffff;\n"
        " @there add.s32 %0, %0, before;\n"
        "}"
        : "+r"(number)
        : "r"(step));
  }
  return number;
}

// Scores of a warp, a run of four in each lane and so on; NaN past the end. Rows are aligned to 16
// bytes.
template <int kRuns>
__device__ inline void load_scores(const float* scores, int n, float (&held)[kRuns][4]) {
  const int lane = threadIdx.x % 32;
  const bool whole = n == 128 * kRuns;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int first = (i * 32 + lane) * 4;
    if (whole || first + 4 <= n) {
      load_run(scores + first, held[i]);
    } else {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        held[i][u] = first + u < n ? scores[first + u] : NAN;
      }
    }
  }
}

// The k <= 32 best of scores[0..n), n <= 32 kHeld: lane r gets the key of the r-th. False if there
// is no quick way to them.
template <int kHeld>
__device__ inline bool few_top_k(const float* scores, int n, int k, uint64_t* list,
                                 uint64_t* best) {
  const int lane = threadIdx.x % 32;
  float held[kHeld / 4][4];
  load_scores(scores, n, held);
  // The best of 64 groups: k of them that reach a value are k scores that do.
  float tops[2] = {NAN, NAN};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    tops[i % 2] = fmaxf(tops[i % 2], held[i / 4][i % 4]);
  }
  const uint32_t groups[2] = {order_of(tops[0]), order_of(tops[1])};
  const float least = score_of(near_kth(groups, k, 36 - k));
  int own = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    own += held[i / 4][i % 4] >= least ? 1 : 0;
  }
  const int upto = sum_upto_lane(own), count = __shfl_sync(kWholeWarp, upto, 31);
  if (count < k || count > kFewKeys) {
    return false;
  }
  uint64_t* to = list + upto - own;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (held[i / 4][i % 4] >= least) {
      *to++ = static_cast<uint64_t>(__float_as_uint(held[i / 4][i % 4])) << 32 |
              static_cast<uint32_t>((i / 4 * 32 + lane) * 4 + i % 4);
    }
  }
  __syncwarp();
  uint64_t keys[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int at = lane + 32 * u;
    const uint64_t found = at < count ? list[at] : 0;
    keys[u] = at < count ? key_of(order_of(__uint_as_float(order_of_key(found))),
                                  static_cast<int32_t>(static_cast<uint32_t>(found)))
                         : 0;
  }
  __syncwarp();
  if (!rank_keys(keys, count, list, best)) {
    *best = best_keys(keys, k, list);
  }
  return true;
}

// The pairs of a lane, a byte for each of up to four, and the column of the first one outside of
// the corner in row `lane` of all sums.
struct alignas(16) CornerLane {
  uint32_t i = 0, j = 0, pairs = 0, next = 0;
};
struct Corner {
  CornerLane lanes[32];

  constexpr Corner() {
    uint32_t count = 0;
    for (uint32_t i = 0; i < kCorner; ++i) {
      lanes[i].next = kCorner / (i + 1);
      for (uint32_t j = 0; j < kCorner / (i + 1); ++j, ++count) {
        CornerLane& lane = lanes[count % 32];
        lane.i |= i << 8 * lane.pairs;
        lane.j |= j << 8 * lane.pairs;
        ++lane.pairs;
      }
    }
  }
};

// The k best of the k*k sums of two lists as few_top_k leaves them: lane r gets the key of the r-th
// slot. At least (i+1)(j+1) sums reach sum (i, j), so that the corner has the k best. False if
// another one ties with the k-th, which may then be the one with the lower slot.
__device__ inline bool few_product_top_k(CornerLane corner, uint64_t a, uint64_t b, int n, int k,
                                         uint64_t* list, uint64_t* best) {
  const int lane = threadIdx.x % 32;
  const float x = score_of(order_of_key(a)), y = score_of(order_of_key(b));  // past k: NaN
  const int32_t a_id = id_of_key(a), b_id = id_of_key(b);
  if (__ballot_sync(kWholeWarp, lane < k && !(isfinite(x) && isfinite(y))) != 0) {
    return false;
  }
  uint64_t keys[4];  // the pair where the id is
  uint32_t orders[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const uint32_t i = corner.i >> 8 * u & 31, j = corner.j >> 8 * u & 31;
    const float sum = __shfl_sync(kWholeWarp, x, static_cast<int>(i)) +
                      __shfl_sync(kWholeWarp, y, static_cast<int>(j));
    orders[u] = u < static_cast<int>(corner.pairs) ? order_of(sum) : 0;
    keys[u] = static_cast<uint64_t>(orders[u]) << 32 | (i * 32 + j);
  }
  const int count = collect_keys(keys, near_kth(orders, k, 48 - k), list);
  if (count < k || count > kFewKeys) {
    __syncwarp();
    return false;
  }
  uint64_t some[2] = {};
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int at = lane + 32 * u;
    if (u == 0 || count > 32) {
      const uint64_t found = at < count ? list[at] : 0;
      const auto pair = static_cast<int>(static_cast<uint32_t>(found));
      const int32_t slot = __shfl_sync(kWholeWarp, a_id, pair / 32 % 32) * n +
                           __shfl_sync(kWholeWarp, b_id, pair % 32);
      some[u] = at < count ? key_of(order_of_key(found), slot) : 0;
    }
  }
  __syncwarp();
  if (!rank_keys(some, count, list, best)) {
    *best = best_keys(some, k, list);
  }
  const uint32_t kth = __shfl_sync(kWholeWarp, order_of_key(*best), k - 1);
  const float outside = x + __shfl_sync(kWholeWarp, y, static_cast<int>(corner.next % 32));
  const bool ties = lane < k && static_cast<int>(corner.next) < k && order_of(outside) >= kth;
  return __ballot_sync(kWholeWarp, ties) == 0;
}

// The slow ways, with the same results. `list` has kFewList keys.
__device__ __noinline__ inline uint64_t any_top_k(const float* scores, int n, int k,
                                                  uint64_t* list) {
  const int lane = threadIdx.x % 32;
  auto* best = reinterpret_cast<float*>(list + 32);
  auto* ids = reinterpret_cast<int32_t*>(list + 48);
  warp_top_k<0>(scores, n, k, best, ids, list);
  const uint64_t key = lane < k ? key_of(order_of(best[lane]), ids[lane]) : 0;
  __syncwarp();
  return key;
}
__device__ __noinline__ inline uint64_t any_product_top_k(uint64_t a, uint64_t b, int n, int k,
                                                          uint64_t* list, float* best,
                                                          int32_t* slots) {
  const int lane = threadIdx.x % 32;
  auto* scores = reinterpret_cast<float*>(list + 32);
  auto* ids = reinterpret_cast<int32_t*>(list + 64);
  scores[lane] = score_of(order_of_key(a));
  scores[32 + lane] = score_of(order_of_key(b));
  ids[lane] = id_of_key(a);
  ids[32 + lane] = id_of_key(b);
  __syncwarp();
  warp_product_top_k<32>(scores, ids, scores + 32, ids + 32, k, n, best, slots, list);
  const uint64_t key = lane < k ? key_of(order_of(best[lane]), slots[lane]) : 0;
  __syncwarp();
  return key;
}

// One way or the other.
template <int kHeld>
__device__ __noinline__ uint64_t sure_top_k(const float* scores, int n, int k, uint64_t* list) {
  uint64_t best;
  return few_top_k<kHeld>(scores, n, k, list, &best) ? best : any_top_k(scores, n, k, list);
}
__device__ __noinline__ inline uint64_t sure_product_top_k(CornerLane corner, uint64_t a,
                                                           uint64_t b, int n, int k, uint64_t* list,
                                                           float* best, int32_t* slots) {
  uint64_t chosen;
  return few_product_top_k(corner, a, b, n, k, list, &chosen)
             ? chosen
             : any_product_top_k(a, b, n, k, list, best, slots);
}

}  // namespace fwpkm
