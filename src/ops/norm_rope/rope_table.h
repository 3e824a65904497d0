// The angles of rotary position embeddings, plain and stretched by YaRN.
#pragma once

#include <cstdint>
#include <vector>

namespace fwpkm {

struct RopeSettings {
  int64_t head_dim = 64;
  double rotary_fraction = 1.0;  // of the head's features; R = int(head_dim * rotary_fraction)
  double theta = 10000.0;
  double yarn_factor = 1.0;          // how far the context is stretched; 1: plain
  int64_t yarn_original_length = 0;  // the context that the model was trained with
};

// Features that are rotated; even.
int64_t rotary_dims(const RopeSettings& settings);

// cos and sin [count, R/2] of the positions first_position.., row-major, multiplied by YaRN's
// attention factor.
void rope_table(const RopeSettings& settings, int64_t first_position, int64_t count,
                std::vector<double>* cos, std::vector<double>* sin);

}  // namespace fwpkm
