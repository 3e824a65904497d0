// What keeping a running model costs: saving, restoring and forking it.
#pragma once

#include <cstdint>

#include "bench/bench.h"

namespace fwpkm {

// Bytes, and medians of milliseconds.
struct SessionBenchRow {
  double row_bytes = 0;      // value rows that the memories wrote
  double fixed_bytes = 0;    // state that does not grow with what was written
  double history_bytes = 0;  // what is kept of the text
  double file_bytes = 0;
  double save_ms = 0, restore_ms = 0, fork_ms = 0;
  double token_ms = 0;        // a token drawn and read
  double first_token_ms = 0;  // the same, the first after a restore
  double fork_bytes = 0;      // what the process grew by for each fork that read a token
};

struct SessionBenchOptions {
  int64_t tokens = 4096;  // read before
  int repeats = 20;
  int forks = 100;
  Device device = Device::cpu();
};

// A model with random weights reads random tokens; then its state is kept in every way. The file
// goes to the folder for temporary files and is removed.
SessionBenchRow bench_session(const ModelConfig& config, const SessionBenchOptions& options,
                              const BenchProgress& progress);

}  // namespace fwpkm
