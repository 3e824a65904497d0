#include "ops/norm_rope/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace fwpkm {
namespace {

// Full turns over the original context above which a pair keeps its speed, and below which it is
// slowed down by the whole factor.
constexpr double kFastTurns = 32;
constexpr double kSlowTurns = 1;

// Pair i turns by theta^(-2i/R) per token, so over a context of L tokens it makes
// L theta^(-2i/R) / 2 pi turns. This is the (fractional) i that makes `turns` of them.
double pair_with_turns(const RopeSettings& settings, double turns) {
  const auto dims = static_cast<double>(rotary_dims(settings));
  const auto length = static_cast<double>(settings.yarn_original_length);
  return dims * std::log(length / (2 * std::numbers::pi * turns)) / (2 * std::log(settings.theta));
}

// Angle per token of each pair.
std::vector<double> frequencies(const RopeSettings& settings) {
  const int64_t dims = rotary_dims(settings);
  std::vector<double> list(static_cast<size_t>(dims / 2));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = std::pow(settings.theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  }
  if (settings.yarn_factor == 1.0) {
    return list;
  }
  const double first = std::max(0.0, std::floor(pair_with_turns(settings, kFastTurns)));
  double last =
      std::min(static_cast<double>(dims - 1), std::ceil(pair_with_turns(settings, kSlowTurns)));
  if (first == last) {
    last += 0.001;  // a step instead of a ramp
  }
  for (size_t i = 0; i < list.size(); ++i) {
    // 0: as trained; 1: slowed down by the whole factor.
    const double slowed = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    list[i] *= 1.0 - slowed + slowed / settings.yarn_factor;
  }
  return list;
}

}  // namespace

int64_t rotary_dims(const RopeSettings& settings) {
  const auto dims =
      static_cast<int64_t>(static_cast<double>(settings.head_dim) * settings.rotary_fraction);
  require(dims >= 0 && dims <= settings.head_dim && dims % 2 == 0, "rope",
          "head_dim={} and rotary_fraction={} rotate {} features; it must be an even number within "
          "the head",
          settings.head_dim, settings.rotary_fraction, dims);
  return dims;
}

void rope_table(const RopeSettings& settings, int64_t first_position, int64_t count,
                std::vector<double>* cos, std::vector<double>* sin) {
  require(settings.theta > 1, "rope", "theta={} must exceed 1", settings.theta);
  require(settings.yarn_factor >= 1, "rope", "yarn_factor={} must be at least 1",
          settings.yarn_factor);
  require(settings.yarn_factor == 1 || settings.yarn_original_length > 0, "rope",
          "yarn_factor={} needs yarn_original_length, the context that the model was trained with",
          settings.yarn_factor);
  const std::vector<double> speeds = frequencies(settings);
  const double gain = 0.1 * std::log(settings.yarn_factor) + 1.0;
  cos->resize(static_cast<size_t>(count) * speeds.size());
  sin->resize(cos->size());
  size_t at = 0;
  for (int64_t position = first_position; position < first_position + count; ++position) {
    for (const double speed : speeds) {
      const double angle = static_cast<double>(position) * speed;
      (*cos)[at] = gain * std::cos(angle);
      (*sin)[at] = gain * std::sin(angle);
      ++at;
    }
  }
}

}  // namespace fwpkm
