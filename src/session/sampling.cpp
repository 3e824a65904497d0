#include "session/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace fwpkm {

int32_t sample_token(std::span<const double> logits, const SamplingSettings& settings,
                     double draw) {
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const int32_t best = *std::min_element(order.begin(), order.end(), likelier);
  if (settings.temperature <= 0) {
    return best;
  }
  std::vector<double> weight(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weight[i] = std::exp((logits[i] - logits[best]) / settings.temperature);
    total += weight[i];
  }
  // The likeliest come off a heap until they have the probability asked for.
  const auto less_likely = [&](int32_t a, int32_t b) { return likelier(b, a); };
  std::make_heap(order.begin(), order.end(), less_likely);
  std::vector<int32_t> chosen;
  double mass = 0;
  for (auto end = order.end(); end != order.begin(); --end) {
    std::pop_heap(order.begin(), end, less_likely);
    chosen.push_back(*(end - 1));
    mass += weight[chosen.back()];
    if (mass >= settings.top_p * total) {
      break;
    }
  }
  double left = draw * mass;
  for (const int32_t token : chosen) {
    left -= weight[token];
    if (left < 0) {
      return token;
    }
  }
  return chosen.back();
}

}  // namespace fwpkm
