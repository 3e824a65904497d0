// Reading: products propose sub-keys, direct differences decide, rows of values are added up.
#pragma once

#include "ops/common/carver.h"
#include "ops/fwpkm/cuda_group.cuh"

namespace fwpkm {

// What a chunk's tokens are to write, and what else its reads leave for the write. Arrays by read
// number are [chunk's tokens, reads]; those of all tokens are [B*T, books, k].
struct FwpkmFound {
  void* errors;         // [chunk's tokens, dv]: e of writing tokens, of v's type
  float* coefficients;  // -eta g w of their reads, by read number
  float* along;         // <e, V>, by read number; where the memory loss moves the keys
  float* push;          // score gradients that move the keys, of all; with the memory loss
};

// Where one kernel multiplies and selects, a warp multiplies kFwpkmTileTokens queries by kFwpkmUnit
// sub-keys at a time. Packed sub-keys lie in the order in which its lanes want them: units, then
// steps of kFwpkmStep columns, then groups of 8 sub-keys, and there a lane for each sub-key and 4
// columns of the step's first half, which also has those 4 of its second half.
inline constexpr int kFwpkmUnit = 32, kFwpkmStep = 32;

// Memory for products of queries and sub-keys.
struct FwpkmProducts {
  int tokens = 0;        // of each row that are multiplied at a time
  int padded = 0;        // n, a multiple of 8, or of kFwpkmUnit
  int depth = 0;         // numbers that a packed row has, a multiple of 8
  float* products;       // [books, tokens, padded]
  float* norms;          // [books, padded]: |K|^2
  bf16 *queries, *keys;  // packed: [books, tokens, depth], [books, padded, depth]
  uint64_t* lists;       // for lists that shared memory has no room for
  bool tiled;            // one kernel multiplies and selects; `keys` lie as it wants them
  int* arrivals;         // its codebooks of a head that are done, for each tile of tokens

  void take(Carver* carver, const FwpkmCall& call);

  // Tiles of the longest chunk, each head its own.
  __host__ __device__ int tiles(const FwpkmCall& call) const {
    return tiles_of(FwpkmSpan(call, 0)) * call.heads;
  }
  // Packs numbers of a sub-key from column c on.
  template <int kRun>
  __device__ void pack_key(const FwpkmCall& call, int book, int id, int c,
                           const float (&x)[kRun]) const {
    const int64_t before = int64_t{book} * padded * depth;
    if constexpr (kRun == 4) {
      if (tiled) {
        const int64_t step = int64_t{id / kFwpkmUnit} * (call.half / kFwpkmStep) + c / kFwpkmStep;
        const int64_t lane = (step * 4 + id % kFwpkmUnit / 8) * 32 + id % 8 * 4 + c % 16 / 4;
        store_wide(keys + before + lane * 8 + c % kFwpkmStep / 16 * 4, x);
        return;
      }
    }
    store_wide(keys + before + int64_t{id} * depth + c, x);
  }
};

// Selects the slots of a chunk's tokens: ids, picks, slots, scores, and in `weights` the sums of
// scores. If given, p is filled and selections are counted. `new_keys`: norms and packed keys are
// not there yet.
void select_slots(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span,
                  bool new_keys, float* p, const FwpkmTally& tally);
// Weights, sources and chains of reads; y, losses, and what is to be written.
void read_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found, float step);
// Of backward, where the memory loss moves the keys: errors, `along` and the pushes again.
void find_pushes(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found);

}  // namespace fwpkm
