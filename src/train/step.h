// One training step: forward, backward, clipping and the optimizer.
#pragma once

#include "model/model.h"
#include "tensor/tape.h"
#include "train/adamw.h"

namespace fwpkm {

struct StepResult {
  double loss = 0;
  double grad_norm = 0;  // before clipping
};

// Where in its row each of the [batch, seq] tokens' documents begins: after the end of text before
// it, or at the row's first token.
std::vector<int32_t> document_starts(std::span<const int32_t> tokens, int64_t batch, int64_t seq,
                                     int32_t end_of_text);

// Forward and backward of a batch that is on the device: adds the gradients of `seed` times its
// mean loss to the model's, and returns that loss.
Tensor add_gradients(Model& model, Pool& pool, const Tensor& inputs, const Tensor& labels,
                     const Tensor& seed, const ForwardOptions& options);

// Adds the gradients of one batch to the model's, scaled by `weight`, and returns its mean loss.
// tokens [batch, seq + 1] row by row: inputs are the first seq, labels the last seq. With
// `hide_after` an end-of-text token (not -1), documents do not see each other.
double accumulate_gradients(Model& model, Pool& pool, std::span<const int32_t> tokens,
                            int64_t batch, int64_t seq, double weight,
                            const ForwardOptions& options = {}, int32_t hide_after = -1);

// accumulate_gradients, clipping to `clip` (0: none), one optimizer step, and what the memories
// wrote is kept.
StepResult train_step(Model& model, Pool& pool, AdamW& optimizer, std::span<const int32_t> tokens,
                      int64_t batch, int64_t seq, const AdamWSettings& settings, double clip);

// Splits rows of seq + 1 tokens into inputs and labels.
struct InputsAndLabels {
  std::vector<int32_t> inputs, labels;
};
InputsAndLabels split_labels(std::span<const int32_t> tokens, int64_t batch, int64_t seq);

}  // namespace fwpkm
