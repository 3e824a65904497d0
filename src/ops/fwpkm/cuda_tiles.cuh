// Multiplying and selecting in one kernel, for queries in bf16 (cuda_tiles.cu): a block has a tile
// of tokens and a codebook. This is its first half. Products stay in registers; what leaves them is
// the best of groups of sub-keys, from which the tokens' thresholds follow, and then which sub-keys
// reach these.
//
// Any grouping gives the same result: k groups that reach a value are k sub-keys that do, so nobody
// among the k best is more than twice the slack (FwpkmSlack) below the k-th best group.
#pragma once

#include "ops/common/mma.cuh"
#include "ops/fwpkm/cuda_search.cuh"

namespace fwpkm::tiles {

inline constexpr int kTile = kFwpkmTileTokens, kUnit = kFwpkmUnit;
inline constexpr int kMost = 512;         // sub-keys
inline constexpr int kBest = 8;           // of a token, at most
inline constexpr int kNear = 64;          // sub-keys of a token that can be looked at closely
inline constexpr int kStages = 3;         // steps of packed sub-keys on their way
inline constexpr int kColumnsHeld = 256;  // of a query
inline constexpr int kPitch = 272;        // of a query: four rows meet all banks once
inline constexpr int kTopPitch = 36;      // so that a warp's best of groups meet no bank twice
inline constexpr int kRows = 8;           // of the tile, and
inline constexpr int kColumns = 8;        // of a unit, that a lane has numbers of

struct Selected {
  float scores[2][kTile][kBest];
  int32_t ids[2][kTile][kBest];
};

struct Memory {
  bf16 q[kTile][kPitch];
  union {
    uint4 ring[kFwpkmWarps][kStages][4][32];  // while products are made
    struct {                                  // afterwards
      uint64_t lists[kTile][kNear];
      union {
        float rows[kFwpkmWarps][kMost];  // until all is selected
        unsigned long long masks[kMost];
      };
    };
  };
  union {
    float tops[kTile][kTopPitch];  // until the last threshold is known
    Selected selected;
  };
  float norms[kMost];
  uint16_t pairs[kTile * kNear];  // that are looked at closely: sub-key times kTile plus token
  float slack[kTile], least[kTile];
  int counts[kTile], filled[kTile], tokens[kTile];
  int pair_count;
  uint32_t all[2];  // tokens that cannot go by candidates, or are not there
  int others_done;
};

// What a lane knows of a unit after its products: its best of each row, and which of its columns
// reach the threshold, a byte for each row.
struct Hits {
  float tops[kRows];
  uint32_t bits[2];
};

// A block's place.
struct Tile {
  const FwpkmCall& call;
  const FwpkmProducts& work;
  const FwpkmSpan& span;
  Memory& memory;
  int first, count, book;  // tokens of the span

  __device__ int token(int i) const { return memory.tokens[i]; }
  // Where a token's selections of a codebook are.
  __device__ int64_t place(int i, int of_book) const {
    return selections_at(call, token(i), of_book);
  }
  __device__ int steps() const { return call.half / kFwpkmStep; }
  __device__ int units() const { return work.padded / kUnit; }
  __device__ int passes() const { return (units() + kFwpkmWarps - 1) / kFwpkmWarps; }
};

// Queries, zeros where there are none, and in `slack` their squares: nothing that the kernel before
// has a hand in. kWhole: queries have as many columns as there is room for.
template <bool kWhole>
__device__ inline void load_queries(const Tile& tile) {
  constexpr int kRounds = 4;  // queries of a warp that are on their way together
  Memory& m = tile.memory;
  const FwpkmCall& call = tile.call;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < kTile) {
    const int i = min(static_cast<int>(threadIdx.x), tile.count - 1);
    m.tokens[threadIdx.x] = tile.span.token(tile.first + i);
    m.counts[threadIdx.x] = m.filled[threadIdx.x] = m.pair_count = 0;
  }
  __syncthreads();
#pragma unroll 1
  for (int first = warp; first < kTile; first += kRounds * kFwpkmWarps) {
    uint2 queries[kRounds][2] = {};
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int i = first + round * kFwpkmWarps;
      const bf16* q = query_of<bf16>(call, tile.token(i), tile.book);
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int c = g * 128 + lane * 4;
        if (i < tile.count && (kWhole || c < call.half)) {
          queries[round][g] = *reinterpret_cast<const uint2*>(q + c);
        }
      }
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int i = first + round * kFwpkmWarps;
      float square = 0;
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const uint2 four = queries[round][g];
        *reinterpret_cast<uint2*>(&m.q[i][g * 128 + lane * 4]) = four;
        const float2 a = unpack_two(four.x), b = unpack_two(four.y);
        square = fmaf(b.y, b.y, fmaf(b.x, b.x, fmaf(a.y, a.y, fmaf(a.x, a.x, square))));
      }
      square = warp_sum(square);
      if (lane == 0) {
        m.slack[i] = square;
      }
    }
  }
}
// Norms, and how far below the k-th best a token's sub-keys can be and be among the best.
__device__ inline void load_norms(const Tile& tile, const FwpkmSlack& slack) {
  Memory& m = tile.memory;
  float most = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < tile.work.padded; i += kFwpkmThreads) {
    const float norm = tile.work.norms[tile.book * tile.work.padded + i];
    m.norms[i] = norm;
    most = fmaxf(most, norm);
  }
  most = block_max<kFwpkmThreads>(most);
  if (threadIdx.x < kTile) {
    m.slack[threadIdx.x] = 2 * slack.most(m.slack[threadIdx.x], most);
  }
}

// Fetches what a warp multiplies by, step by step; steps of all its units follow each other. Each
// thread fetches what it will read itself, so no barriers are needed.
struct Feed {
  const uint4* from;  // of the next step
  int unit, left;     // steps of that unit that are to come
  int to = 0;         // where it goes in the ring

  __device__ explicit Feed(const Tile& tile) : unit(threadIdx.x / 32), left(tile.steps()) {
    const int64_t before = static_cast<int64_t>(tile.book) * tile.work.padded * tile.work.depth / 8;
    from = reinterpret_cast<const uint4*>(tile.work.keys) + before + unit * left * 128 +
           threadIdx.x % 32;
  }
  __device__ void fetch(const Tile& tile) {
    if (unit < tile.units()) {
      auto& ring = tile.memory.ring[threadIdx.x / 32][to];
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        copy_async(&ring[group][threadIdx.x % 32], from + group * 32);
      }
    }
    commit_copies();
    from += 128;
    to = to + 1 < kStages ? to + 1 : 0;
    if (--left == 0) {
      left = tile.steps();
      unit += kFwpkmWarps;
      from += (kFwpkmWarps - 1) * left * 128;
    }
  }
};

// Products of all queries with a unit. Columns come in another order than a product has them, the
// same in both factors: a lane's four are neighbours.
__device__ inline void multiply_unit(const Tile& tile, Feed* feed, float (&sums)[4][4][4]) {
  const Memory& m = tile.memory;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* q = &m.q[lane / 4][lane % 4 * 4];
#pragma unroll 1
  for (int s = 0; s < tile.steps(); ++s, q += kFwpkmStep) {
    // One ahead of where the next fetch goes: all of the ring but that is on its way.
    const int slot = feed->to + 1 < kStages ? feed->to + 1 : 0;
    wait_copies<kStages - 2>();
    uint4 b[4];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      b[group] = m.ring[warp][slot][group][lane];
    }
#pragma unroll
    for (int rows = 0; rows < 4; ++rows) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const bf16* from = q + rows * 16 * kPitch + part * 16;
        const uint2 upper = *reinterpret_cast<const uint2*>(from);
        const uint2 lower = *reinterpret_cast<const uint2*>(from + 8 * kPitch);
        const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
#pragma unroll
        for (int group = 0; group < 4; ++group) {
          mma(sums[rows][group], a, part == 0 ? b[group].x : b[group].z,
              part == 0 ? b[group].y : b[group].w);
        }
      }
    }
    feed->fetch(tile);  // over what was read in the step before
  }
}

// Turns products into closeness but for |q|^2, past the end into what is no number.
template <bool kDot>
__device__ inline void to_closeness(const Tile& tile, int unit, float (&sums)[4][4][4]) {
  const int pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int id = unit * kUnit + column / 2 * 8 + pair + column % 2;
    const float norm = tile.memory.norms[id];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float& x = sums[row / 2][column / 2][row % 2 * 2 + column % 2];
      x = id >= tile.call.n ? NAN : kDot ? x : fmaf(2.0f, x, -norm);
    }
  }
}

// Exchanges so that the higher of two comes first.
__device__ inline void put_in_order(float& a, float& b) {
  const float higher = fmaxf(a, b);
  b = fminf(a, b);
  a = higher;
}
// Sorts eight numbers that first fall and then rise, or the other way round.
__device__ inline void merge_eight(float (&x)[8]) {
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & step) == 0) {
        put_in_order(x[i], x[i + step]);
      }
    }
  }
}
__device__ inline void sort_eight(float (&x)[8]) {
#pragma unroll
  for (int round = 0; round < 8; ++round) {
#pragma unroll
    for (int i = round % 2; i + 1 < 8; i += 2) {
      put_in_order(x[i], x[i + 1]);
    }
  }
}

// The tokens' thresholds: four threads have a token.
__device__ inline void find_least(const Tile& tile) {
  Memory& m = tile.memory;
  const int i = threadIdx.x / 4, part = threadIdx.x % 4;
  float best[8];
  load_run(&m.tops[i][part * 8], best);
  sort_eight(best);
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    float other[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      other[r] = __shfl_xor_sync(kWholeWarp, best[r], step);
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      best[r] = fmaxf(best[r], other[7 - r]);
    }
    merge_eight(best);
  }
  float kth = best[0];
#pragma unroll
  for (int r = 1; r < 8; ++r) {
    kth = r < tile.call.k ? best[r] : kth;
  }
  if (part == 0) {
    m.least[i] = kth - m.slack[i];
  }
}

__device__ inline Hits find_hits(const Tile& tile, const float (&tops)[kRows],
                                 const float (&sums)[4][4][4]) {
  Hits hits{};
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float least = tile.memory.least[row * 8 + threadIdx.x % 32 / 4];
    hits.tops[row] = tops[row];
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const bool hit = sums[row / 2][column / 2][row % 2 * 2 + column % 2] >= least;
      hits.bits[row / 4] |= hit ? 1u << (row % 4 * 8 + column) : 0u;
    }
  }
  return hits;
}

// Multiplies, unit by unit. A warp has one or two; `earlier` is what the first threshold let
// through of the first one if there are two. In both a lane belongs to the same group.
template <bool kDot>
__device__ inline void find_candidates(const Tile& tile, Feed* feed, Hits* earlier, Hits* last) {
  Memory& m = tile.memory;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    last->tops[row] = -INFINITY;
  }
#pragma unroll 1
  for (int pass = 0; pass < tile.passes(); ++pass) {
    *earlier = *last;
    const int unit = pass * kFwpkmWarps + warp;
    float sums[4][4][4] = {}, tops[kRows];
    if (unit < tile.units()) {
      multiply_unit(tile, feed, sums);
    }
    to_closeness<kDot>(tile, unit, sums);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      tops[row] = -INFINITY;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        tops[row] = fmaxf(tops[row], sums[row / 2][column / 2][row % 2 * 2 + column % 2]);
      }
      m.tops[row * 8 + lane / 4][warp * 4 + lane % 4] = fmaxf(earlier->tops[row], tops[row]);
    }
    __syncthreads();
    find_least(tile);
    __syncthreads();
    *last = find_hits(tile, tops, sums);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {  // whose group does not reach the last threshold is out
    if (!(earlier->tops[row] >= m.least[row * 8 + lane / 4])) {
      earlier->bits[row / 4] &= ~(0xffu << (row % 4 * 8));
    }
  }
}

// Calls fn(token, sub-key) for a lane's hits in a unit.
template <typename Fn>
__device__ inline void for_hits(const Hits& hits, int unit, Fn&& fn) {
  const int lane = threadIdx.x % 32;
  uint64_t bits = static_cast<uint64_t>(hits.bits[1]) << 32 | hits.bits[0];
#pragma unroll 1
  for (; bits != 0; bits &= bits - 1) {
    const int bit = __ffsll(static_cast<long long>(bits)) - 1, column = bit % kColumns;
    fn(bit / kColumns * 8 + lane / 4, unit * kUnit + column / 2 * 8 + lane % 4 * 2 + column % 2);
  }
}

}  // namespace fwpkm::tiles
