#include "model/cost.h"

#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "cli/cli.h"
#include "train/memory_plan.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::vector<std::string> configs;
  int64_t batch = 8, seq = 4096;
  bool measure = false;
  int steps = 3;
};

// One model at a time, so that only one has to fit into memory.
TrainBenchRow measure(const ModelConfig& config, const Arguments& a, const Common& common) {
  const Device device = common.parsed_device();
  const MemoryPlan plan = plan_memory(config, device, a.batch, a.seq);
  require(plan.available == 0 || plan.total() < plan.available, "cost",
          "a step of {} with {} x {} tokens takes {:.1f} GiB, but {:.1f} GiB are free; {} rows "
          "would fit: lower --batch or --seq",
          config.name, a.batch, a.seq, static_cast<double>(plan.total()) / (1 << 30),
          static_cast<double>(plan.available) / (1 << 30), plan.largest_rows);
  Progress bar(config.name);
  return bench_train({config}, {.batch = a.batch, .seq = a.seq, .steps = a.steps, .device = device},
                     [&](const std::string& what, double done) { bar.update(done, what); })[0];
}

int run(const Arguments& a, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "total (M)", "active (M)", "FLOPs (T)", "true FLOPs (T)"}};
  if (a.measure) {
    rows[0].insert(rows[0].end(), {"samples/s", "GFLOP/s", "of products"});
  }
  nlohmann::json models = nlohmann::json::array();
  for (const ModelConfig& config : load_configs(a.configs, common)) {
    const Cost cost = count_cost(config, a.batch, a.seq);
    rows.push_back({config.name,
                    fmt::format("{:.2f}", static_cast<double>(cost.total_params) / 1e6),
                    fmt::format("{:.2f}", static_cast<double>(cost.active_params) / 1e6),
                    fmt::format("{:.2f}", static_cast<double>(cost.flops) / 1e12),
                    fmt::format("{:.2f}", static_cast<double>(cost.true_flops) / 1e12)});
    models.push_back({{"name", config.name},
                      {"total_params", cost.total_params},
                      {"active_params", cost.active_params},
                      {"flops", cost.flops},
                      {"true_flops", cost.true_flops}});
    if (a.measure) {
      const TrainBenchRow row = measure(config, a, common);
      const double samples = 1000 * static_cast<double>(a.batch) / row.step_ms;
      rows.back().insert(rows.back().end(),
                         {fmt::format("{:.3f}", samples), fmt::format("{:.1f}", row.model_gflops),
                          fmt::format("{:.2f}", row.fraction_of_gemm)});
      models.back().update({{"samples_per_second", samples},
                            {"flops_per_second", 1e9 * row.model_gflops},
                            {"product_flops_per_second", 1e9 * row.gemm_gflops}});
    }
  }
  say(common,
      fmt::format("A training step of {} x {} tokens. FLOPs: the paper's count; true FLOPs: "
                  "with attention and memory.{}\n\n{}",
                  a.batch, a.seq,
                  a.measure ? " GFLOP/s: the paper's count over the time of a step; of products: "
                              "its share of the machine's rate of matrix products."
                            : "",
                  table(rows)));
  emit(common, {{"batch", a.batch}, {"seq", a.seq}, {"models", models}});
  return 0;
}

}  // namespace

void add_cost(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub =
      app.add_subcommand("cost", "Count parameters and FLOPs of models, as in the paper's tables");
  sub->add_option("--config", a->configs, "Config files")->type_name("FILE...")->required();
  sub->add_option("--batch", a->batch, "Sequences in a batch")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--seq", a->seq, "Tokens in a sequence")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  sub->add_flag("--measure", a->measure, "Time training steps too: samples and FLOPs a second");
  sub->add_option("--steps", a->steps, "Steps to time")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
