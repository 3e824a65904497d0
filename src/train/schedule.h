// The learning rate over a run.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "model/config.h"

namespace fwpkm {

// Step 1 is the first. Linear from 0 to max_lr over the warm-up, then a cosine down to min_lr at
// the last step.
inline double learning_rate(const TrainConfig& train, int64_t step) {
  if (step <= train.warmup) {
    return train.max_lr * static_cast<double>(step) / static_cast<double>(train.warmup);
  }
  const double span = static_cast<double>(train.steps - train.warmup);
  const double done =
      span <= 0 ? 1 : std::fmin(1.0, static_cast<double>(step - train.warmup) / span);
  return train.min_lr +
         0.5 * (train.max_lr - train.min_lr) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace fwpkm
