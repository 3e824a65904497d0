// Writing, after a chunk was read: new rows of values, moved sub-keys.
#pragma once

#include "ops/fwpkm/cuda_keys.cuh"
#include "ops/fwpkm/cuda_read.cuh"

namespace fwpkm {

// Of the keys of a chunk.
struct FwpkmKeyWork {
  FwpkmMarginals marginals;  // with the addressing loss
  float* parts;              // [books, key_part_rows, half]

  // The same for a chunk: marginals of all lie one after the other.
  FwpkmKeyWork of(const FwpkmCall& call, const FwpkmSpan& span) const {
    FwpkmKeyWork chunk = *this;
    if (chunk.marginals.p != nullptr) {
      const int64_t before = int64_t{span.number} * call.marginals * call.n;
      chunk.marginals.pbar += before;
      chunk.marginals.slope += before;
    }
    return chunk;
  }
};

// New rows of the slots that a chunk read; chains and shares of its reads.
void write_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                  const FwpkmFound& found);
// Moves the sub-keys in call.moved and renews their norms and packed copies; the addressing loss.
void move_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
               const FwpkmFound& found, const FwpkmKeyWork& keys, const FwpkmProducts& products);

}  // namespace fwpkm
