// What the subcommands share. One file per subcommand: arguments to calls, nothing else.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/pool.h"

namespace fwpkm::cli {

// Options that every command takes.
struct Common {
  std::string json;                    // --json PATH, "-" for standard output
  std::string device = "cpu";          // --device
  int threads = 0;                     // --threads
  std::vector<std::string> overrides;  // --set key=value
  bool part = false;                   // of another command, which emits the results

  // `cuda` computes in bf16, unless the command compares numbers.
  Device parsed_device(DType cuda_real = DType::kBF16) const {
    return Device::parse(device, cuda_real);
  }
};

// Adds the common options to a command and says what to run: `body` returns the exit status.
// The `Common` given to it lives as long as the command.
using Body = std::function<int(const Common&)>;
void command(CLI::App* app, Body body);

// Text for people: to standard output, or to standard error where that is taken by JSON.
void say(const Common& common, const std::string& text);
// The results, where --json asked for them.
void emit(const Common& common, const nlohmann::json& results);

// A table with aligned columns; the first is left-aligned, the others to the right.
std::string table(const std::vector<std::vector<std::string>>& rows);

// Reads configs with the --set overrides applied.
std::vector<ModelConfig> load_configs(const std::vector<std::string>& paths, const Common& common);

void add_check(CLI::App& app);
void add_eval(CLI::App& app);
void add_eval_niah(CLI::App* eval);
void add_eval_longbench(CLI::App* eval);
void add_curves(CLI::App& app);
void add_report(CLI::App& app);
void add_golden(CLI::App& app);
void add_run(CLI::App& app);
void add_cost(CLI::App& app);
void add_bench(CLI::App& app);
void add_config(CLI::App& app);
void add_data(CLI::App& app);
void add_data_niah(CLI::App* data);
void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_model(CLI::App& app);
void add_session(CLI::App& app);
void add_inspect(CLI::App& app);

}  // namespace fwpkm::cli
