// Small models with fast-weight memories, of every kind.
#pragma once

#include <gtest/gtest.h>

#include "tiny_models.h"

namespace fwpkm {

inline nlohmann::json tiny_fwpkm() {
  return {{"layers", {1, 2}}, {"heads", 1},      {"topk", 3},  {"n_subkeys", 6},
          {"key_dim", 8},     {"value_dim", 10}, {"chunk", 4}, {"lookahead", 1}};
}

inline nlohmann::json tiny_fwmlp() {
  return {{"layers", {1, 2}}, {"key_dim", 8},   {"value_dim", 10}, {"hidden", 7},
          {"chunk", 4},       {"lookahead", 1}, {"lr", 0.05}};
}

// `changes` are merged into a model of four GDN layers with two FwPKM memories.
inline nlohmann::json memory_model(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = tiny_models()[0].json;
  json["fwpkm"] = tiny_fwpkm();
  json["memory"] = "per_sequence";
  json.merge_patch(changes);
  return json;
}

inline std::vector<TinyModel> memory_models() {
  const nlohmann::json mlp = {{"fwpkm", nullptr}, {"fwmlp", tiny_fwmlp()}};
  nlohmann::json shared_mlp = mlp;
  shared_mlp["memory"] = "shared";
  return {{"per_sequence", memory_model()},
          {"shared", memory_model({{"memory", "shared"}})},
          {"dot", memory_model({{"fwpkm", {{"score", "dot"}}}})},
          {"no_addressing", memory_model({{"fwpkm", {{"addr_loss", false}}}})},
          {"no_gating", memory_model({{"fwpkm", {{"gating", false}}}})},
          {"no_loss_weight", memory_model({{"fwpkm", {{"loss_weight", false}}}})},
          {"no_value_norm", memory_model({{"fwpkm", {{"value_norm", false}}}})},
          {"rewrite", memory_model({{"value_step", "rewrite"}})},
          {"two_heads", memory_model({{"memory", "shared"}, {"fwpkm", {{"heads", 2}}}})},
          {"pkm_fwpkm", memory_model({{"layout", "gdn+swa"},
                                      {"pkm", {{"layers", {2}}}},
                                      {"fwpkm", {{"layers", {1, 3}}, {"lookahead", 2}}}})},
          {"fwmlp", memory_model(mlp)},
          {"fwmlp_shared", memory_model(shared_mlp)}};
}

inline std::string memory_name(const testing::TestParamInfo<TinyModel>& info) {
  return info.param.name;
}

// Tokens begin..end of rows of `length` tokens.
inline std::vector<int32_t> columns(const std::vector<int32_t>& tokens, int64_t length,
                                    int64_t begin, int64_t end) {
  std::vector<int32_t> part;
  for (auto row = tokens.begin(); row != tokens.end(); row += length) {
    part.insert(part.end(), row + begin, row + end);
  }
  return part;
}

}  // namespace fwpkm
