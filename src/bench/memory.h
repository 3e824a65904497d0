// Timing the fast-weight memory over tables of growing size: what a token costs must not grow with
// the number of slots.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/bench.h"

namespace fwpkm {

// Microseconds per token.
struct MemoryBenchRow {
  int64_t n_subkeys = 0;
  double read_us = 0;            // scores, selection and weighted sums of rows
  double write_us = 0;           // what writing adds: value rows and sub-keys
  double backward_us = 0;        // all of backward
  double value_write_us = 0;     // of write_us: errors, finding the slots touched, new rows
  double value_backward_us = 0;  // of backward_us: value writes and weighted sums
  // All of forward and of backward in a run that is not timed by parts: on a GPU parts then run
  // side by side.
  double whole_forward_us = 0, whole_backward_us = 0;
  double rss_mb =
      0;  // the process in memory once this size has run; of a GPU's memory, what it has
};

struct MemoryBenchOptions {
  std::vector<int64_t> subkeys = {256, 512, 1024, 2048};
  int runs = 21;  // timed runs of each size
  Device device = Device::cpu();
  // Sequences, each with a memory of its own, of the paper's sizes.
  int64_t batch = 1;
  bool shared = false;  // all sequences write one memory
  int64_t chunks = 8, chunk = 512, dk = 512, dv = 512;
  int32_t topk = 8, lookahead = 1;
};

// Whole forward and backward passes of the op, with queries near slots drawn at random from all.
// Sizes take turns. They share one table, of which a smaller size uses the front: memory is the
// largest one's. Fails if the op does not pass its checks or the table does not fit.
std::vector<MemoryBenchRow> bench_memory(const MemoryBenchOptions& options,
                                         const BenchProgress& progress);

}  // namespace fwpkm
