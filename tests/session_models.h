// Small models of every kind for sessions, drawn at random.
#pragma once

#include <memory>

#include "memory_models.h"
#include "session/session.h"

namespace fwpkm {

// With weights that depend on `seed` only.
inline std::shared_ptr<const Model> session_model(const nlohmann::json& json, Device device,
                                                  uint64_t seed = 40) {
  auto model = std::make_shared<Model>(parse_config(json, "test"), device, false);
  randomize(&model->parameters(), seed);
  return model;
}

// A memory that is written often, beside window attention.
inline nlohmann::json small_session_json() {
  return memory_model({{"layout", "gdn+swa"},
                       {"vocab_size", 50},
                       {"fwpkm", {{"layers", {1, 3}}, {"chunk", 8}, {"n_subkeys", 16}}}});
}

inline nlohmann::json random_session_json(Random* random) {
  const auto pick = [&](std::initializer_list<int64_t> list) {
    return list.begin()[random->below(static_cast<int64_t>(list.size()))];
  };
  if (random->below(12) == 0) {
    nlohmann::json lact = tiny_models().back().json;
    lact["lact"]["chunk"] = pick({1, 3, 4, 7});
    lact["lact"]["window"] = pick({2, 5});
    return lact;
  }
  nlohmann::json json = memory_model();
  const std::string layouts[] = {"gdn", "gdn+swa", "gdn+fa", "fa"};
  json["name"] = "random";
  json["layout"] = layouts[random->below(4)];
  json["attention"]["window"] = pick({2, 3, 8, 70});
  const int64_t chunk = pick({1, 2, 5, 8, 13}), lookahead = pick({0, 1, 1, 2, 4});
  if (random->below(5) == 0) {
    json.erase("fwpkm");
    json["fwmlp"] = tiny_fwmlp();
    json["fwmlp"]["chunk"] = chunk;
    json["fwmlp"]["lookahead"] = lookahead;
    json["fwmlp"]["lr"] = 0.01;  // so that many updates do not run away
  } else {
    const int64_t n = pick({2, 3, 6, 11});
    json["fwpkm"]["n_subkeys"] = n;
    json["fwpkm"]["topk"] = 1 + random->below(std::min<int64_t>(n, 4));
    json["fwpkm"]["heads"] = pick({1, 1, 3});
    json["fwpkm"]["chunk"] = chunk;
    json["fwpkm"]["lookahead"] = lookahead;
    json["fwpkm"]["gating"] = random->below(4) > 0;
    json["fwpkm"]["addr_loss"] = random->below(4) > 0;
    json["fwpkm"]["score"] = random->below(4) > 0 ? "idw" : "dot";
    json["fwpkm"]["layers"] = random->below(2) == 0 ? nlohmann::json{0, 2} : nlohmann::json{1};
    json["value_step"] = random->below(2) == 0 ? "slots" : "rewrite";
    if (random->below(3) == 0) {
      json["pkm"]["layers"] = {3};
    }
  }
  return json;
}

}  // namespace fwpkm
