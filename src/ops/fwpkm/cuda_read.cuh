// Reading: products propose sub-keys, direct differences decide, rows of values are added up.
#pragma once

#include "ops/common/carver.h"
#include "ops/fwpkm/cuda_group.cuh"

namespace fwpkm {

// What a chunk's tokens are to write, and what else its reads leave for the write. Arrays by read
// number are [chunk's tokens, reads]; those of all tokens are [B*T, books, k].
struct FwpkmFound {
  float* errors;        // [chunk's tokens, dv]: e of writing tokens
  float* coefficients;  // -eta g w of their reads, by read number
  float* along;         // <e, V>, by read number; where the memory loss moves the keys
  float* p;             // softmax over the selected sub-scores, of all; with the addressing loss
  float* push;          // score gradients that move the keys, of all; with the memory loss
};

// Memory for products of queries and sub-keys.
struct FwpkmProducts {
  int tokens = 0;        // of each row that are multiplied at a time
  int padded = 0;        // n, a multiple of 8
  int depth = 0;         // numbers that a packed row has, a multiple of 8
  float* products;       // [books, tokens, padded]
  float* norms;          // [books, padded]: |K|^2
  bf16 *queries, *keys;  // packed: [books, tokens, depth], [books, padded, depth]
  bool all_queries;      // those of all tokens have a place
  uint64_t* lists;       // for lists that shared memory has no room for

  void take(Carver* carver, const FwpkmCall& call);

  // The tokens that are multiplied together with number `at` of a chunk.
  __host__ __device__ FwpkmSpan part(const FwpkmCall& call, const FwpkmSpan& span, int at) const {
    const int begin = at / tokens * tokens, end = begin + tokens;
    return span.part(call, begin, end < span.length ? end : span.length);
  }
  // The packed queries of such a part.
  __host__ __device__ bf16* queries_of(const FwpkmCall& call, const FwpkmSpan& part) const {
    const int64_t before = all_queries ? int64_t{call.batch} * part.first * call.books : 0;
    return queries + before * depth;
  }
};

// Packs some numbers of a sub-key: as the sum of two bf16 numbers, the second ones `half` further.
template <int kRun>
__device__ inline void pack_run(const float (&x)[kRun], bf16* to, int half) {
  float high[kRun], low[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    high[i] = to_float(from_float<bf16>(x[i]));
    low[i] = x[i] - high[i];
  }
  store_wide(to, high);
  store_wide(to + half, low);
}

// Packs the queries of chunks first..end if all have a place.
void pack_queries(const FwpkmCall& call, const FwpkmProducts& work, int first, int end);
// Selects the slots of a chunk's tokens: ids, picks, slots, scores, and in `weights` the sums of
// scores. p is filled if given. `new_keys`: norms and packed keys are not there yet.
void select_slots(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span,
                  bool new_keys, float* p);
// Weights, sources and chains of reads; y, losses, and what is to be written.
void read_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found, float step);
// Of backward, where the memory loss moves the keys: errors, `along` and the pushes again.
void find_pushes(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found);

}  // namespace fwpkm
