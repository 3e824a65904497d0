// Small models of every layout, with random weights in which no term hides behind a zero.
#pragma once

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "model/model.h"

namespace fwpkm {

struct TinyModel {
  std::string name;
  nlohmann::json json;
};

inline std::vector<TinyModel> tiny_models() {
  const nlohmann::json base = {
      {"vocab_size", 23},
      {"hidden_size", 24},
      {"layers", 4},
      {"max_seq", 32},
      {"attention", {{"heads", 4}, {"kv_heads", 2}, {"head_dim", 8}, {"window", 5}}},
      {"gdn",
       {{"key_heads", 2}, {"value_heads", 4}, {"key_dim", 6}, {"value_dim", 5}, {"conv", 4}}},
      {"mlp", {{"hidden", 20}}},
      {"pkm", {{"heads", 2}, {"topk", 3}, {"n_subkeys", 6}, {"key_dim", 8}, {"value_dim", 10}}}};
  std::vector<TinyModel> models;
  for (const std::string layout : {"gdn", "gdn+swa", "gdn+fa", "fa"}) {
    for (const bool pkm : {false, true}) {
      nlohmann::json json = base;
      json["layout"] = layout;
      json["name"] = layout + (pkm ? "|pkm@1" : "");
      if (pkm) {
        json["pkm"]["layers"] = {1};
      }
      models.push_back({json["name"], json});
    }
  }
  nlohmann::json yarn = base;
  yarn["layout"] = "gdn+fa";
  yarn["name"] = "yarn";
  yarn["max_seq"] = 8;
  yarn["attention"]["rotary_fraction"] = 1.0;
  yarn["attention"]["yarn_factor"] = 5;
  models.push_back({"yarn", yarn});
  // Fast heads of 12 lie across attention heads of 8; rates are large enough for updates to count.
  nlohmann::json lact = base;
  lact["name"] = "lact";
  lact["architecture"] = "lact";
  lact["layers"] = 2;
  lact["attention"] = {{"heads", 3}, {"kv_heads", 3}, {"head_dim", 8}, {"rotary_fraction", 0.5}};
  lact["lact"] = {{"heads", 2}, {"window", 5}, {"chunk", 4}, {"low_rank", 3}, {"lr", 0.5}};
  models.push_back({"lact", lact});
  return models;
}

// Every tensor random, so that norms, biases and gates matter too.
inline void randomize(Parameters* parameters, uint64_t seed) {
  for (size_t p = 0; p < parameters->specs().size(); ++p) {
    const Random random(seed, p);
    const View& view = parameters->at(p).view();
    std::vector<double> values(static_cast<size_t>(view.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(0.3 * random.normal_at(i));
    }
    copy_from_host(view, values);
  }
}

inline std::vector<int32_t> tiny_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) {
    t = static_cast<int32_t>(random.below(vocab));
  }
  return tokens;
}

}  // namespace fwpkm
