#include "bench/bench.h"

#include <cmath>
#include <memory>

#include "base/parallel.h"
#include "base/random.h"
#include "base/timer.h"
#include "bench/products.h"
#include "model/cost.h"
#include "model/model.h"
#include "train/step.h"

namespace fwpkm {
namespace {

constexpr int kProductRepeats = 20;

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream) {
  const Random random(7, stream);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(random.uniform_at(i) * static_cast<double>(vocab));
  }
  return tokens;
}

// A model in training, as one contestant.
struct Contestant {
  Contestant(const ModelConfig& config, Device device)
      : model(config, device, true), pool(device), optimizer(&model.parameters()) {
    model.parameters().initialize(1);
  }
  Model model;
  Pool pool;
  AdamW optimizer;
  std::vector<double> times;
  std::map<std::string, OpTime> op_times;  // of all timed steps together
};

}  // namespace

std::vector<TrainBenchRow> bench_train(const std::vector<ModelConfig>& configs,
                                       const TrainBenchOptions& options,
                                       const BenchProgress& progress) {
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const ModelConfig& config : configs) {
    contestants.push_back(std::make_unique<Contestant>(config, options.device));
  }
  const int rounds = options.steps + 1;  // the first warms up
  for (int round = 0; round < rounds; ++round) {
    for (size_t c = 0; c < contestants.size(); ++c) {
      Contestant& who = *contestants[c];
      const ModelConfig& config = who.model.config();
      progress(fmt::format("{}: step {} of {}", config.name, round, options.steps),
               (round + static_cast<double>(c) / static_cast<double>(contestants.size())) /
                   (rounds + 1));
      AdamWSettings settings;
      settings.lr = config.train.min_lr;
      const auto tokens = random_tokens(options.batch * (options.seq + 1), config.vocab_size,
                                        static_cast<uint64_t>(round));
      const Profile profile;
      const double start = now_seconds();
      const StepResult step = train_step(who.model, who.pool, who.optimizer, tokens, options.batch,
                                         options.seq, settings, config.train.clip);
      require(std::isfinite(step.loss), "bench", "{}: the loss is not finite", config.name);
      if (round > 0) {
        who.times.push_back(now_seconds() - start);
        for (const auto& [name, time] : profile.times()) {
          OpTime& total = who.op_times[name];
          total.forward_ms += time.forward_ms;
          total.backward_ms += time.backward_ms;
          total.calls += time.calls;
        }
      }
    }
  }

  std::vector<TrainBenchRow> rows;
  for (size_t c = 0; c < contestants.size(); ++c) {
    Contestant& who = *contestants[c];
    const ModelConfig& config = who.model.config();
    progress(
        fmt::format("{}: products alone", config.name),
        (rounds + static_cast<double>(c) / static_cast<double>(contestants.size())) / (rounds + 1));
    const int64_t tokens = options.batch * options.seq;
    TrainBenchRow row;
    row.name = config.name;
    const double seconds = median(who.times);
    row.step_ms = seconds * 1e3;
    row.tokens_per_second = static_cast<double>(tokens) / seconds;
    row.model_gflops =
        static_cast<double>(count_cost(config, options.batch, options.seq).flops) / seconds / 1e9;
    row.gemm_gflops = best_product_rate(training_products(config, tokens), kProductRepeats);
    row.fraction_of_gemm = row.model_gflops / row.gemm_gflops;
    const Parameters& p = who.model.parameters();
    row.peak_mb = static_cast<double>(p.value_bytes() + p.gradient_bytes() + who.optimizer.bytes() +
                                      who.pool.held_bytes()) /
                  (1 << 20);
    for (const auto& [name, total] : who.op_times) {
      const double steps = options.steps;
      row.op_times[name] = {total.forward_ms / steps, total.backward_ms / steps,
                            total.calls / options.steps};
    }
    rows.push_back(row);
  }
  progress("done", 1);
  return rows;
}

double read_bandwidth(size_t bytes, int repeats) {
  const size_t words = bytes / sizeof(uint64_t);
  std::vector<uint64_t> buffer(words);
  parallel_ranges(static_cast<int64_t>(words), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      buffer[static_cast<size_t>(i)] = static_cast<uint64_t>(i);
    }
  });
  double best = 0;
  std::vector<uint64_t> sums(static_cast<size_t>(threads()) * 8);  // a cache line for each
  for (int r = 0; r < repeats; ++r) {
    const double start = now_seconds();
    parallel_ranges(static_cast<int64_t>(words), 4096, [&](int64_t begin, int64_t end) {
      // Independent sums, so that additions never wait for each other.
      uint64_t sum[32] = {};
      int64_t i = begin;
      for (; i + 32 <= end; i += 32) {
        for (int j = 0; j < 32; ++j) {
          sum[j] += buffer[static_cast<size_t>(i + j)];
        }
      }
      for (int j = 1; j < 32; ++j) {
        sum[0] += sum[j];
      }
      sums[static_cast<size_t>(thread_index()) * 8] += sum[0];
    });
    best = std::max(best, static_cast<double>(words * sizeof(uint64_t)) / (now_seconds() - start));
  }
  volatile uint64_t sink = sums[0];
  static_cast<void>(sink);
  return best;
}

DecodeBenchRow bench_decode(const ModelConfig& config, int tokens, Device device,
                            const BenchProgress& progress) {
  Model model(config, device, false);
  model.parameters().initialize(1);
  Pool pool(device);
  Run run(pool);
  State state = model.start(run);
  ForwardOptions options;
  options.states = {&state};
  const auto stream = random_tokens(tokens + 8, config.vocab_size, 0);
  std::vector<double> times;
  double bandwidth = 0;
  for (int i = 0; i < tokens + 8; ++i) {
    if (i % 16 == 8) {
      bandwidth = std::max(bandwidth, read_bandwidth(size_t{512} << 20, 2));
      progress(fmt::format("{}: token {} of {}", config.name, i - 8, tokens),
               static_cast<double>(i) / (tokens + 8));
    }
    const double start = now_seconds();
    const int32_t token[] = {stream[static_cast<size_t>(i)]};
    const Tensor input = run.from_host("token", {1, 1}, token);
    const Tensor logits = model.logits(run, model.hidden(run, input, options));
    const double first = to_host(logits.view().slice(2, 0, 1))[0];
    require(std::isfinite(first), "bench", "the logits are not finite");
    if (i >= 8) {
      times.push_back(now_seconds() - start);
    }
  }
  progress("done", 1);
  DecodeBenchRow row;
  row.name = config.name;
  const double seconds = median(times);
  row.tokens_per_second = 1 / seconds;
  // All weights but the rows of value tables that the token did not choose.
  const Cost cost = count_cost(config, 1, 1);
  row.weight_bytes = static_cast<double>(cost.active_params) * sizeof(float);
  row.read_gbps = bandwidth / 1e9;
  row.fraction_of_read = row.weight_bytes / seconds / bandwidth;
  return row;
}

}  // namespace fwpkm
