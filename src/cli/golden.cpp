#include "check/golden.h"

#include <memory>

#include "cli/cli.h"

namespace fwpkm::cli {
namespace {

int run(const std::string& file, bool replay, const Common& common) {
  const GoldenResult result =
      run_golden(file, common.parsed_device(DType::kF32), {common.overrides, replay});
  std::vector<std::vector<std::string>> rows = {{"group", "tensors", "error", "worst"}};
  nlohmann::json groups = nlohmann::json::array();
  for (const GoldenGroup& g : result.groups) {
    rows.push_back({g.name, std::to_string(g.tensors), fmt::format("{:.2e}", g.error), g.worst});
    groups.push_back(
        {{"name", g.name}, {"tensors", g.tensors}, {"error", g.error}, {"worst", g.worst}});
  }
  const double equal = result.slots == 0 ? 1
                                         : static_cast<double>(result.equal_slots) /
                                               static_cast<double>(result.slots);
  if (replay) {
    say(common, fmt::format("{} of {} slots are the file's ({:.4f}, at least {}); replayed:\n",
                            result.equal_slots, result.slots, equal, GoldenOptions::kEqualSlots));
  }
  say(common, fmt::format("{} on {}\n{}{} (limit {:.0e})\n", result.config_name, common.device,
                          table(rows), result.ok ? "equal" : "NOT EQUAL", result.limit));
  emit(common, {{"file", file},
                {"device", common.device},
                {"ok", result.ok},
                {"limit", result.limit},
                {"equal_slots", equal},
                {"groups", groups}});
  return result.ok ? 0 : 1;
}

}  // namespace

void add_golden(CLI::App& app) {
  auto file = std::make_shared<std::string>();
  auto replay = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand(
      "golden",
      "Run a whole model from a file of golden numbers and compare outputs and gradients");
  sub->add_option("file", *file, "A .safetensors file with config, weights and expected numbers")
      ->type_name("FILE")
      ->required();
  sub->add_flag("--replay", *replay,
                "Take the file's slots instead of choosing, and say how many would have been the "
                "same; for files of `fwpkm run`");
  command(sub, [=](const Common& common) { return run(*file, *replay, common); });
}

}  // namespace fwpkm::cli
