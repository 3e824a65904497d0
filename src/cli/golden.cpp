#include "check/golden.h"

#include <memory>

#include "cli/cli.h"

namespace fwpkm::cli {
namespace {

int run(const std::string& file, const Common& common) {
  const GoldenResult result = run_golden(file, common.parsed_device(DType::kF32), common.overrides);
  std::vector<std::vector<std::string>> rows = {{"group", "tensors", "error", "worst"}};
  nlohmann::json groups = nlohmann::json::array();
  for (const GoldenGroup& g : result.groups) {
    rows.push_back({g.name, std::to_string(g.tensors), fmt::format("{:.2e}", g.error), g.worst});
    groups.push_back(
        {{"name", g.name}, {"tensors", g.tensors}, {"error", g.error}, {"worst", g.worst}});
  }
  say(common, fmt::format("{} on {}\n{}{} (limit {:.0e})\n", result.config_name, common.device,
                          table(rows), result.ok ? "equal" : "NOT EQUAL", result.limit));
  emit(common, {{"file", file},
                {"device", common.device},
                {"ok", result.ok},
                {"limit", result.limit},
                {"groups", groups}});
  return result.ok ? 0 : 1;
}

}  // namespace

void add_golden(CLI::App& app) {
  auto file = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand(
      "golden",
      "Run a whole model from a file of golden numbers and compare outputs and gradients");
  sub->add_option("file", *file, "A .safetensors file with config, weights and expected numbers")
      ->type_name("FILE")
      ->required();
  command(sub, [file](const Common& common) { return run(*file, common); });
}

}  // namespace fwpkm::cli
