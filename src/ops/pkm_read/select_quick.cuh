// The selections of select_few.cuh where nothing ties, in half of its instructions: what is sorted
// are numbers of 32 bits, how far an order is above a lowest one and, in the last bits, whose it
// is. A lane has one or two of them. False where that is not exact: then select_few.cuh does it.
#pragma once

#include "ops/pkm_read/select_few.cuh"

namespace fwpkm {

// order_of and score_of for what is neither NaN nor -0.
__device__ inline uint32_t order_of_number(float number) {
  const uint32_t bits = __float_as_uint(number);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ inline float number_of(uint32_t order) {
  return __uint_as_float(order ^
                         (static_cast<uint32_t>(static_cast<int32_t>(~order) >> 31) | 0x80000000u));
}

// Of the numbers of two lanes the larger one or the other one.
__device__ inline uint32_t exchange(uint32_t number, int lanes, bool larger) {
  const uint32_t other = __shfl_xor_sync(kWholeWarp, number, lanes);
  return larger ? max(number, other) : min(number, other);
}
// Groups of `size` lanes whose numbers fall, then rise: now falling, or rising, all the way.
__device__ inline uint32_t merge_lanes(uint32_t number, int size, bool falling) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = size / 2; step > 0; step /= 2) {
    number = exchange(number, step, ((lane & step) == 0) == falling);
  }
  return number;
}
// The same for groups whose halves fall, or rise, alike.
__device__ inline uint32_t join_lanes(uint32_t number, int size, bool falling) {
  const bool first = (threadIdx.x % 32 & size / 2) == 0;
  return merge_lanes(exchange(number, size - 1, first == falling), size / 2, falling);
}
// Sorts in groups of 16 lanes.
__device__ inline uint32_t sort_halves(uint32_t number, bool falling) {
#pragma unroll
  for (int size = 2; size <= 16; size *= 2) {
    number = join_lanes(number, size, falling);
  }
  return number;
}
// The 24th of 32 numbers.
__device__ inline uint32_t upper_three_quarters(uint32_t number) {
  number = sort_halves(number, true);
  // The smaller half, in either half of the lanes; of those the larger half.
  number = min(number, __shfl_xor_sync(kWholeWarp, number, 31));
  number = max(number, __shfl_xor_sync(kWholeWarp, number, 8));
  return __reduce_min_sync(kWholeWarp, number);
}

// few_top_k, but lane r < k gets score and id of the r-th. At least 24 scores reach the 24th of the
// lanes' best ones; of 512 that are drawn at random about 44 do, in one of 50 cases fewer than 32
// or more than 64.
template <int kHeld>
__device__ inline bool quick_top_k(const float* scores, int n, int k, uint16_t* list, float* best,
                                   int32_t* best_id) {
  const int lane = threadIdx.x % 32;
  float held[kHeld / 4][4];
  load_scores(scores, n, held);
  constexpr int kLooked = kHeld - (kHeld + 15) / 16;  // with all of them, more often fewer than 32
  float top = -1e38f;
#pragma unroll
  for (int i = 0; i < kLooked; ++i) {
    top = fmaxf(top, held[i / 4][i % 4]);
  }
  // Just below the 24th, and not -0. The sign of a difference says which scores are above that: it
  // is never rounded to 0, and not set for NaN.
  const uint32_t below = (upper_three_quarters(order_of_number(top)) - 1) & ~1u;
  const float bound = number_of(below);
  uint32_t hits = 0;
#pragma unroll
  for (int i = kHeld - 1; i >= 0; --i) {
    hits = __funnelshift_l(__float_as_uint(bound - held[i / 4][i % 4]), hits, 1);
  }
  const int own = __popc(hits);
  const int upto = sum_upto_lane(own), count = __shfl_sync(kWholeWarp, upto, 31);
  if (count < k || count > kFewKeys) {
    return false;
  }
  for (uint16_t* to = list + upto - own; hits != 0; ++to) {
    const int i = 31 - __clz(static_cast<int>(hits));
    hits ^= 1u << i;
    *to = static_cast<uint16_t>(i * 32 + lane);
  }
  __syncwarp();
  int32_t ids[2];
  uint32_t numbers[2];
  bool bad = false;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    // Of the second ones those in the upper lanes first: seldom there are others.
    const int at = u == 0 ? lane : 32 + (lane ^ 16);
    const bool there = at < count;
    const int place = there ? list[at] : 0;
    ids[u] = place / 128 * 128 + place % 32 * 4 + place / 32 % 4;
    const uint32_t above = order_of_number(scores[ids[u]] + 0.0f) - below;
    numbers[u] = there ? above << 6 | static_cast<uint32_t>(u * 32 + lane) : 0;
    bad = bad || (there && above >> 26 != 0);
  }
  __syncwarp();
  numbers[0] = join_lanes(sort_halves(numbers[0], true), 32, true);
  numbers[1] = sort_halves(numbers[1], false);
  if (count > 48) {
    numbers[1] = join_lanes(numbers[1], 32, false);
  }
  const uint32_t left_out = min(numbers[0], numbers[1]);
  const uint32_t number = merge_lanes(max(numbers[0], numbers[1]), 32, true);
  // Some that are equal, next to each other or with one that is left out?
  const uint32_t next = __shfl_sync(kWholeWarp, number, lane + 1);
  const uint32_t last = __shfl_sync(kWholeWarp, number, k - 1);
  bad = bad || (lane < k && (number ^ next) < 64) || left_out >= (last & ~63u);
  *best = number_of((number >> 6) + below);
  const int32_t first_id = __shfl_sync(kWholeWarp, ids[0], static_cast<int>(number));
  const int32_t second_id = __shfl_sync(kWholeWarp, ids[1], static_cast<int>(number));
  *best_id = (number & 32) == 0 ? first_id : second_id;
  return __ballot_sync(kWholeWarp, bad) == 0;
}

// The corner of few_product_top_k without four pairs at its edge that are hardly ever among the
// best, in four numbers of a lane: row 0, falling; column 0, rising; row and column 1, falling,
// then rising; the others, falling and rising in groups of 8, 8, 4, 4 and 8 lanes. The last bits of
// a number, its place in `pairs`, do the same where sums are equal. What is not used has pair
// (31, 31), not above any other.
struct alignas(16) QuickLane {
  uint32_t i = 31 << 8 | 31, j = 31 << 8 | 31;  // of the third and, 8 bits up, of the fourth pair
  uint32_t places = 0;                          // of both as well
  uint32_t next = 0;                            // as in CornerLane
};
struct QuickCorner {
  QuickLane lanes[32];
  uint16_t pairs[128] = {};  // 32 * i + j

  constexpr QuickCorner() {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      pairs[31 - lane] = static_cast<uint16_t>(lane);
      pairs[32 + lane] = static_cast<uint16_t>((32 - lane) % 32 * 32);
    }
    // The third pair of a lane, then the fourth.
    for (uint32_t at = 1; at < 16; ++at) {
      put(0, at - 1, 1, at);
    }
    for (uint32_t at = 2; at < 16; ++at) {
      put(0, 33 - at, at, 1);
    }
    for (uint32_t at = 2; at < 10; ++at) {
      put(8, at - 2, 2, at);
    }
    for (uint32_t at = 3; at < 10; ++at) {
      put(8, 18 - at, at, 2);
    }
    for (uint32_t at = 3; at < 7; ++at) {
      put(8, 13 + at, 3, at);
    }
    for (uint32_t at = 4; at < 7; ++at) {
      put(8, 27 - at, at, 3);
    }
    put(8, 31, 4, 4);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      const uint32_t third = 64 + (lane < 16 ? 15 - lane : lane);
      const uint32_t fourth = 96 + (lane < 8 ? 7 - lane : lane / 4 == 4 ? 35 - lane : lane);
      QuickLane& to = lanes[lane];
      to.places = third | fourth << 8;
      pairs[third] = static_cast<uint16_t>((to.i & 31) << 5 | (to.j & 31));
      pairs[fourth] = static_cast<uint16_t>(to.i >> 8 << 5 | to.j >> 8);
      to.next = kCorner / (lane + 1);
    }
    lanes[3].next = 7;
    lanes[4].next = 5;
    lanes[5].next = 4;
    lanes[7].next = 3;
  }

 private:
  constexpr void put(uint32_t shift, uint32_t lane, uint32_t i, uint32_t j) {
    QuickLane& to = lanes[lane];
    to.i = (to.i & ~(31u << shift)) | i << shift;
    to.j = (to.j & ~(31u << shift)) | j << shift;
  }
};

// few_product_top_k of scores and ids; lane r < k gets score and slot of the r-th.
__device__ inline bool quick_product_top_k(const QuickCorner& corner, float x, int32_t a_id,
                                           float y, int32_t b_id, int n, int k, float* best,
                                           int32_t* slot) {
  const int lane = threadIdx.x % 32;
  const QuickLane own = corner.lanes[lane];
  x = lane < k ? fmaxf(x, -INFINITY) : -INFINITY;  // NaN, too
  y = lane < k ? fmaxf(y, -INFINITY) : -INFINITY;
  const float x_top = __shfl_sync(kWholeWarp, x, 0), y_top = __shfl_sync(kWholeWarp, y, 0);
  const auto sum_of = [&](uint32_t i, uint32_t j) {
    return __shfl_sync(kWholeWarp, x, static_cast<int>(i)) +
           __shfl_sync(kWholeWarp, y, static_cast<int>(j));
  };
  // 25 bits: sums down to a 16th of the best one, or up to 16 times it where it is negative.
  constexpr uint32_t kMost = (1u << 25) - 1;
  const uint32_t top = order_of_number(x_top + y_top), lowest = top - kMost;
  bool bad = !isfinite(x_top + y_top) || top <= kMost + kLowestOrder;
  const auto number_for = [&](float sum, uint32_t place) {
    return (max(order_of_number(sum), lowest) - lowest) << 7 | place;
  };
  const auto lane_place = static_cast<uint32_t>(lane);
  const uint32_t row = number_for(x_top + y, 31 - lane_place);
  uint32_t column = number_for(__shfl_sync(kWholeWarp, x, 32 - lane) + y_top, 32 + lane_place);
  column = lane == 0 ? 0 : column;
  uint32_t third = number_for(sum_of(own.i, own.j), own.places & 127);
  uint32_t fourth = number_for(sum_of(own.i >> 8, own.j >> 8), own.places >> 8);
  // Of a falling and a rising list, the larger of each pair are the 32 best of both.
  uint32_t left_out = min(row, column);
  uint32_t number = merge_lanes(max(row, column), 32, true);
  third = merge_lanes(third, 32, false);
  left_out = max(left_out, min(number, third));
  number = merge_lanes(max(number, third), 32, true);
  fourth = merge_lanes(fourth, 8, (lane & 8) == 0);
  fourth = merge_lanes(fourth, 16, (lane & 16) == 0);
  fourth = merge_lanes(fourth, 32, false);
  left_out = max(left_out, min(number, fourth));
  number = merge_lanes(max(number, fourth), 32, true);

  const uint32_t next = __shfl_sync(kWholeWarp, number, lane + 1);
  const uint32_t last = __shfl_sync(kWholeWarp, number, k - 1);
  // If the k-th is too far below the best one, so is the next one or one that is left out.
  bad = bad || (lane < k && (number ^ next) < 128) || left_out >= (last & ~127u);
  *best = number_of((number >> 7) + lowest);
  const float kth = __shfl_sync(kWholeWarp, *best, k - 1);
  const float outside = x + __shfl_sync(kWholeWarp, y, static_cast<int>(own.next));
  bad = bad || (lane > 0 && outside >= kth);
  const int pair = corner.pairs[number & 127];
  *slot = __shfl_sync(kWholeWarp, a_id, pair / 32) * n + __shfl_sync(kWholeWarp, b_id, pair);
  return __ballot_sync(kWholeWarp, bad) == 0;
}

}  // namespace fwpkm
