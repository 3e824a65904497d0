// The training loop: steps, metrics, validation, checkpoints, resuming.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "text/batches.h"
#include "train/adamw.h"
#include "train/run_folder.h"

namespace fwpkm {

struct TrainOptions {
  std::filesystem::path out;
  bool resume = false;
  int64_t save_every = 100;   // steps between checkpoints
  int keep = 3;               // newest checkpoints kept, beside the best
  int64_t valid_every = 100;  // steps between validations; 0: never
  int64_t valid_batches = 8;
  int64_t sample_every = 0;      // steps between text samples; 0: never
  std::vector<ExtraFile> files;  // go into every checkpoint
};

// What the loop is given beside the model.
struct TrainData {
  std::unique_ptr<BatchSource> train;
  int32_t end_of_text = -1;  // what separates documents; -1: not known
  // A fresh source of held-out batches, the same every time; may be empty.
  std::function<std::unique_ptr<BatchSource>()> valid;
  // A piece of text from the model as it is now; may be empty.
  std::function<std::string(const Model&)> sample;
};

// What the loop tells the program that shows it.
struct TrainEvents {
  // `memory` says how the memories do, or is empty.
  std::function<void(int64_t step, int64_t steps, double loss, double tokens_per_second,
                     const std::string& memory)>
      step;
  std::function<void(const std::string& text)> note;  // validation, samples, checkpoints
  std::function<bool()> stop;                         // asked between steps: leave after saving
};

struct TrainResult {
  int64_t step = 0;       // the last one done
  double loss = 0;        // of the last step; NaN if the run was complete already
  double valid_loss = 0;  // NaN if there was no validation
  bool stopped = false;   // by request, before the last step
  bool resumed = false;
  double seconds = 0;
  double tokens_per_second = 0;
};

// Trains `config.train.steps` steps of train.batch rows of train.seq tokens. A checkpoint holds all
// that the run needs, so that a run that was killed and resumed is equal, bit for bit, to one that
// was not: data are drawn from a saved state, and every random choice depends on seed and step
// only.
//
// A non-finite loss or gradient stops the run with an error that names the step and the tensor; the
// weights are as they were after the step before, and so is the newest checkpoint.
TrainResult train(const ModelConfig& config, Device device, const TrainOptions& options,
                  TrainData data, const TrainEvents& events);

// Mean loss over `batches` batches, without a tape. `hide_after` as in accumulate_gradients.
double evaluate_loss(const Model& model, Pool& pool, BatchSource& source, int64_t batches,
                     int32_t hide_after = -1);

}  // namespace fwpkm
