// Training, as commands do it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "train/trainer.h"

namespace fwpkm::cli {

struct TrainArguments {
  std::string config, out, tokenizer, order = "shuffled";
  std::optional<std::string> prompt;
  std::vector<std::string> data, valid;
  TrainOptions options;
  int64_t steps = 0, batch = 0, micro = 0, seq = 0, seed = -1, sample_tokens = 160;
  double lr = 0;
};

// The config with the command line's settings in it.
ModelConfig configured(const TrainArguments& a, const Common& common);
// Trains with a progress bar; an interrupt saves and leaves. -> the exit status
int run_train(const TrainArguments& a, const Common& common);

// --data, --valid, --tokenizer and what says how long and how to train.
void add_train_options(CLI::App* sub, TrainArguments* a);

}  // namespace fwpkm::cli
