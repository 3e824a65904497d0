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

// The k best slots where the pairs that can be among them are few enough to have a lane each: at
// least (i+1)(j+1) sums reach sum (i, j), so those with (i+1)(j+1) <= k. False if there are ties,
// which the lower slot wins.
constexpr int kCorner = 8;  // the largest k; its corner has 20 pairs
__device__ inline bool pick_from_corner(const FwpkmCall& call, const Best& best) {
  const int lane = threadIdx.x % 32, k = call.k;
  const auto sum_at = [&](int i, int j) { return best.scores[0][i] + best.scores[1][j]; };
  int i = 0, j = 0, pairs = 0;
#pragma unroll
  for (int row = 0; row < kCorner; ++row) {
    const int columns = k / (row + 1);
    if (lane >= pairs && lane < pairs + columns) {
      i = row;
      j = lane - pairs;
    }
    pairs += columns;
  }
  const bool here = lane < pairs;
  const float sum = sum_at(i, j);
  const uint32_t order = here ? order_of(sum) : 0;
  int rank = 0;
#pragma unroll 4
  for (int other = 0; other < pairs; ++other) {
    rank += __shfl_sync(kWholeWarp, order, other) > order ? 1 : 0;
  }
  // Sums fall along a row, so of those outside the corner the first of each row tells.
  const unsigned last = __ballot_sync(kWholeWarp, here && rank == k - 1);
  const uint32_t least = __shfl_sync(kWholeWarp, order, max(__ffs(last) - 1, 0));
  const int outside = lane < k ? k / (lane + 1) : k;
  const bool ties = outside < k && order_of(sum_at(lane, outside)) >= least;
  // A tie among the best leaves a rank without a sum, one with the next gives the last rank two.
  const bool wins = here && rank < k;
  const unsigned ranks = __reduce_or_sync(kWholeWarp, wins ? 1u << rank : 0u);
  const int winners = __popc(__ballot_sync(kWholeWarp, wins));
  if (ranks != (1u << k) - 1 || winners != k || __ballot_sync(kWholeWarp, ties) != 0) {
    return false;
  }
  if (wins) {
    best.sums[rank] = sum;
    best.slots[rank] = best.ids[0][i] * call.n + best.ids[1][j];
    best.picks[rank] = i * k + j;
  }
  return true;
}

template <int kHeld>
__device__ void pick_slots(const FwpkmCall& call, const Best& best, const int32_t* given,
                           uint64_t* list) {
  if (given == nullptr && call.k <= kCorner && pick_from_corner(call, best)) {
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
