// Text from a model, one token after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "model/model.h"

namespace fwpkm {

struct SamplingSettings {
  double temperature = 1.0;  // 0: always the most likely token
  double top_p = 1.0;        // draw from the likeliest tokens that together have this probability
  uint64_t seed = 1;
};

// Draws a token. Equal logits: the lower number first, so that the choice never depends on how a
// sort treats ties. `draw` is uniform in [0, 1).
int32_t sample_token(std::span<const double> logits, const SamplingSettings& settings, double draw);

// Reads tokens and continues them. The same tokens, seed and settings give the same continuation.
class Generator {
 public:
  // `model` must outlive this.
  Generator(const Model& model, const SamplingSettings& settings);

  // Reads tokens, in pieces of at most kPiece.
  void feed(std::span<const int32_t> tokens);
  // Draws the next token and reads it. At least one token must have been read.
  int32_t next();

 private:
  static constexpr size_t kPiece = 512;
  const Model& model_;
  SamplingSettings settings_;
  Random random_;
  Pool pool_;
  Run run_;
  State state_;
  std::vector<double> logits_;  // after the last token read
};

}  // namespace fwpkm
