#include "session/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

Generator::Generator(const Model& model, const SamplingSettings& settings)
    : model_(model),
      settings_(settings),
      random_(settings.seed),
      pool_(model.parameters().device()),
      run_(pool_),
      state_(State::start(model.config(), run_, 1)) {}

void Generator::feed(std::span<const int32_t> tokens) {
  require_tokens(tokens, model_.config(), false);
  ForwardOptions options;
  options.state = &state_;
  for (size_t at = 0; at < tokens.size(); at += kPiece) {
    const auto piece = tokens.subspan(at, std::min(kPiece, tokens.size() - at));
    const auto count = static_cast<int64_t>(piece.size());
    const Tensor h = model_.hidden(run_, run_.from_host("tokens", {1, count}, piece), options);
    if (at + piece.size() == tokens.size()) {
      const Tensor last = h.part(h.view().slice(1, count - 1, count));
      logits_ = to_host(model_.logits(run_, last).view());
    }
  }
}

int32_t Generator::next() {
  require(!logits_.empty(), "generate",
          "nothing was read yet; give a prompt of at least one token");
  const int32_t token = sample_token(logits_, settings_, random_.uniform());
  const int32_t one[] = {token};
  feed(one);
  return token;
}

}  // namespace fwpkm
