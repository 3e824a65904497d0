// Sums over the selections of a block's sub-keys on tensor cores, for queries in bf16. Queries come
// to shared memory in the order of the list, some at a time. What they are multiplied by is split
// into two numbers of 16 bits each, whose sum has twice as many digits as they have themselves.
//
// There is one block for an SM, so that other kernels find room beside it.
#pragma once

#include "ops/common/mma.cuh"
#include "ops/fwpkm/cuda_keys.cuh"

namespace fwpkm {

inline constexpr int kKeyOwn = 8;               // sub-keys of a block, one for each warp
inline constexpr int kKeyColumns = 256;         // that they have, at most
inline constexpr int kKeyLd = kKeyColumns + 8;  // of rows in shared memory
inline constexpr int kKeyStage = 64;            // queries that come together
inline constexpr int kKeyStages = 3;            // that are there or on their way
inline constexpr int kKeyRound = 1024;          // selections that are looked up together
// Of a matrix with the parts of numbers: part p of sub-key d is row p * kKeyOwn + d.
inline constexpr int kKeyRows = 2 * kKeyOwn;
static_assert(kKeyOwn == kFwpkmWarps && kKeyRows == 16 && kKeyColumns == 32 * kFwpkmWarps);

// Whether queries can be taken that way, by blocks with that much shared memory.
inline bool in_key_tiles(const FwpkmCall& call, size_t bytes) {
  return call.narrow && call.wide && call.half % 32 == 0 && call.half <= kKeyColumns &&
         reinterpret_cast<uintptr_t>(call.q) % 16 == 0 && bytes <= most_shared_memory();
}

// Puts the parts of a number into column `c` of a matrix for sub-key d, and zeros for the others.
template <int kLd>
__device__ inline void put_parts(bf16 (&rows)[kKeyRows][kLd], int c, int d, float x) {
  const bf16 upper = from_float<bf16>(x), lower = from_float<bf16>(x - to_float(upper));
#pragma unroll
  for (int own = 0; own < kKeyOwn; ++own) {
    rows[own][c] = own == d ? upper : from_float<bf16>(0);
    rows[kKeyOwn + own][c] = own == d ? lower : from_float<bf16>(0);
  }
}
// The parts of four numbers, from column `c` on, of sub-key d.
template <int kLd>
__device__ inline void put_run_parts(bf16 (&rows)[kKeyRows][kLd], int c, int d, float (&x)[4]) {
  store_run(&rows[d][c], x);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] -= to_float(from_float<bf16>(x[i]));
  }
  store_run(&rows[kKeyOwn + d][c], x);
}

// Selections of a block that are looked up together: `count` of a codebook's list from `first` on.
struct KeyRound {
  int first, count, end;

  __device__ KeyRound(const OwnSelections& all, int begin)
      : first(begin), count(min(kKeyRound, all.end - begin)), end(all.end) {}
  __device__ int stages() const { return (count + kKeyStage - 1) / kKeyStage; }
  __device__ bool last() const { return first + count >= end; }
  // Selections of a stage.
  __device__ int in_stage(int stage) const { return min(kKeyStage, count - stage * kKeyStage); }
  // Calls fn(number in the round, selection), for as many as products take; not all may be here.
  template <typename Fn>
  __device__ void each(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       int book, Fn&& fn) const {
    for (int i = threadIdx.x; i < (count + 15) / 16 * 16; i += kFwpkmThreads) {
      fn(i, Selection(call, span, groups, book, first + i, end));
    }
  }
};

// Queries in shared memory: some stages are on their way while one is used.
struct KeyQueries {
  bf16 rows[kKeyStages][kKeyStage][kKeyLd];

  // Starts to fetch a stage of a round with `count` tokens. `number` counts all stages of a kernel.
  // Each call is a group of copies, even if nothing is left. The work of a block.
  __device__ void fetch(const FwpkmCall& call, int book, const int* tokens, int count, int stage,
                        int number) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (stage * kKeyStage < count && lane * 8 < call.half) {
      bf16* to = &rows[number % kKeyStages][warp][lane * 8];
      const bf16* q = static_cast<const bf16*>(call.q) + book * call.half + lane * 8;
#pragma unroll
      for (int u = 0; u < kKeyStage / kFwpkmWarps; ++u) {
        const int i = stage * kKeyStage + u * kFwpkmWarps + warp;
        const bool there = i < count;
        const int64_t row = static_cast<int64_t>(tokens[there ? i : 0]) * call.row;
        copy_async(to + u * kFwpkmWarps * kKeyLd, q + row, there);
      }
    }
    commit_copies();
  }
  __device__ const bf16 (&stage(int number) const)[kKeyStage][kKeyLd] {
    return rows[number % kKeyStages];
  }
};

// Uses `stages` stages, of which the first kKeyStages - 1 are being fetched: fetch(s) starts number
// s, where those past the end belong to whatever comes next; use(s) is called when it is there. The
// work of a block.
template <typename Fetch, typename Use>
__device__ inline void walk_stages(int stages, Fetch&& fetch, Use&& use) {
  for (int s = 0; s < stages; ++s) {
    wait_copies<kKeyStages - 2>();
    __syncthreads();
    fetch(s + kKeyStages - 1);  // where the one before was, which all have used
    use(s);
  }
}

// What the queries of a round are multiplied by, and sums of it.
struct KeyFactors {
  bf16 rows[kKeyRows][kKeyRound + 8];
  float scales[kKeyRound], extras[kKeyRound];

  __device__ void put(int i, int d, const SelectionScale& by) {
    put_parts(rows, i, d, by.scale);
    scales[i] = by.scale;
    extras[i] = by.extra;
  }
  // Adds those of selections begin..end of the round; the work of a warp.
  __device__ void add_up(int begin, int end, SelectionScale* sums) const {
    SelectionScale some{};
    for (int i = begin + static_cast<int>(threadIdx.x % 32); i < end; i += 32) {
      some.scale += scales[i];
      some.extra += extras[i];
    }
    sums->scale += warp_sum(some.scale);
    sums->extra += warp_sum(some.extra);
  }
};

// The sums of a block's sub-keys over scale * q. Each warp has 32 columns, if there are as many.
struct KeySums {
  float parts[4][4] = {};

  // Adds a stage of `count` selections from number `first` of the round on.
  __device__ void add(const bf16 (&queries)[kKeyStage][kKeyLd], const KeyFactors& factors,
                      int first, int count, int half) {
    const int column = static_cast<int>(threadIdx.x / 32) * 32;
    for (int i = 0; i < count && column < half; i += 16) {
      uint32_t a[4];
      load_a(a, &factors.rows[0][first + i], kKeyRound + 8);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        uint32_t b[4];
        load_b(b, &queries[i][column + u * 16], kKeyLd);
        mma(parts[2 * u], a, b[0], b[1]);
        mma(parts[2 * u + 1], a, b[2], b[3]);
      }
    }
  }
  // Brings the parts together.
  __device__ void store(float (&sums)[kKeyOwn][kKeyColumns]) const {
    const int column = static_cast<int>(threadIdx.x / 32) * 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      *reinterpret_cast<float2*>(&sums[lane / 4][column + u * 8 + lane % 4 * 2]) = {
          parts[u][0] + parts[u][2], parts[u][1] + parts[u][3]};
    }
  }
};

}  // namespace fwpkm
