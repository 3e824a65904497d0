#include "cli/cli.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"

namespace fwpkm::cli {

void command(CLI::App* app, Body body) {
  auto common = std::make_shared<Common>();
  app->add_option("--json", common->json,
                  "Write the results as JSON to this file; - is standard output, which then holds "
                  "nothing else")
      ->type_name("PATH");
  app->add_option(
         "--device", common->device,
         "Where to compute: cpu (float, fast), cuda (a GPU, in bf16; `check` and `golden`, which "
         "compare numbers, in float), cuda:f32, cuda:bf16, reference (double, slow, exact) or "
         "plain "
         "(the reference's code in float: what rounding alone does)")
      ->type_name("NAME")
      ->capture_default_str();
  app->add_option("--threads", common->threads, "Threads to use; 0 uses all cores")
      ->type_name("N")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app->add_option("--set", common->overrides,
                  "Override a config key, as in --set gdn.key_heads=4; `fwpkm config --help-keys` "
                  "lists the keys")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1);
  app->callback([common, body = std::move(body)] {
    set_threads(common->threads);
    if (const int status = body(*common); status != 0) {
      throw CLI::RuntimeError(status);
    }
  });
}

void say(const Common& common, const std::string& text) {
  std::FILE* to = common.json == "-" ? stderr : stdout;
  fmt::print(to, "{}", text);
  require(std::fflush(to) == 0, "output", "cannot write to standard output");
}

void emit(const Common& common, const nlohmann::json& results) {
  if (common.part) {
    return;
  }
  if (common.json.empty()) {
    return;
  }
  const std::string text = results.dump(2) + "\n";
  if (common.json == "-") {
    const bool ok =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    require(ok, "output", "cannot write to standard output");
    return;
  }
  write_text_atomic(common.json, text);
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::vector<ModelConfig> load_configs(const std::vector<std::string>& paths, const Common& common) {
  std::vector<ModelConfig> configs;
  for (const std::string& path : paths) {
    configs.push_back(load_config(path, common.overrides));
  }
  return configs;
}

}  // namespace fwpkm::cli
