// Writing, after a chunk was read: new rows of values, moved sub-keys.
#pragma once

#include "ops/fwpkm/cuda_keys.cuh"
#include "ops/fwpkm/cuda_read.cuh"

namespace fwpkm {

// New rows of the slots that a chunk read; chains and shares of its reads.
void write_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                  const FwpkmFound& found);
// Moves the sub-keys in call.moved and renews their norms and packed copies; the addressing loss.
void move_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
               const FwpkmFound& found, const FwpkmMarginals& marginals,
               const FwpkmProducts& products);

}  // namespace fwpkm
