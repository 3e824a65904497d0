// Multiplying and selecting in one kernel, second half: sub-keys that reach their token's threshold
// are looked at closely. Of a head's two codebooks the one that comes last picks the slots.
#include <algorithm>

#include "ops/fwpkm/cuda_tiles.cuh"

namespace fwpkm {
namespace {

using namespace tiles;

// Eight lanes have a pair. Lane l has what lanes l, l + 8, l + 16 and l + 24 have where a warp does
// the same (find_closeness), and adds it up in the order of warp_sum.
template <bool kDot, bool kWhole>
struct Pair {
  static constexpr int kParts = 4;
  int number;
  float key[kParts][2][4];

  // Calls fn(part, group, column) for the lane's runs of four columns.
  template <typename Fn>
  static __device__ void for_runs(const Tile& tile, Fn&& fn) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int c = g * 128 + part * 32 + static_cast<int>(threadIdx.x % 8) * 4;
        if (kWhole || c < tile.call.half) {
          fn(part, g, c);
        }
      }
    }
  }
  __device__ void fetch(const Tile& tile, const float* keys, int at, int count) {
    number = tile.memory.pairs[min(at, count - 1)];
    keys += number / kTile * tile.call.half;
    for_runs(tile, [&](int part, int g, int c) { load_run(keys + c, key[part][g]); });
  }
  __device__ void look(const Tile& tile, bool here) const {
    Memory& m = tile.memory;
    const int token = number % kTile;
    float sums[kParts] = {};
    for_runs(tile, [&](int part, int g, int c) {
      const uint2 four = *reinterpret_cast<const uint2*>(&m.q[token][c]);
      const float2 low = unpack_two(four.x), high = unpack_two(four.y);
      const float x[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const float y = kDot ? key[part][g][a] : x[a] - key[part][g][a];
        sums[part] = fmaf(kDot ? x[a] : y, y, sums[part]);
      }
    });
    float sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, step);
    }
    if (here && threadIdx.x % 8 == 0) {
      m.lists[token][atomicAdd(&m.filled[token], 1)] =
          key_of(order_of(kDot ? sum : -sum), number / kTile);
    }
  }
};

// How close the pairs are. While one is at work the sub-key of the next is on its way.
template <bool kDot, bool kWhole>
__device__ void look_closely(const Tile& tile) {
  constexpr int kTogether = kFwpkmThreads / 8;
  const int count = tile.memory.pair_count;
  if (count == 0) {
    return;
  }
  const float* keys =
      tile.call.keys + static_cast<int64_t>(tile.book) * tile.call.n * tile.call.half;
  int at = static_cast<int>(threadIdx.x) / 8;
  Pair<kDot, kWhole> a, b;
  a.fetch(tile, keys, at, count);
#pragma unroll 1
  for (int begin = 0; begin < count; begin += 2 * kTogether, at += 2 * kTogether) {
    b.fetch(tile, keys, at + kTogether, count);
    a.look(tile, at < count);
    a.fetch(tile, keys, at + 2 * kTogether, count);
    b.look(tile, at + kTogether < count);
  }
}

// The best of the lists, in order; half a warp has a token.
__device__ void sort_lists(const Tile& tile) {
  Memory& m = tile.memory;
  const int side = tile.book % 2;
#pragma unroll 1
  for (int i = threadIdx.x / 16; i < tile.count; i += kFwpkmThreads / 16) {
    const bool listed = (m.all[i / 32] >> i % 32 & 1) == 0;
    const int count = listed ? m.filled[i] : 0;
#pragma unroll 1
    for (int a = threadIdx.x % 16; a < count; a += 16) {
      const uint64_t key = m.lists[i][a];
      int rank = 0;
#pragma unroll 4
      for (int b = 0; b < count; ++b) {
        rank += m.lists[i][b] > key ? 1 : 0;
      }
      if (rank < tile.call.k) {
        const float closeness = score_of(static_cast<uint32_t>(key >> 32));
        m.selected.ids[side][i][rank] =
            static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
        m.selected.scores[side][i][rank] = score_of_closeness(tile.call, closeness);
      }
    }
  }
}

// For tokens that cannot go by candidates: all sub-keys, directly. Rare, so nobody waits for its
// code.
__device__ __noinline__ void take_from_all(Tile tile, int i) {
  Memory& m = tile.memory;
  const FwpkmCall& call = tile.call;
  const int side = tile.book % 2;
  const Search<bf16, 4> search{call,
                               query_of<bf16>(call, tile.token(i), tile.book),
                               call.keys + static_cast<int64_t>(tile.book) * call.n * call.half,
                               m.lists[i],
                               m.selected.scores[side][i],
                               m.selected.ids[side][i]};
  search.take_from_all(m.rows[threadIdx.x / 32]);
}

// Scores, ids and the softmax over the scores; eight lanes have a token. All are counted.
__device__ void store_selected(const Tile& tile, float* p, const FwpkmTally& tally) {
  Memory& m = tile.memory;
  const int r = threadIdx.x % kBest, side = tile.book % 2;
#pragma unroll
  for (int round = 0; round < kTile * kBest / kFwpkmThreads; ++round) {
    const int i = (round * kFwpkmThreads + threadIdx.x) / kBest;
    const bool here = i < tile.count && r < tile.call.k;
    const float score = here ? m.selected.scores[side][i][r] : -INFINITY;
    float top = score;
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, step));
    }
    const float power = here ? expf(score - top) : 0.0f;
    float total = power;
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      total += __shfl_xor_sync(kWholeWarp, total, step);
    }
    if (here) {
      const int64_t at = tile.place(i, tile.book) + r;
      tile.call.scores[at] = score;
      const int id = m.selected.ids[side][i][r];
      tile.call.ids[at] = id;
      if (p != nullptr) {
        p[at] = power / total;
      }
      if (tally.counts != nullptr) {
        tally.add(tile.call, tile.book, i, id, power / total, m.masks);
      }
    }
  }
}

// Whether the head's other codebook is done with this tile, and what it stored can be read.
__device__ bool comes_last(const Tile& tile, int number) {
  __syncthreads();  // all of this one is stored
  if (threadIdx.x == 0) {
    __threadfence();
    int* arrivals = tile.work.arrivals + number;
    const int before = atomicAdd(arrivals, 1);
    if (before == 1) {
      *arrivals = 0;  // for the next chunk
    }
    __threadfence();
    tile.memory.others_done = before;
  }
  __syncthreads();
  return tile.memory.others_done == 1;
}

// The slots of a token with ties.
__device__ __noinline__ void pick_slowly(const FwpkmCall& call, Best best, uint64_t* list) {
  pick_slots<kBest>(call, best, nullptr, list);
}

__device__ void pick_all(const Tile& tile) {
  Memory& m = tile.memory;
  const FwpkmCall& call = tile.call;
  const int warp = threadIdx.x / 32, other = 1 - tile.book % 2, head = tile.book / 2;
#pragma unroll 1
  for (int item = threadIdx.x; item < tile.count * kBest; item += kFwpkmThreads) {
    const int i = item / kBest, r = item % kBest;
    if (r < call.k) {
      const int64_t at = tile.place(i, 2 * head + other) + r;
      m.selected.scores[other][i][r] = __ldcg(call.scores + at);
      m.selected.ids[other][i][r] = __ldcg(call.ids + at);
    }
  }
  __syncthreads();
  const auto best_of = [&](int i) {
    const int64_t read = static_cast<int64_t>(tile.token(i)) * call.reads + head * call.k;
    return Best{{m.selected.scores[0][i], m.selected.scores[1][i]},
                {m.selected.ids[0][i], m.selected.ids[1][i]},
                call.weights + read,
                call.slots + read,
                call.picks + read};
  };
  constexpr int kTogether = 32 / kBest;
#pragma unroll 1
  for (int first = warp * kTogether; first < tile.count; first += kFwpkmWarps * kTogether) {
    const int i = first + static_cast<int>(threadIdx.x % 32) / kBest;
    const bool here = i < tile.count;
    const bool clear = pick_from_corner<kBest>(call, best_of(here ? i : first), here);
    unsigned left = __ballot_sync(kWholeWarp, here && !clear);
#pragma unroll 1
    while (left != 0) {
      const int of = (__ffs(left) - 1) / kBest;
      left &= ~(((1u << kBest) - 1) << (of * kBest));
      pick_slowly(call, best_of(first + of), m.lists[first + of]);
    }
  }
}

template <bool kDot, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    tile_kernel(const __grid_constant__ FwpkmCall call, const __grid_constant__ FwpkmProducts work,
                const __grid_constant__ FwpkmSpan span, const __grid_constant__ FwpkmSlack slack,
                float* p, const __grid_constant__ FwpkmTally tally) {
  extern __shared__ __align__(16) uint4 shared[];
  Memory& m = *reinterpret_cast<Memory*>(shared);
  const int number = blockIdx.x / call.books, warp = threadIdx.x / 32;
  const int book = blockIdx.x % call.books, first = number * kTile;
  const Tile tile{call, work, span, m, first, min(kTile, span.count - first), book};
  load_queries<kWhole>(tile);
  wait_for_earlier();
  Feed feed(tile);
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    feed.fetch(tile);
  }
  load_norms(tile, slack);
  __syncthreads();
  Hits earlier{}, last{};
  find_candidates<kDot>(tile, &feed, &earlier, &last);
  // A warp's last unit, and the one before if there are two.
  const int unit = (tile.passes() - 1) * kFwpkmWarps + warp;
  const auto for_all = [&](auto&& fn) {
#pragma unroll 1
    for (int before = unit >= kFwpkmWarps ? 1 : 0; before >= 0; --before) {
      for_hits(before == 1 ? earlier : last, unit - before * kFwpkmWarps, fn);
    }
  };
  for_all([&](int i, int) { atomicAdd(&m.counts[i], 1); });
  __syncthreads();  // from here on there are lists where packed sub-keys were
  if (warp < kTile / 32) {
    const int i = threadIdx.x;
    const bool all = i >= tile.count || m.counts[i] < call.k || m.counts[i] > kNear;
    const unsigned vote = __ballot_sync(kWholeWarp, all);
    if (i % 32 == 0) {
      m.all[warp] = vote;
    }
  }
  __syncthreads();
  for_all([&](int i, int id) {  // in any order: what comes of them is sorted
    if ((m.all[i / 32] >> i % 32 & 1) == 0) {
      m.pairs[atomicAdd(&m.pair_count, 1)] = static_cast<uint16_t>(id * kTile + i);
    }
  });
  __syncthreads();
  look_closely<kDot, kWhole>(tile);
#pragma unroll 1
  for (int i = warp; i < tile.count; i += kFwpkmWarps) {
    if ((m.all[i / 32] >> i % 32 & 1) != 0) {
      take_from_all(tile, i);
    }
  }
  __syncthreads();
  sort_lists(tile);
  for (int i = threadIdx.x; i < kMost; i += kFwpkmThreads) {
    m.masks[i] = 0;
  }
  __syncthreads();
  store_selected(tile, p, tally);
  if (tally.counts != nullptr) {
    __syncthreads();
    tally.store(call, span, book, number, m.masks,
                [&](int i, int r) { return m.selected.ids[book % 2][i][r]; });
  }
  if (comes_last(tile, number * call.heads + book / 2)) {
    pick_all(tile);
  }
}

}  // namespace

bool fits_tiles(const FwpkmCall& call) {
  return call.narrow && call.k <= kBest && call.n <= kMost && call.half % kFwpkmStep == 0 &&
         call.half <= kColumnsHeld && sizeof(Memory) <= most_shared_memory();
}

void select_in_tiles(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span,
                     const FwpkmSlack& slack, float* p, const FwpkmTally& tally) {
  // More than half of an SM's, where there is that much: two blocks there would be slower than one
  // here and one elsewhere.
  const size_t bytes =
      std::max(sizeof(Memory), std::min<size_t>(most_shared_memory() / 2 + 2048, 120000));
  const bool whole = call.half == kColumnsHeld;
  const auto kernel = call.dot ? whole ? &tile_kernel<true, true> : &tile_kernel<true, false>
                      : whole ? &tile_kernel<false, true>
                               : &tile_kernel<false, false>;
  launch_next(kernel, static_cast<unsigned>(tiles_of(span) * call.books), kFwpkmThreads, bytes,
              "fwpkm selecting in tiles", call, work, span, slack, p, tally);
}

}  // namespace fwpkm
