#include "model/cost.h"

#include <memory>

#include "cli/cli.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::vector<std::string> configs;
  int64_t batch = 8, seq = 4096;
};

int run(const Arguments& a, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "total (M)", "active (M)", "FLOPs (T)", "true FLOPs (T)"}};
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
  }
  say(common,
      fmt::format("A training step of {} x {} tokens. FLOPs: the paper's count; true FLOPs: "
                  "with attention and memory.\n\n{}",
                  a.batch, a.seq, table(rows)));
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
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
