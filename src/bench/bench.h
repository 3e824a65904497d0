// Timing whole models, always beside the ceiling measured in the same run.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/pool.h"
#include "tensor/profile.h"

namespace fwpkm {

struct TrainBenchRow {
  std::string name;
  double step_ms = 0;  // median full step: forward, backward, clipping, optimizer
  double tokens_per_second = 0, samples_per_second = 0;
  double model_gflops = 0;  // the paper's FLOP count over the median step
  double gemm_gflops = 0;   // best of 20 on the model's own product shapes, same threads and type
  double copy_gbps = 0;     // of a GPU: bytes read and written by a large copy
  double fraction_of_gemm = 0;
  std::map<std::string, OpTime> op_times;  // per step, by op; "optimizer" too
  double peak_mb = 0;  // most memory held at once: weights, optimizer, activations
};

struct TrainBenchOptions {
  int64_t batch = 1;
  int64_t seq = 2048;
  int steps = 5;
  Device device = Device::cpu();
  bool profile = false;  // on a GPU op_times take steps of their own
};

// Told what is being done, and how much of it is done (0 to 1).
using BenchProgress = std::function<void(const std::string& what, double done)>;

// Models take turns, so that noise of the machine hits all alike: on a CPU for a step, on a GPU,
// where steps pay for what the ones before drew, for half of theirs, after some that do not count.
std::vector<TrainBenchRow> bench_train(const std::vector<ModelConfig>& configs,
                                       const TrainBenchOptions& options,
                                       const BenchProgress& progress);

struct DecodeBenchRow {
  std::string name;
  double tokens_per_second = 0;       // by the median token
  double mean_tokens_per_second = 0;  // by all: also those after which memories write
  double weight_bytes = 0;            // read for each token
  double read_gbps = 0;               // what the machine reads at best, measured in between
  double fraction_of_read = 0;
};

// One token at a time. The weights' bytes per token against the read bandwidth of the same run.
DecodeBenchRow bench_decode(const ModelConfig& config, int tokens, Device device,
                            const BenchProgress& progress);

struct StreamBenchOptions {
  int64_t batch = 1;
  int64_t tokens = 4096;  // of each stream in a piece
  int pieces = 8;
  Device device = Device::cpu();
};
struct StreamBenchRow {
  std::string name;
  double piece_ms = 0;  // median: forward on top of the streams' states, and all losses on the host
  double tokens_per_second = 0;
};

// Streams read piece by piece, as evaluations do.
StreamBenchRow bench_stream(const ModelConfig& config, const StreamBenchOptions& options,
                            const BenchProgress& progress);

// Bytes per second that all threads together read from a buffer of this size.
double read_bandwidth(size_t bytes, int repeats);

}  // namespace fwpkm
