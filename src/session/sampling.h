// Drawing the next token.
#pragma once

#include <cstdint>
#include <span>

namespace fwpkm {

struct SamplingSettings {
  double temperature = 1.0;  // 0: always the most likely token
  double top_p = 1.0;        // draw from the likeliest tokens that together have this probability
};

// Draws a token. Equal logits: the lower number first, so that the choice never depends on how a
// sort treats ties. `draw` is uniform in [0, 1).
int32_t sample_token(std::span<const double> logits, const SamplingSettings& settings, double draw);

}  // namespace fwpkm
