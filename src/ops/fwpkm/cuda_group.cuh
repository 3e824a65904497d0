// Reads grouped by slot, and selections by sub-key, so that every sum over a group has one owner
// and one order. Lists of reads are sorted in tiles, a block for each, and tiles are merged by
// counting, for each element, what is smaller in all of them.
#pragma once

#include "ops/common/carver.h"
#include "ops/fwpkm/cuda_tally.cuh"

namespace fwpkm {

inline constexpr int kFwpkmTile = 2048;

// The groups of a chunk. An element is its id (slot or sub-key) in the upper half and its place in
// the lower one: token number times reads plus read, or token number times k plus rank.
struct FwpkmGroups {
  uint64_t *reads, *entries;  // lists of owners by slot, of codebooks by sub-key
  uint64_t* read_tiles;       // lists of owners, sorted in tiles only
  int32_t* starts;            // [books, n + 1]: in lists of entries
  int32_t* read_starts;  // [owners, tiles, n + 1]: in tiles of reads, by the slots' first sub-key

  // Where the entries of a sub-key begin in their codebook's list; id n: where the list ends.
  __device__ int start(const FwpkmCall& call, int book, int id) const {
    return starts[static_cast<int64_t>(book) * (call.n + 1) + id];
  }
};

inline __host__ __device__ uint64_t element_of(int id, int place) {
  return static_cast<uint64_t>(id) << 32 | static_cast<uint32_t>(place);
}
inline __host__ __device__ int id_of(uint64_t element) {
  return static_cast<int>(element >> 32);
}
inline __host__ __device__ int place_of(uint64_t element) {
  return static_cast<int>(element & 0xffffffffu);
}

// What forward leaves to backward (FwpkmSaved::groups), of all chunks: sorted lists and, with the
// addressing loss, p and the marginals. FwpkmSizes::group_bytes is how much that is.
struct FwpkmKept {
  uint64_t *reads, *entries;  // as in FwpkmGroups
  int32_t* starts;
  float *p, *pbar, *slope;  // as in FwpkmMarginals; null without the addressing loss

  FwpkmKept(Carver* carver, const FwpkmCall& call);
};

// The groups of all chunks.
struct FwpkmLists {
  FwpkmGroups first;
  int read_tiles = 0;  // of the list of a whole chunk
  int slot_bits = 1;

  // Takes nothing to sort with if `sorted`.
  void take(Carver* carver, const FwpkmCall& call, const FwpkmKept& kept, bool sorted);

  __host__ __device__ FwpkmGroups of(const FwpkmCall& call, const FwpkmSpan& span) const {
    FwpkmGroups g = first;
    const int64_t tokens = static_cast<int64_t>(call.batch) * span.first;
    g.reads += tokens * call.reads;
    g.read_tiles += tokens * call.reads;
    g.entries += tokens * call.books * call.k;
    g.starts += static_cast<int64_t>(span.number) * call.books * (call.n + 1);
    g.read_starts += static_cast<int64_t>(span.number) * call.owners * read_tiles * (call.n + 1);
    return g;
  }
};

// The marginals of a chunk's selections, found while those are grouped; none without p.
struct FwpkmMarginals {
  float* p;             // softmax over the selected sub-scores, of all tokens
  float *pbar, *slope;  // [marginals, n]: the mean, and the slope of p log(p + eps)

  // Those of a chunk, from those of the first.
  FwpkmMarginals of(const FwpkmCall& call, const FwpkmSpan& span) const {
    const int64_t before = p == nullptr ? 0 : int64_t{span.number} * call.marginals * call.n;
    return {p, pbar + before, slope + before};
  }
};

// Sorts a chunk's reads by slot.
void group_reads(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmSpan& span);
// Groups its selections, which were counted, by sub-key, and finds the marginals if there is p.
// `next`: right after another kernel on the same stream (launch_next).
void group_selections(const FwpkmCall& call, const FwpkmGroups& groups, const FwpkmSpan& span,
                      const FwpkmTally& tally, const FwpkmMarginals& marginals, bool next);

}  // namespace fwpkm
