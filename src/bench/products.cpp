#include "bench/products.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/random.h"
#include "base/timer.h"
#include "model/parameters.h"
#include "ops/common/gemm.h"

namespace fwpkm {

std::vector<Product> training_products(const ModelConfig& config, int64_t tokens) {
  std::map<std::tuple<bool, bool, int64_t, int64_t, int64_t>, int64_t> counts;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    // Sub-keys and value tables are looked up, not multiplied as a whole.
    const bool table = spec.name.ends_with("keys") || spec.name.ends_with("values.weight");
    if (spec.fast || table || spec.shape.rank != 2 || !spec.name.ends_with("weight")) {
      continue;
    }
    const int64_t out = spec.shape[0], in = spec.shape[1];
    ++counts[{false, true, tokens, out, in}];
    ++counts[{false, false, tokens, in, out}];
    ++counts[{true, false, out, in, tokens}];
  }
  std::vector<Product> products;
  for (const auto& [key, count] : counts) {
    const auto& [ta, tb, m, n, k] = key;
    products.push_back({ta, tb, m, n, k, count});
  }
  return products;
}

double best_product_rate(const std::vector<Product>& products, int repeats) {
  double seconds = 0, flops = 0;
  for (const Product& p : products) {
    const auto fill = [](int64_t count, uint64_t stream) {
      const Random random(1, stream);
      std::vector<float> values(static_cast<size_t>(count));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random.uniform_at(i)) - 0.5f;
      }
      return values;
    };
    const std::vector<float> a = fill(p.m * p.k, 1), b = fill(p.k * p.n, 2);
    std::vector<float> c(static_cast<size_t>(p.m * p.n));
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repeats; ++i) {
      const double start = now_seconds();
      gemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, 1.0f, a.data(), p.transpose_a ? p.m : p.k,
           b.data(), p.transpose_b ? p.k : p.n, 0.0f, c.data(), p.n);
      best = std::min(best, now_seconds() - start);
    }
    seconds += best * static_cast<double>(p.count);
    flops += p.flops() * static_cast<double>(p.count);
  }
  return flops / seconds / 1e9;
}

}  // namespace fwpkm
