// From the best sub-keys of two codebooks to the best slots, by a warp.
#pragma once

#include "ops/fwpkm/cuda_call.cuh"

namespace fwpkm {

// The best sub-keys of a head's codebooks, and where its slots go.
struct Best {
  const float* scores[2];
  const int32_t* ids[2];
  float* sums;
  int32_t *slots, *picks;
};

// The k best slots where the pairs that can be among them are few: at least (i+1)(j+1) sums reach
// sum (i, j), so those with (i+1)(j+1) <= k, unless one of the others ties with the last of the
// best (then: false). kLanes lanes have a head, of a token that is `here`.
inline constexpr int kCorner = 8;        // the largest k
inline constexpr int kCornerPairs = 20;  // that it has
template <int kLanes>
__device__ inline bool pick_from_corner(const FwpkmCall& call, const Best& best, bool here) {
  constexpr int kEach = (kCornerPairs + kLanes - 1) / kLanes;  // pairs that a lane has
  const int lane = threadIdx.x % kLanes, first = threadIdx.x % 32 / kLanes * kLanes, k = call.k;
  const unsigned group = (kWholeWarp >> (32 - kLanes)) << first;
  const auto sum_at = [&](int i, int j) { return best.scores[0][i] + best.scores[1][j]; };
  int i[kEach] = {}, j[kEach] = {};
  uint64_t keys[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int pair = u * kLanes + lane;
    int pairs = 0;
#pragma unroll
    for (int row = 0; row < kCorner; ++row) {
      const int columns = k / (row + 1);
      if (pair >= pairs && pair < pairs + columns) {
        i[u] = row;
        j[u] = pair - pairs;
      }
      pairs += columns;
    }
    const int slot = best.ids[0][i[u]] * call.n + best.ids[1][j[u]];
    keys[u] = pair < pairs ? key_of(order_of(sum_at(i[u], j[u])), slot) : 0;
  }
  int ranks[kEach] = {};
#pragma unroll
  for (int other = 0; other < kCornerPairs; ++other) {
    const uint64_t key = __shfl_sync(kWholeWarp, keys[other / kLanes], other % kLanes, kLanes);
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      ranks[u] += key > keys[u] ? 1 : 0;
    }
  }
  uint32_t last = 0;
  int winners = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const auto order = static_cast<uint32_t>(keys[u] >> 32);  // 0: not a number, or no pair
    winners += order != 0 && ranks[u] < k ? 1 : 0;
    last = ranks[u] == k - 1 ? order : last;
  }
  const uint32_t least = __reduce_max_sync(group, last);
  // Sums fall along a row, so of those outside the corner the first of each row tells.
  const int outside = lane < k ? k / (lane + 1) : k;
  const bool ties = outside < k && order_of(sum_at(lane, outside)) >= least;
  const bool clear =
      __reduce_add_sync(group, winners) == k && __reduce_or_sync(group, ties ? 1u : 0u) == 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    if (here && clear && ranks[u] < k) {
      best.sums[ranks[u]] = sum_at(i[u], j[u]);
      best.slots[ranks[u]] = best.ids[0][i[u]] * call.n + best.ids[1][j[u]];
      best.picks[ranks[u]] = i[u] * k + j[u];
    }
  }
  return clear;
}

template <int kHeld>
__device__ inline void pick_slots(const FwpkmCall& call, const Best& best, const int32_t* given,
                                  uint64_t* list) {
  if (given == nullptr && call.k <= kCorner && pick_from_corner<32>(call, best, true)) {
    return;
  }
  if (given == nullptr) {
    warp_product_top_k<kHeld>(best.scores[0], best.ids[0], best.scores[1], best.ids[1], call.k,
                              call.n, best.sums, best.slots, list);
  }
  for (int r = threadIdx.x % 32; r < call.k; r += 32) {
    int i = 0, j = 0;
    if (given != nullptr) {
      i = given[r] / call.k;
      j = given[r] % call.k;
      best.slots[r] = best.ids[0][i] * call.n + best.ids[1][j];
      best.sums[r] = best.scores[0][i] + best.scores[1][j];
    } else {
      while (i + 1 < call.k && best.ids[0][i] != best.slots[r] / call.n) {
        ++i;
      }
      while (j + 1 < call.k && best.ids[1][j] != best.slots[r] % call.n) {
        ++j;
      }
    }
    best.picks[r] = i * call.k + j;
  }
}

}  // namespace fwpkm
