// Multiplying and selecting in one kernel, second half: sub-keys that reach their token's threshold
// are looked at closely. Of a head's two codebooks the one that comes last picks the slots.
#include <algorithm>

#include "ops/fwpkm/cuda_tiles.cuh"

namespace fwpkm {
namespace {

using namespace tiles;

// Whether a token goes by its candidates.
__device__ bool has_list(const Tile& tile, int i) {
  const int count = tile.memory.counts[i];
  return count >= tile.call.k && count <= kNear;
}
// Token `number` of a warp.
__device__ int warp_token(int number) {
  return number * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
}

// What a warp looks at together, in m.walks: sub-keys of its tokens, by the place of the first in
// m.near. -> how often it looks.
__device__ int plan_walk(const Tile& tile) {
  Memory& m = tile.memory;
  const int lane = threadIdx.x % 32, i = warp_token(lane);
  int count = 0;
  if (i < tile.count && has_list(tile, i)) {
    count = (m.counts[i] + kTogether - 1) / kTogether;
  }
  int end = count;
#pragma unroll
  for (int step = 1; step < kTile / kFwpkmWarps; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, end, step);
    end += lane >= step ? other : 0;
  }
  uint16_t* walk = m.walks[threadIdx.x / 32] + end - count;
#pragma unroll 1
  for (int at = 0; at < count; ++at) {
    walk[at] = static_cast<uint16_t>(i * kNear + at * kTogether);
  }
  __syncwarp();
  return __shfl_sync(kWholeWarp, end, kTile / kFwpkmWarps - 1);
}

// Eight lanes have a sub-key. Lane l has what lanes l, l + 8, l + 16 and l + 24 have where a warp
// does the same (find_closeness), and adds it up in the order of warp_sum.
template <bool kDot, bool kWhole>
struct Look {
  static constexpr int kParts = 4;
  using Columns = float[kParts][2][4];
  int place;
  uint32_t id;  // as key_of has it, 0 past the end
  Columns key;

  // Calls fn(part, group, column) for the lane's runs of four columns, from the lane's first on.
  template <typename Fn>
  static __device__ void for_runs(Fn&& fn) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        fn(part, g, g * 128 + part * 32);
      }
    }
  }
  // `keys`: the lane's first column.
  __device__ void fetch(const Tile& tile, const float* keys, int at) {
    place = at;
    const uint32_t number = (&tile.memory.near[0][0])[at];
    id = number == kNobody ? 0 : ~number;
    keys += static_cast<uint64_t>(number % kNobody) * static_cast<uint32_t>(tile.call.half);
    for_runs([&](int part, int g, int c) {
      if (kWhole || c < tile.call.half) {  // a multiple of 32: all lanes or none
        load_run(keys + c, key[part][g]);
      } else {
        key[part][g][0] = key[part][g][1] = key[part][g][2] = key[part][g][3] = 0;  // as queries
      }
    });
  }
  static __device__ void get_query(const Tile& tile, int token, Columns& q) {
    const bf16* from = &tile.memory.q[token][threadIdx.x % 8 * 4];
    for_runs([&](int part, int g, int c) {
      const uint2 four = *reinterpret_cast<const uint2*>(from + c);
      const float2 low = unpack_two(four.x), high = unpack_two(four.y);
      q[part][g][0] = low.x;
      q[part][g][1] = low.y;
      q[part][g][2] = high.x;
      q[part][g][3] = high.y;
    });
  }
  __device__ void find(const Tile& tile, const Columns& q) const {
    float sums[kParts] = {};
    for_runs([&](int part, int g, int) {
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const float x = q[part][g][a], y = kDot ? key[part][g][a] : x - key[part][g][a];
        sums[part] = fmaf(kDot ? x : y, y, sums[part]);
      }
    });
    float sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kWholeWarp, sum, step);
    }
    // A sum of squares has no sign: that is order_of(-sum), but for 0, which is still the best.
    const uint32_t order = kDot ? order_of(sum) : ~__float_as_uint(sum) & 0x7fffffffu;
    (&tile.memory.lists[0][0])[place] =  // all eight lanes the same
        static_cast<uint64_t>(id != 0 ? order : 0) << 32 | id;
  }
};

// Fills the lists: up to a multiple of kTogether, with zeros at the end. While some sub-keys are at
// work the next ones are on their way; a query stays in registers.
template <bool kDot, bool kWhole>
__device__ void look_closely(const Tile& tile) {
  using Looks = Look<kDot, kWhole>;
  const float* keys = tile.call.keys +
                      static_cast<int64_t>(tile.book) * tile.call.n * tile.call.half +
                      threadIdx.x % 8 * 4;
  const int count = plan_walk(tile);
  if (count == 0) {
    return;
  }
  const uint16_t* walk = tile.memory.walks[threadIdx.x / 32];
  const int group = static_cast<int>(threadIdx.x % 32) / 8;
  typename Looks::Columns q;
  int held = -1;
  const auto fetch = [&](int number, Looks& next) {
    next.fetch(tile, keys, walk[min(number, count - 1)] + group);
    __syncwarp();  // or the compiler would put it off
  };
  const auto find = [&](const Looks& now) {
    if (now.place / kNear != held) {
      held = now.place / kNear;
      Looks::get_query(tile, held, q);
    }
    now.find(tile, q);
  };
  Looks a, b;
  fetch(0, a);
#pragma unroll 1
  for (int number = 0; number < count; number += 2) {
    fetch(number + 1, b);
    find(a);
    fetch(number + 2, a);
    if (number + 1 < count) {
      find(b);
    }
  }
}

// The best of the lists, in order; half a warp has a token.
__device__ void sort_lists(const Tile& tile) {
  Memory& m = tile.memory;
  const int side = tile.book % 2;
#pragma unroll 1
  for (int i = threadIdx.x / 16; i < tile.count; i += kFwpkmThreads / 16) {
    const int count = has_list(tile, i) ? m.counts[i] : 0;
#pragma unroll 1
    for (int a = threadIdx.x % 16; a < count; a += 16) {
      const uint64_t key = m.lists[i][a];
      int rank = 0;
#pragma unroll 1
      for (int b = 0; b < count; b += kTogether) {
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          rank += static_cast<int>(m.lists[i][b + u] > key);
        }
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
  load_norms<kDot>(tile, slack);
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
  for_all([&](int i, int id) {  // in any order: what comes of them is sorted
    const int at = atomicAdd(&m.counts[i], 1);
    if (at < kNear) {
      m.near[i][at] = static_cast<uint16_t>(id);
    }
  });
  __syncthreads();  // from here on there are lists where packed sub-keys were
  look_closely<kDot, kWhole>(tile);
  const int own = warp_token(static_cast<int>(threadIdx.x % 32));
  unsigned others = __ballot_sync(kWholeWarp, own < tile.count && !has_list(tile, own));
#pragma unroll 1
  for (; others != 0; others &= others - 1) {
    take_from_all(tile, warp_token(__ffs(static_cast<int>(others)) - 1));
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
