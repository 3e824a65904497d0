#include "bench/bench.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "bench/memory.h"
#include "bench/session.h"
#include "cli/cli.h"

namespace fwpkm::cli {
namespace {

struct TrainArguments {
  std::vector<std::string> configs;
  TrainBenchOptions options;
};

// Where a step's time goes, most expensive op first.
std::string profile_table(const TrainBenchRow& row) {
  std::vector<std::pair<std::string, OpTime>> list(row.op_times.begin(), row.op_times.end());
  const auto total = [](const OpTime& t) { return t.forward_ms + t.backward_ms; };
  std::sort(list.begin(), list.end(),
            [&](const auto& a, const auto& b) { return total(a.second) > total(b.second); });
  std::vector<std::vector<std::string>> rows = {
      {row.name, "calls", "forward ms", "backward ms", "of the step"}};
  for (const auto& [name, t] : list) {
    rows.push_back({name, std::to_string(t.calls), fmt::format("{:.1f}", t.forward_ms),
                    fmt::format("{:.1f}", t.backward_ms),
                    fmt::format("{:.1f}%", 100 * total(t) / row.step_ms)});
  }
  return "\n" + table(rows);
}

int run_train(const TrainArguments& a, const Common& common) {
  TrainBenchOptions options = a.options;
  options.device = common.parsed_device();
  Progress bar("bench train");
  const auto results =
      bench_train(load_configs(a.configs, common), options,
                  [&](const std::string& what, double done) { bar.update(done, what); });
  bar.finish();
  std::vector<std::vector<std::string>> rows = {{"model", "step ms", "tokens/s", "samples/s",
                                                 "model GFLOP/s", "product GFLOP/s", "fraction",
                                                 "peak MiB"}};
  nlohmann::json json = nlohmann::json::array();
  for (const TrainBenchRow& r : results) {
    rows.push_back({r.name, fmt::format("{:.1f}", r.step_ms),
                    fmt::format("{:.1f}", r.tokens_per_second),
                    fmt::format("{:.2f}", r.samples_per_second),
                    fmt::format("{:.1f}", r.model_gflops), fmt::format("{:.1f}", r.gemm_gflops),
                    fmt::format("{:.3f}", r.fraction_of_gemm), fmt::format("{:.0f}", r.peak_mb)});
    json.push_back({{"name", r.name},
                    {"step_ms", r.step_ms},
                    {"tokens_per_second", r.tokens_per_second},
                    {"samples_per_second", r.samples_per_second},
                    {"copy_gbps", r.copy_gbps},
                    {"model_gflops", r.model_gflops},
                    {"gemm_gflops", r.gemm_gflops},
                    {"fraction_of_gemm", r.fraction_of_gemm},
                    {"peak_mb", r.peak_mb}});
    for (const auto& [name, t] : r.op_times) {
      json.back()["ops"][name] = {
          {"calls", t.calls}, {"forward_ms", t.forward_ms}, {"backward_ms", t.backward_ms}};
    }
  }
  say(common, table(rows));
  if (options.device.kind == DeviceKind::kCuda) {
    say(common, fmt::format("the GPU copies {:.0f} GB/s\n", results.front().copy_gbps));
  }
  for (const TrainBenchRow& r : results) {
    if (options.profile) {
      say(common, profile_table(r));
    }
  }
  emit(common, {{"rows", json}});
  return 0;
}

struct DecodeArguments {
  std::string config;
  int tokens = 64;
};

int run_decode(const DecodeArguments& a, const Common& common) {
  const ModelConfig config = load_config(a.config, common.overrides);
  Progress bar("bench decode");
  const DecodeBenchRow r =
      bench_decode(config, a.tokens, common.parsed_device(),
                   [&](const std::string& what, double done) { bar.update(done, what); });
  bar.finish();
  say(common,
      table({{"model", "tokens/s", "mean", "weights MiB", "weights GB/s", "read GB/s", "fraction"},
             {r.name, fmt::format("{:.1f}", r.tokens_per_second),
              fmt::format("{:.1f}", r.mean_tokens_per_second),
              fmt::format("{:.1f}", r.weight_bytes / (1 << 20)),
              fmt::format("{:.1f}", r.weight_bytes * r.tokens_per_second / 1e9),
              fmt::format("{:.1f}", r.read_gbps), fmt::format("{:.3f}", r.fraction_of_read)}}));
  emit(common, {{"name", r.name},
                {"tokens_per_second", r.tokens_per_second},
                {"mean_tokens_per_second", r.mean_tokens_per_second},
                {"weight_bytes", r.weight_bytes},
                {"read_gbps", r.read_gbps},
                {"fraction_of_read", r.fraction_of_read}});
  return 0;
}

struct StreamArguments {
  std::string config;
  StreamBenchOptions options;
};

int run_stream(const StreamArguments& a, const Common& common) {
  StreamBenchOptions options = a.options;
  options.device = common.parsed_device();
  Progress bar("bench stream");
  const StreamBenchRow r =
      bench_stream(load_config(a.config, common.overrides), options,
                   [&](const std::string& what, double done) { bar.update(done, what); });
  bar.finish();
  say(common, table({{"model", "piece ms", "tokens/s"},
                     {r.name, fmt::format("{:.2f}", r.piece_ms),
                      fmt::format("{:.0f}", r.tokens_per_second)}}));
  emit(common,
       {{"name", r.name}, {"piece_ms", r.piece_ms}, {"tokens_per_second", r.tokens_per_second}});
  return 0;
}

int run_memory(MemoryBenchOptions options, const Common& common) {
  options.device = common.parsed_device();
  require(options.device.kind != DeviceKind::kReference, "bench",
          "the reference cannot be timed by parts; use --device cpu or cuda");
  Progress bar("bench memory");
  const auto results =
      bench_memory(options, [&](const std::string& what, double done) { bar.update(done, what); });
  bar.finish();
  std::vector<std::vector<std::string>> rows = {
      {"n_subkeys", "slots", "read us", "write us", "backward us", "value write us",
       "value backward us", "whole forward us", "whole backward us", "RSS MiB"}};
  const auto line = [&](const std::string& name, const std::string& slots, int digits,
                        const MemoryBenchRow& r, const std::string& rss) {
    rows.push_back({name, slots});
    for (const double x : {r.read_us, r.write_us, r.backward_us, r.value_write_us,
                           r.value_backward_us, r.whole_forward_us, r.whole_backward_us}) {
      rows.back().push_back(fmt::format("{:.{}f}", x, digits));
    }
    rows.back().push_back(rss);
  };
  nlohmann::json json = nlohmann::json::array();
  for (const MemoryBenchRow& r : results) {
    line(std::to_string(r.n_subkeys), std::to_string(r.n_subkeys * r.n_subkeys),
         options.device.kind == DeviceKind::kCuda ? 4 : 2, r, fmt::format("{:.0f}", r.rss_mb));
    json.push_back({{"n_subkeys", r.n_subkeys},
                    {"read_us", r.read_us},
                    {"write_us", r.write_us},
                    {"backward_us", r.backward_us},
                    {"value_write_us", r.value_write_us},
                    {"value_backward_us", r.value_backward_us},
                    {"whole_forward_us", r.whole_forward_us},
                    {"whole_backward_us", r.whole_backward_us},
                    {"rss_mb", r.rss_mb}});
  }
  if (results.size() > 1) {
    const MemoryBenchRow &a = results.front(), &b = results.back();
    MemoryBenchRow growth;
    growth.read_us = b.read_us / a.read_us;
    growth.write_us = b.write_us / a.write_us;
    growth.backward_us = b.backward_us / a.backward_us;
    growth.value_write_us = b.value_write_us / a.value_write_us;
    growth.value_backward_us = b.value_backward_us / a.value_backward_us;
    growth.whole_forward_us = b.whole_forward_us / a.whole_forward_us;
    growth.whole_backward_us = b.whole_backward_us / a.whole_backward_us;
    line("last / first",
         fmt::format("{:.1f}", static_cast<double>(b.n_subkeys * b.n_subkeys) /
                                   static_cast<double>(a.n_subkeys * a.n_subkeys)),
         2, growth, "");
  }
  say(common, table(rows));
  emit(common, {{"rows", json}});
  return 0;
}

struct SessionArguments {
  std::string config;
  SessionBenchOptions options;
};

int run_session(const SessionArguments& a, const Common& common) {
  SessionBenchOptions options = a.options;
  options.device = common.parsed_device();
  const ModelConfig config = load_configs({a.config}, common)[0];
  Progress bar("bench session");
  const SessionBenchRow r = bench_session(
      config, options, [&](const std::string& what, double done) { bar.update(done, what); });
  bar.finish();
  const double parts = r.row_bytes + r.fixed_bytes + r.history_bytes;
  const auto mib = [](double bytes) { return fmt::format("{:.2f}", bytes / (1 << 20)); };
  say(common, fmt::format("{} after {} tokens\n", config.name, options.tokens));
  say(common,
      table({{"MiB", "rows", "fixed", "history", "file", "file / parts", "a fork"},
             {"", mib(r.row_bytes), mib(r.fixed_bytes), mib(r.history_bytes), mib(r.file_bytes),
              fmt::format("{:.3f}", r.file_bytes / parts), mib(r.fork_bytes)}}));
  say(common, table({{"ms", "save", "restore", "fork", "token", "first token", "first / token"},
                     {"", fmt::format("{:.1f}", r.save_ms), fmt::format("{:.1f}", r.restore_ms),
                      fmt::format("{:.3f}", r.fork_ms), fmt::format("{:.2f}", r.token_ms),
                      fmt::format("{:.2f}", r.first_token_ms),
                      fmt::format("{:.3f}", r.first_token_ms / r.token_ms)}}));
  emit(common, {{"row_bytes", r.row_bytes},
                {"fixed_bytes", r.fixed_bytes},
                {"history_bytes", r.history_bytes},
                {"file_bytes", r.file_bytes},
                {"save_ms", r.save_ms},
                {"restore_ms", r.restore_ms},
                {"fork_ms", r.fork_ms},
                {"token_ms", r.token_ms},
                {"first_token_ms", r.first_token_ms},
                {"fork_bytes", r.fork_bytes}});
  return 0;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Time whole models beside the machine's ceilings");
  bench->require_subcommand(1);

  auto train = std::make_shared<TrainArguments>();
  CLI::App* sub = bench->add_subcommand(
      "train", "Full training steps on random tokens; several models take turns");
  sub->add_option("--config", train->configs, "Config files")->type_name("FILE...")->required();
  sub->add_option("--batch", train->options.batch, "Sequences in a batch")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub->add_option("--seq", train->options.seq, "Tokens in a sequence")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--steps", train->options.steps, "Timed steps of each model")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_flag("--profile", train->options.profile,
                "Print where the time of a step goes, op by op");
  command(sub, [train](const Common& common) { return run_train(*train, common); });

  auto decode = std::make_shared<DecodeArguments>();
  sub = bench->add_subcommand("decode",
                              "One token at a time, against the read bandwidth. tokens/s: by the "
                              "median token; mean: by all, also those after which memories write");
  sub->add_option("--config", decode->config, "Config file")->type_name("FILE")->required();
  sub->add_option("--tokens", decode->tokens, "Timed tokens")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command(sub, [decode](const Common& common) { return run_decode(*decode, common); });

  auto stream = std::make_shared<StreamArguments>();
  sub = bench->add_subcommand(
      "stream", "Long streams read piece by piece with all losses, as evaluations do");
  sub->add_option("--config", stream->config, "Config file")->type_name("FILE")->required();
  sub->add_option("--batch", stream->options.batch, "Streams side by side")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub->add_option("--tokens", stream->options.tokens, "Tokens of each stream in a piece")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--pieces", stream->options.pieces, "Timed pieces; the median is printed")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command(sub, [stream](const Common& common) { return run_stream(*stream, common); });

  auto memory = std::make_shared<MemoryBenchOptions>();
  sub = bench->add_subcommand(
      "memory",
      "The fast-weight memory alone, over tables of several sizes; sizes take turns. Microseconds "
      "per token of sequences of 8 chunks of 512, values and queries of 512, 8 slots read. "
      "read: scores, selection, weighted sums of rows. write: what writing adds, values and "
      "sub-keys. backward: all of it. value write, value backward: of those, the parts on value "
      "rows (the rest is sub-keys). whole: not timed by parts, which on a GPU run side by side. "
      "RSS: the process once that size has run; on a GPU, its memory "
      "there");
  sub->add_option("--subkeys", memory->subkeys, "Sub-keys per codebook; a table has their square")
      ->type_name("N,N,...")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{8}, int64_t{46340}))
      ->capture_default_str();
  sub->add_option("--batch", memory->batch, "Sequences, each with a memory of its own")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  sub->add_flag("--shared", memory->shared, "All sequences write one memory");
  sub->add_option("--runs", memory->runs, "Timed runs of each size; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command(sub, [memory](const Common& common) { return run_memory(*memory, common); });

  auto session = std::make_shared<SessionArguments>();
  sub = bench->add_subcommand(
      "session",
      "Keeping a running model: bytes of its state and its file, medians of the time to save, "
      "restore and fork it, and of a token after a restore beside any other. A fork's MiB: what "
      "the process grows by when a fork reads a token");
  sub->add_option("--config", session->config, "Config file")->type_name("FILE")->required();
  sub->add_option("--tokens", session->options.tokens, "Tokens to read before")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--repeats", session->options.repeats, "Times that each is timed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--forks", session->options.forks, "Forks to make for the memory that they take")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command(sub, [session](const Common& common) { return run_session(*session, common); });
}

}  // namespace fwpkm::cli
