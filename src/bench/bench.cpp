#include "bench/bench.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "base/parallel.h"
#include "base/random.h"
#include "base/timer.h"
#include "bench/gpu.h"
#include "bench/products.h"
#include "model/cost.h"
#include "model/model.h"
#include "model/token_graph.h"
#include "ops/lm_loss/lm_loss.h"
#include "train/gpu_steps.h"
#include "train/memory_plan.h"
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

bool on_gpu(Device device) {
  return device.kind == DeviceKind::kCuda;
}

// A model in training, as one contestant.
struct Contestant {
  Contestant(const ModelConfig& config, const TrainBenchOptions& options)
      : model(config, options.device, true, false, nullptr,
              room_beside(config, options.device, options.batch, options.seq)),
        pool(options.device),
        optimizer(&model.parameters(), true) {
    model.parameters().initialize(1);
    queue(true);
  }
  // Steps from now on as graphs, or kernel by kernel.
  void queue(bool graphs) {
    gpu.reset();
    if (GpuSteps::can(model)) {
      gpu = std::make_unique<GpuSteps>(model, optimizer, graphs);
    }
  }
  StepResult step(const TrainBenchOptions& options, int round) {
    const ModelConfig& config = model.config();
    AdamWSettings settings;
    settings.lr = config.train.min_lr;
    const auto tokens = random_tokens(options.batch * (options.seq + 1), config.vocab_size,
                                      static_cast<uint64_t>(round));
    if (!gpu) {
      return train_step(model, pool, optimizer, tokens, options.batch, options.seq, settings,
                        config.train.clip);
    }
    gpu->accumulate(tokens, options.batch, options.seq, 1);
    gpu->update(settings, config.train.clip);
    return gpu->finish();
  }
  size_t held_bytes() const { return pool.held_bytes() + (gpu ? gpu->held_bytes() : 0); }

  Model model;
  Pool pool;
  AdamW optimizer;
  std::unique_ptr<GpuSteps> gpu;
  int taken = 0;  // steps
  std::vector<double> times;
  std::map<std::string, OpTime> op_times;  // of all timed steps together
  int profiled = 0;
};

// How models take turns. On a CPU each has a step at a time, so that noise of the machine hits all
// alike. A GPU is at its power limit: what a step takes depends on what the one before drew, so
// there a model has several at a time, of which the first do not count.
struct Turns {
  int steps, count;
  bool gpu;

  Turns(int timed_steps, bool on_gpu)
      : steps(timed_steps), count(on_gpu ? std::min(2, timed_steps) : timed_steps), gpu(on_gpu) {}
  int timed(int turn) const {
    return static_cast<int>(int64_t{steps} * (turn + 1) / count - int64_t{steps} * turn / count);
  }
  // At first on a GPU: memory, recording, the first replay.
  int lead(int turn) const {
    constexpr int kSettling = 8;
    const int fresh = turn > 0 ? 0 : gpu ? 3 : 1;
    return fresh + (gpu ? kSettling : 0);
  }
  int all_steps() const {
    int sum = 0;
    for (int turn = 0; turn < count; ++turn) {
      sum += lead(turn) + timed(turn);
    }
    return sum;
  }
};

void add_times(const Profile& profile, Contestant* who) {
  ++who->profiled;
  for (const auto& [name, time] : profile.times()) {
    OpTime& total = who->op_times[name];
    total.forward_ms += time.forward_ms;
    total.backward_ms += time.backward_ms;
    total.calls += time.calls;
  }
}

}  // namespace

std::vector<TrainBenchRow> bench_train(const std::vector<ModelConfig>& configs,
                                       const TrainBenchOptions& options,
                                       const BenchProgress& progress) {
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const ModelConfig& config : configs) {
    contestants.push_back(std::make_unique<Contestant>(config, options));
  }
  const bool gpu = on_gpu(options.device);
  const Turns turns(options.steps, gpu);
  const double all = static_cast<double>(contestants.size()) * turns.all_steps();
  int done = 0;
  for (int turn = 0; turn < turns.count; ++turn) {
    for (const auto& contestant : contestants) {
      Contestant& who = *contestant;
      const std::string& name = who.model.config().name;
      const int lead = turns.lead(turn);
      for (int i = 0; i < lead + turns.timed(turn); ++i) {
        const size_t timed = who.times.size() + (i >= lead ? 1 : 0);
        progress(fmt::format("{}: step {} of {}", name, timed, options.steps),
                 done / (all * (1 + 1.0 / turns.count)));
        const Profile profile;
        const double start = now_seconds();
        const StepResult step = who.step(options, who.taken++);
        require(std::isfinite(step.loss), "bench", "{}: the loss is not finite", name);
        ++done;
        if (i >= lead) {
          who.times.push_back(now_seconds() - start);
          if (!gpu) {
            add_times(profile, &who);
          }
        }
      }
    }
  }

  std::vector<TrainBenchRow> rows;
  for (size_t c = 0; c < contestants.size(); ++c) {
    Contestant& who = *contestants[c];
    const ModelConfig& config = who.model.config();
    const double parts = static_cast<double>(turns.count) + 1;
    progress(
        fmt::format("{}: products alone", config.name),
        (turns.count + static_cast<double>(c) / static_cast<double>(contestants.size())) / parts);
    const int64_t tokens = options.batch * options.seq;
    TrainBenchRow row;
    row.name = config.name;
    const Parameters& p = who.model.parameters();
    row.peak_mb = static_cast<double>(p.value_bytes() + p.gradient_bytes() + who.optimizer.bytes() +
                                      who.held_bytes()) /
                  (1 << 20);
    const double seconds = median(who.times);
    row.step_ms = seconds * 1e3;
    row.tokens_per_second = static_cast<double>(tokens) / seconds;
    row.samples_per_second = static_cast<double>(options.batch) / seconds;
    row.model_gflops =
        static_cast<double>(count_cost(config, options.batch, options.seq).flops) / seconds / 1e9;
    const auto products = training_products(config, tokens);
    row.gemm_gflops = gpu ? gpu_product_rate(products, kProductRepeats, options.device.real)
                          : best_product_rate(products, kProductRepeats);
    row.fraction_of_gemm = row.model_gflops / row.gemm_gflops;
    if (gpu) {
      row.copy_gbps = gpu_copy_rate() / 1e9;
    }
    if (gpu && options.profile) {
      // A graph cannot be timed from inside: some more steps, kernel by kernel.
      who.queue(false);
      who.step(options, 0);
      for (int i = 0; i < 3; ++i) {
        const Profile profile(/*waits=*/true);
        who.step(options, i);
        add_times(profile, &who);
      }
    }
    for (const auto& [name, total] : who.op_times) {
      const double steps = who.profiled;
      row.op_times[name] = {total.forward_ms / steps, total.backward_ms / steps,
                            total.calls / who.profiled};
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
  constexpr int kWarm = 8;
  Model model(config, device, false);
  model.parameters().initialize(1);
  Pool pool(device);
  Run run(pool);
  State state = model.start(run);
  ForwardOptions options;
  options.states = {&state};
  std::unique_ptr<TokenGraph> graph;
  if (TokenGraph::can(model)) {
    graph = std::make_unique<TokenGraph>(model);
  }
  const auto stream = random_tokens(tokens + kWarm, config.vocab_size, 0);
  std::vector<double> times;
  double bandwidth = on_gpu(device) ? gpu_copy_rate() : 0;
  for (int i = 0; i < tokens + kWarm; ++i) {
    if (i % 16 == kWarm) {
      bandwidth =
          on_gpu(device) ? bandwidth : std::max(bandwidth, read_bandwidth(size_t{512} << 20, 2));
      progress(fmt::format("{}: token {} of {}", config.name, i - kWarm, tokens),
               static_cast<double>(i) / (tokens + kWarm));
    }
    const double start = now_seconds();
    const int32_t token[] = {stream[static_cast<size_t>(i)]};
    const Tensor h = graph ? graph->read(state, token[0], true)
                           : model.hidden(run, run.from_host("token", {1, 1}, token), options);
    const Tensor logits = model.logits(run, h);
    const double first = to_host(logits.view().slice(2, 0, 1))[0];
    require(std::isfinite(first), "bench", "the logits are not finite");
    if (i >= kWarm) {
      times.push_back(now_seconds() - start);
    }
  }
  progress("done", 1);
  DecodeBenchRow row;
  row.name = config.name;
  const double seconds = median(times);
  row.tokens_per_second = 1 / seconds;
  row.mean_tokens_per_second =
      static_cast<double>(times.size()) / std::accumulate(times.begin(), times.end(), 0.0);
  // All weights but the rows of value tables that the token did not choose.
  const Cost cost = count_cost(config, 1, 1);
  row.weight_bytes =
      static_cast<double>(cost.active_params) * static_cast<double>(dtype_size(device.real));
  row.read_gbps = bandwidth / 1e9;
  row.fraction_of_read = row.weight_bytes / seconds / bandwidth;
  return row;
}

StreamBenchRow bench_stream(const ModelConfig& config, const StreamBenchOptions& options,
                            const BenchProgress& progress) {
  Model model(config, options.device, false);
  model.parameters().initialize(1);
  Pool pool(options.device);
  Run run(pool);
  State state = model.start(run, options.batch);
  ForwardOptions forward;
  forward.states = {&state};
  std::vector<double> times;
  constexpr int kWarm = 2;
  for (int i = 0; i < options.pieces + kWarm; ++i) {
    progress(
        fmt::format("{}: piece {} of {}", config.name, std::max(0, i - kWarm + 1), options.pieces),
        static_cast<double>(i) / (options.pieces + kWarm));
    const Shape shape = {options.batch, options.tokens};
    const auto tokens = random_tokens(shape.size(), config.vocab_size, static_cast<uint64_t>(i));
    const double start = now_seconds();
    const Tensor input = run.from_host("tokens", shape, tokens);
    const Tensor h = model.hidden(run, input, forward);
    const auto losses = to_host(lm_loss(run, h, model.embedding_table(), input).nll.view());
    require(std::isfinite(losses.back()), "bench", "the losses are not finite");
    if (i >= kWarm) {
      times.push_back(now_seconds() - start);
    }
  }
  progress("done", 1);
  StreamBenchRow row;
  row.name = config.name;
  const double seconds = median(times);
  row.piece_ms = seconds * 1e3;
  row.tokens_per_second = static_cast<double>(options.batch * options.tokens) / seconds;
  return row;
}

}  // namespace fwpkm
