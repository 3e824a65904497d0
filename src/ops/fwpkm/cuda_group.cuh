// Reads grouped by slot, and selections by sub-key, so that every sum over a group has one owner
// and one order. Lists are sorted in tiles, a block for each, and tiles are merged by counting, for
// each element, what is smaller in the others.
#pragma once

#include "ops/common/carver.h"
#include "ops/fwpkm/cuda_call.cuh"

namespace fwpkm {

inline constexpr int kFwpkmTile = 4096;

// The groups of a chunk. An element is its id (slot or sub-key) in the upper half and its place in
// the lower one: token number times reads plus read, or token number times k plus rank.
struct FwpkmGroups {
  uint64_t *reads, *entries;           // lists of owners by slot, of codebooks by sub-key
  uint64_t *read_tiles, *entry_tiles;  // the same, sorted in tiles only
  int32_t *starts, *tile_starts;       // [books, n + 1], [books, tiles, n + 1]: in lists of entries

  // Where the entries of a sub-key begin in their codebook's list; id n: where the list ends.
  __device__ int start(const FwpkmCall& call, int book, int id) const {
    return starts[static_cast<int64_t>(book) * (call.n + 1) + id];
  }
};

inline __host__ __device__ int id_of(uint64_t element) {
  return static_cast<int>(element >> 32);
}
inline __host__ __device__ int place_of(uint64_t element) {
  return static_cast<int>(element & 0xffffffffu);
}

// The groups of one chunk at a time or of all chunks.
struct FwpkmLists {
  FwpkmGroups first;
  int read_tiles = 0, entry_tiles = 0;  // of the list of a whole chunk; 0: nobody wants such lists
  int slot_bits = 1, id_bits = 1;
  bool all = false;

  void take(Carver* carver, const FwpkmCall& call, bool by_slot, bool by_key, bool all_chunks);

  __host__ __device__ FwpkmGroups of(const FwpkmCall& call, const FwpkmSpan& span) const {
    FwpkmGroups g = first;
    if (all) {
      const int64_t tokens = static_cast<int64_t>(call.batch) * span.first;
      const int64_t starts = static_cast<int64_t>(span.number) * call.books * (call.n + 1);
      g.reads += tokens * call.reads;
      g.read_tiles += tokens * call.reads;
      g.entries += tokens * call.books * call.k;
      g.entry_tiles += tokens * call.books * call.k;
      g.starts += starts;
      g.tile_starts += starts * entry_tiles;
    }
    return g;
  }
  // Blocks that sort the tiles of a chunk.
  int tiles(const FwpkmCall& call) const {
    return call.owners * read_tiles + call.books * entry_tiles;
  }
};

// Merges the tiles of `chunks` chunks from `span` on.
void merge_tiles(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmSpan& span, int chunks);
// Sorts and merges all chunks.
void group_all(const FwpkmCall& call, const FwpkmLists& lists);

// One stable pass of a tile's sort by `bits` bits of ids from `shift` on: `order` are places in
// ids. Each warp counts the digits of its own stretch, in the order of the stretch; a sum over
// digits, then warps, says where each one puts its own.
inline constexpr int kFwpkmDigit = 6;
__device__ inline void sort_pass(const uint32_t* ids, const uint16_t* order, uint16_t* sorted,
                                 int count, int shift, int bits) {
  constexpr int kRounds = kFwpkmTile / kFwpkmThreads;
  constexpr int kCounts = kFwpkmWarps << kFwpkmDigit;
  static_assert(kCounts == 2 * kFwpkmThreads);
  __shared__ uint32_t counts[kCounts];
  __shared__ uint32_t totals[kFwpkmWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t lower = (1u << lane) - 1;
  counts[2 * threadIdx.x] = counts[2 * threadIdx.x + 1] = 0;
  __syncthreads();
  const auto digit_at = [&](int i) { return ids[order[i]] >> shift & ((1u << bits) - 1); };
  uint32_t ranks[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = (warp * kRounds + round) * 32 + lane;
    const bool here = i < count;
    const uint32_t digit = here ? digit_at(i) : 0;
    unsigned same = __ballot_sync(kWholeWarp, here);
    for (int bit = 0; bit < bits; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const unsigned mask = __ballot_sync(kWholeWarp, set);
      same &= set ? mask : ~mask;
    }
    uint32_t* counter = counts + digit * kFwpkmWarps + warp;
    const uint32_t before = *counter;
    ranks[round] = before + __popc(same & lower);
    __syncwarp();
    if (here && (same & lower) == 0) {
      *counter = before + __popc(same);
    }
    __syncwarp();
  }
  __syncthreads();
  const uint32_t a = counts[2 * threadIdx.x], b = counts[2 * threadIdx.x + 1];
  uint32_t sum = a + b;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    totals[warp] = sum;
  }
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    sum += totals[w];
  }
  counts[2 * threadIdx.x] = sum - a - b;
  counts[2 * threadIdx.x + 1] = sum - b;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = (warp * kRounds + round) * 32 + lane;
    if (i < count) {
      sorted[counts[digit_at(i) * kFwpkmWarps + warp] + ranks[round]] = order[i];
    }
  }
  __syncthreads();
}

// Sorts tile `index` of a chunk: those of the owners' lists come first. The work of a block.
__device__ inline void sort_tile(const FwpkmCall& call, const FwpkmLists& lists,
                                 const FwpkmSpan& span, int index) {
  __shared__ uint32_t ids[kFwpkmTile];
  __shared__ uint16_t orders[2][kFwpkmTile];
  const FwpkmGroups groups = lists.of(call, span);
  const bool by_slot = index < call.owners * lists.read_tiles;
  const int rest = by_slot ? index : index - call.owners * lists.read_tiles;
  const int tiles = by_slot ? lists.read_tiles : lists.entry_tiles;
  const int list = rest / tiles, tile = rest % tiles;
  const int length = by_slot ? span.count / call.owners * call.reads : span.count * call.k;
  const int begin = tile * kFwpkmTile, count = min(kFwpkmTile, length - begin);
  // A shorter chunk has fewer tiles; of those that are not there the starts count.
  const auto place_at = [&](int i) { return (by_slot ? list * length : 0) + begin + i; };
  for (int i = threadIdx.x; i < count; i += kFwpkmThreads) {
    const int place = place_at(i);
    if (by_slot) {
      ids[i] = call.slots[static_cast<int64_t>(span.token(place / call.reads)) * call.reads +
                          place % call.reads];
    } else {
      ids[i] =
          call.ids[(static_cast<int64_t>(span.token(place / call.k)) * call.books + list) * call.k +
                   place % call.k];
    }
    orders[0][i] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  const int all_bits = by_slot ? lists.slot_bits : lists.id_bits;
  const int passes = (all_bits + kFwpkmDigit - 1) / kFwpkmDigit;
  const int bits = (all_bits + passes - 1) / passes;
  for (int pass = 0; pass < passes && count > 0; ++pass) {
    sort_pass(ids, orders[pass % 2], orders[(pass + 1) % 2], count, pass * bits, bits);
  }
  const uint16_t* order = orders[passes % 2];
  uint64_t* to = by_slot ? groups.read_tiles + static_cast<int64_t>(list) * length + begin
                         : groups.entry_tiles + static_cast<int64_t>(list) * length + begin;
  for (int i = threadIdx.x; i < count; i += kFwpkmThreads) {
    to[i] = static_cast<uint64_t>(ids[order[i]]) << 32 | static_cast<uint32_t>(place_at(order[i]));
  }
  if (by_slot) {
    return;
  }
  int32_t* starts =
      groups.tile_starts + (static_cast<int64_t>(list) * lists.entry_tiles + tile) * (call.n + 1);
  for (int id = threadIdx.x; id <= call.n; id += kFwpkmThreads) {
    int low = 0, high = max(count, 0);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (static_cast<int>(ids[order[middle]]) < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[id] = low;
  }
}

}  // namespace fwpkm
