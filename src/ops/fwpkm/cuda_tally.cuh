// What tiles of tokens selected: how often each sub-key, and which of a tile's tokens came first.
// With that alone every selection knows its place in its sub-key's list, and nothing has to be
// sorted.
#pragma once

#include "ops/fwpkm/cuda_call.cuh"

namespace fwpkm {

inline constexpr int kFwpkmTileTokens = 64;

inline __host__ __device__ int tiles_of(const FwpkmSpan& span) {
  return (span.count + kFwpkmTileTokens - 1) / kFwpkmTileTokens;
}

// Of a chunk.
struct FwpkmTally {
  uint8_t* counts;  // [books, tiles, n]: tokens of a tile that selected a sub-key
  uint8_t* before;  // [tokens, books, k]: earlier ones of the tile that selected the same
  // [marginals, n]: of p, if that is wanted, in fixed point: any order gives the same sum. Zero
  // before each chunk.
  unsigned long long* sums;

  static constexpr double kUnit = 0x1.0p-40;  // of a sum

  // Token i of a tile selected a sub-key. `masks`: of the tile, zero at first, [n].
  __device__ void add(const FwpkmCall& call, int book, int i, int id, float p,
                      unsigned long long* masks) const {
    atomicOr(masks + id, 1ull << i);
    if (sums != nullptr) {
      atomicAdd(sums + book % call.marginals * call.n + id,
                static_cast<unsigned long long>(p * static_cast<float>(1 / kUnit)));
    }
  }
  // All of tile `number` have been added, and all threads know; id_of(i, r) is what token i
  // selected. The work of a block.
  template <typename IdOf>
  __device__ void store(const FwpkmCall& call, const FwpkmSpan& span, int book, int number,
                        const unsigned long long* masks, IdOf&& id_of) const {
    uint8_t* to = counts + (static_cast<int64_t>(book) * tiles_of(span) + number) * call.n;
    for (int id = threadIdx.x; id < call.n; id += kFwpkmThreads) {
      to[id] = static_cast<uint8_t>(__popcll(masks[id]));
    }
    const int first = number * kFwpkmTileTokens;
    const int selections = min(kFwpkmTileTokens, span.count - first) * call.k;
    for (int s = threadIdx.x; s < selections; s += kFwpkmThreads) {
      const int i = s / call.k, r = s % call.k;
      before[selections_at(call, first + i, book) + r] =
          static_cast<uint8_t>(__popcll(masks[id_of(i, r)] & ((1ull << i) - 1)));
    }
  }
};

// The same for selections that are in memory.
void tally_selections(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmTally& tally,
                      const float* p);

}  // namespace fwpkm
