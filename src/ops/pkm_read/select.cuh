// The selections of memory/topk.h on a GPU, a warp for each: first the k-th best value (or one that
// divides the k best from the others just as well), bit by bit from the highest, by counting how
// many reach it; then what is above it, and of those equal to it the ones with the lowest ids; then
// a rank for each. In the same order as on the CPU: the higher score first, of equal scores the
// lower id, and what is not a number last.
#pragma once

#include <cmath>

#include "ops/common/device.cuh"

namespace fwpkm {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// Numbers that are ordered as scores are: -0 equals 0, and NaN is below everything.
__device__ inline uint32_t order_of(float score) {
  if (score != score) {
    return 0;
  }
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float score_of(uint32_t order) {
  if (order == 0) {
    return NAN;
  }
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

// A number that is ordered as (score, then lower id).
__device__ inline uint64_t key_of(uint32_t order, int32_t id) {
  return static_cast<uint64_t>(order) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

// A list that a warp appends to; it ends at `size`.
struct WarpList {
  uint64_t* keys;
  int64_t size;
  int64_t count = 0;

  // For all lanes at once; `key` is a function, called where `take` is set.
  template <typename Fn>
  __device__ void append(bool take, Fn&& key) {
    const unsigned mask = __ballot_sync(kWholeWarp, take);
    const int64_t at = count + __popc(mask & ((1u << (threadIdx.x % 32)) - 1));
    if (take && at < size) {
      keys[at] = key();
    }
    count += __popc(mask);
  }
  // The list in order, best first. Keys differ.
  __device__ void sort_to(float* best, int32_t* ids) const {
    __syncwarp();
    for (int64_t i = threadIdx.x % 32; i < size; i += 32) {
      const uint64_t key = keys[i];
      int64_t rank = 0;
      for (int64_t j = 0; j < size; ++j) {
        rank += keys[j] > key ? 1 : 0;
      }
      best[rank] = score_of(static_cast<uint32_t>(key >> 32));
      ids[rank] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
    }
    __syncwarp();
  }
};

// The k-th largest order of those that for_each(fn) calls fn(order, ..) with, in all lanes
// together. Orders 0 do not count; the result is 0 where there are fewer than k others. With
// `any_between`, any number that exactly k orders reach will do.
template <typename ForEach>
__device__ inline uint32_t kth_largest(int64_t k, ForEach&& for_each, bool any_between = false) {
  uint32_t own = 0;
  for_each([&](uint32_t order, auto...) { own = order > own ? order : own; });
  // It is not below the lowest of k lanes' largest ones. Bits in which that and the largest of all
  // agree are the same in everything between them.
  const uint32_t most = __reduce_max_sync(kWholeWarp, own);
  const bool enough = __popc(__ballot_sync(kWholeWarp, own > 0)) >= k;
  const uint32_t lowest = __reduce_min_sync(kWholeWarp, own > 0 ? own : 0xffffffffu);
  const int bits = 32 - __clz(static_cast<int>(most ^ (enough ? lowest : 0)));
  uint32_t found = bits == 32 ? 0 : most >> bits << bits;
  for (int bit = bits - 1; bit >= 0; --bit) {
    const uint32_t tried = found | 1u << bit;
    int reach = 0;
    for_each([&](uint32_t order, auto...) { reach += order >= tried ? 1 : 0; });
    reach = __reduce_add_sync(kWholeWarp, reach);
    if (reach >= k) {
      found = tried;
    }
    if (any_between && reach == k) {
      break;
    }
  }
  return found;
}

// The k best of scores[0..n), as top_k of memory/topk.h. Each lane holds every 32nd score in
// registers, so n <= 32 kHeld; with kHeld 0 they are read again each time. `list` is memory for k
// keys.
template <int kHeld>
__device__ inline void warp_top_k(const float* scores, int64_t n, int64_t k, float* best,
                                  int32_t* ids, uint64_t* list) {
  const int lane = threadIdx.x % 32;
  uint32_t held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = i * 32 + lane < n ? order_of(scores[i * 32 + lane]) : 0;
    }
  }
  // fn(order, id), ids rising; ids past the end have order 0. All lanes take part in each call.
  const auto for_each = [&](auto&& fn) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        fn(held[i], int64_t{i * 32 + lane});
      }
    } else {
      for (int64_t first = 0; first < n; first += 32) {
        const int64_t id = first + lane;
        fn(id < n ? order_of(scores[id]) : 0u, id);
      }
    }
  };
  const uint32_t kth = kth_largest(k, for_each, true);
  int above = 0;
  for_each([&](uint32_t order, int64_t) { above += order > kth ? 1 : 0; });
  const int64_t wanted = k - __reduce_add_sync(kWholeWarp, above);  // of those equal to the k-th
  WarpList chosen{list, k};
  int64_t equal = 0;
  for_each([&](uint32_t order, int64_t id) {
    const bool ties = order == kth && id < n;
    const unsigned mask = __ballot_sync(kWholeWarp, ties);
    const bool wins = ties && equal + __popc(mask & ((1u << lane) - 1)) < wanted;
    equal += __popc(mask);
    chosen.append(order > kth || wins, [&] { return key_of(order, static_cast<int32_t>(id)); });
  });
  chosen.sort_to(best, ids);
}

// The k best of the k*k sums of two sorted lists, as product_top_k of memory/topk.h. Each lane
// holds a column of sums in registers, so k <= kHeld <= 32; with kHeld 0 they are added again each
// time. `list` is memory for k keys.
template <int kHeld>
__device__ inline void warp_product_top_k(const float* a, const int32_t* a_ids, const float* b,
                                          const int32_t* b_ids, int64_t k, int64_t n, float* best,
                                          int32_t* slots, uint64_t* list) {
  static_assert(kHeld <= 32);
  const int lane = threadIdx.x % 32;
  uint32_t held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = i < k && lane < k ? order_of(a[i] + b[lane]) : 0;
    }
  }
  // fn(order, i, j, inside). At least (i+1)(j+1) sums reach sum (i, j), so the k-th best value is
  // among the pairs with (i+1)(j+1) <= k: the corner. Others can tie with it.
  const auto for_each = [&](bool corner, auto&& fn) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        fn(held[i], int64_t{i}, int64_t{lane}, i < k && lane < k);
      }
    } else {
      for (int64_t i = 0; i < k; ++i) {
        const int64_t columns = corner ? k / (i + 1) : k;
        for (int64_t first = 0; first < columns; first += 32) {
          const int64_t j = first + lane;
          fn(j < columns ? order_of(a[i] + b[j]) : 0u, i, j, j < columns);
        }
      }
    }
  };
  const auto slot_of = [&](int64_t i, int64_t j) {
    return static_cast<int32_t>(a_ids[i] * n + b_ids[j]);
  };
  // Below the k-th value, sums outside the corner may come before those inside.
  const uint32_t kth = kth_largest(
      k, [&](auto&& fn) { for_each(true, fn); }, kHeld > 0);
  int above = 0, equal = 0;
  for_each(false, [&](uint32_t order, int64_t, int64_t, bool inside) {
    above += order > kth ? 1 : 0;
    equal += order == kth && inside ? 1 : 0;
  });
  const int64_t wanted = k - __reduce_add_sync(kWholeWarp, above);  // of those equal to the k-th
  // The highest slot among them that is taken: bit by bit, the largest number below which there are
  // fewer than wanted.
  int32_t highest = INT32_MAX;
  if (__reduce_add_sync(kWholeWarp, equal) > wanted) {
    highest = 0;
    for (int bit = 30; bit >= 0; --bit) {
      const int32_t tried = highest | 1 << bit;
      int below = 0;
      for_each(false, [&](uint32_t order, int64_t i, int64_t j, bool inside) {
        below += order == kth && inside && slot_of(i, j) < tried ? 1 : 0;
      });
      if (__reduce_add_sync(kWholeWarp, below) < wanted) {
        highest = tried;
      }
    }
  }
  WarpList chosen{list, k};
  for_each(false, [&](uint32_t order, int64_t i, int64_t j, bool inside) {
    const bool ties = order == kth && inside;
    chosen.append(order > kth || (ties && slot_of(i, j) <= highest),
                  [&] { return key_of(order, slot_of(i, j)); });
  });
  chosen.sort_to(best, slots);
}

}  // namespace fwpkm
