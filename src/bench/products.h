// The matrix products of a training step.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace fwpkm {

// `count` products of op(A) [m, k] and op(B) [k, n] in one step.
struct Product {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t count = 1;
  double flops() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k); }
};

// Forward, input-gradient and weight-gradient product of every weight matrix, equal ones merged.
std::vector<Product> training_products(const ModelConfig& config, int64_t tokens);

// GFLOP/s over one step's products: for each shape the best of `repeats` runs.
double best_product_rate(const std::vector<Product>& products, int repeats);

}  // namespace fwpkm
