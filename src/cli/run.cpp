#include <memory>

#include "base/error.h"
#include "check/golden.h"
#include "cli/cli.h"
#include "model/checkpoint.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::string model, config, tokens, dump;
  bool gradients = false, weights = false;
  uint64_t seed = 1;
};

int run(const Arguments& a, const Common& common) {
  require(a.model.empty() != a.config.empty(), "run",
          "give either --model DIR or --config FILE (random weights)");
  const Device device = common.parsed_device();
  std::unique_ptr<Model> model;
  if (!a.model.empty()) {
    // The dump keeps the fast weights that the run writes.
    model = load_model(a.model, device, a.gradients, common.overrides, Weights::kOwn);
  } else {
    model = std::make_unique<Model>(load_config(a.config, common.overrides), device, a.gradients);
    model->parameters().initialize(a.seed);
  }
  const TokenRows rows = read_token_rows(a.tokens);
  const double loss =
      write_dump(*model, rows.tokens, rows.rows, rows.length - 1, a.dump, {a.gradients, a.weights});
  say(common,
      fmt::format("{}: {} sequences of {} tokens on {}, loss {:.9g}; written to {}\n",
                  model->config().name, rows.rows, rows.length - 1, common.device, loss, a.dump));
  emit(common, {{"name", model->config().name},
                {"loss", loss},
                {"sequences", rows.rows},
                {"tokens", rows.length - 1},
                {"dump", a.dump}});
  return 0;
}

}  // namespace

void add_run(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "run", "Run a model on tokens and write logits, loss and every layer's output to a file");
  sub->add_option("--model", a->model, "Folder with config.json and model.safetensors")
      ->type_name("DIR");
  sub->add_option("--config", a->config, "A config instead of a model: weights are random")
      ->type_name("FILE");
  sub->add_option("--tokens", a->tokens,
                  "Rows of token numbers: text, one row a line, or token_ids of a .safetensors "
                  "file. The last token of a row is a label only")
      ->type_name("FILE")
      ->required();
  sub->add_option("--dump", a->dump, "The .safetensors file to write")
      ->type_name("FILE")
      ->required();
  sub->add_flag("--grad", a->gradients, "Write the gradient of the mean loss too");
  sub->add_flag("--weights", a->weights,
                "Write the weights too, so that `fwpkm golden` can run the file");
  sub->add_option("--seed", a->seed, "Seed of random weights")->capture_default_str();
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
