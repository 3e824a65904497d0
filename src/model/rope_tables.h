// The angles of a model's positions, kept so that not every pass computes and copies them anew.
#pragma once

#include <mutex>
#include <utility>

#include "ops/norm_rope/rope_table.h"
#include "tensor/tensor.h"

namespace fwpkm {

class RopeTables {
 public:
  // cos and sin [count, R/2] of the positions first..; from any thread.
  std::pair<Tensor, Tensor> at(Run& run, const RopeSettings& settings, int64_t first,
                               int64_t count);

 private:
  // Positions beyond are computed when they are asked for: streams have no end.
  static constexpr int64_t kMost = int64_t{1} << 16;

  std::mutex mutex_;
  Tensor cos_, sin_;
};

}  // namespace fwpkm
