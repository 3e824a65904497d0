// Config files of the authors, translated.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/config.h"

namespace fwpkm {
namespace {

using nlohmann::json;

ModelConfig parse(const json& file, std::vector<std::string> overrides = {}) {
  return parse_config(file, "config.json", overrides);
}

void expect_error(const json& file, std::initializer_list<std::string> parts) {
  std::string message = "no error";
  try {
    parse(file);
  } catch (const Error& error) {
    message = error.what();
  }
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "wanted: " << part << "\ngot:    " << message;
  }
}

json qwen() {
  return json::parse(R"({
    "architectures": ["Qwen3NextMemForCausalLM"], "model_type": "qwen3_next_mem",
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "vocab_size": 61, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "initializer_range": 0.01, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
    "rope_theta": 10000, "rope_scaling": null, "partial_rotary_factor": 0.25, "head_dim": 16,
    "max_position_embeddings": 1024, "max_window_layers": 12, "torch_dtype": "bfloat16",
    "use_cache": true, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention",
                    "sliding_attention"],
    "sliding_window": 8,
    "pkm_layers": [2], "pkm_k_dim": 16, "pkm_v_dim": 20, "pkm_heads": 2, "pkm_topk": 3,
    "pkm_n_subkeys": 6, "pkm_query_rmsnorm": true,
    "fwpkm_layers": [1, 3], "fwpkm_k_dim": 16, "fwpkm_v_dim": 24, "fwpkm_heads": 1,
    "fwpkm_topk": 4, "fwpkm_n_subkeys": 8, "fwpkm_variant": "pkm", "fwpkm_fp32_fw": true,
    "fwpkm_before_attn": true, "fwpkm_update_chunk_size": 16, "fwpkm_loss_type": "mse",
    "fwpkm_optimizer_type": "sgd", "fwpkm_optimizer_lr": 1.0, "fwpkm_optimizer_weight_decay": 0.0,
    "fwpkm_grad_clip": false, "fwpkm_addr_loss": "me", "fwpkm_addr_loss_weight": 0.5,
    "fwpkm_weight_loss_with_gates": false, "fwpkm_mem_grad_to_values_only": true,
    "fwpkm_query_src": "hidden", "fwpkm_value_src": "hidden", "fwpkm_compress_query": null,
    "fwpkm_compress_value": "zero_mean", "fwpkm_target_value_lookahead": 0,
    "fwpkm_score_nonlinear": "softmax", "fwpkm_qk_score_type": "idw",
    "fwpkm_score_temperature": 1.0, "fwpkm_out_fuse_gate": true
  })");
}

json lact() {
  return json::parse(R"({
    "attention_bias": false, "bos_token_id": 1, "fuse_norm": true, "hidden_act": "swish",
    "hidden_size": 768, "num_attn_heads": 12, "num_attention_heads": 12, "num_hidden_layers": 12,
    "initializer_range": 0.02, "max_position_embeddings": 1024, "model_type": "lact_swiglu",
    "num_lact_heads": 4, "inter_multi": 1, "qkv_bias": false, "attn_qk_norm": false,
    "qkv_silu": true, "no_v_silu": true, "use_fused_kernel": true, "fp32_states": true,
    "lact_chunk_size": 512, "window_size": 2048, "use_muon": false, "lr_dim": 1,
    "lr_parameterization": "mamba", "learnable_ttt_scale": true, "w0_w2_low_rank": 32,
    "fw_init_gain": 0.5, "use_momentum": true, "rope_theta": 10000, "norm_eps": 1e-06,
    "tie_word_embeddings": true, "use_cache": true, "vocab_size": 32000
  })");
}

TEST(OfficialConfig, TranslatesEveryKey) {
  const ModelConfig c = parse(qwen());
  EXPECT_TRUE(c.official);
  EXPECT_EQ(c.official_json, qwen());
  EXPECT_EQ(c.compat, Compat::kOfficial);
  EXPECT_EQ(c.memory, MemoryMode::kShared);
  EXPECT_EQ(c.carry, Carry::kForever);
  EXPECT_EQ(c.name, "gdn+swa|pkm@2+fwpkm@1,3");
  EXPECT_EQ(c.layout, Layout::kGdnSwa);
  EXPECT_TRUE(c.mixers.empty());
  const AttentionConfig attention{.heads = 4, .kv_heads = 2, .head_dim = 16, .window = 8};
  EXPECT_EQ(c.attention, attention);
  const GdnConfig gdn{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 12, .conv = 4};
  EXPECT_EQ(c.gdn, gdn);
  const PkmConfig pkm{
      .layers = {2}, .heads = 2, .topk = 3, .n_subkeys = 6, .key_dim = 16, .value_dim = 20};
  EXPECT_EQ(c.pkm, pkm);
  const FwpkmConfig fwpkm{.layers = {1, 3},
                          .heads = 1,
                          .topk = 4,
                          .n_subkeys = 8,
                          .key_dim = 16,
                          .value_dim = 24,
                          .chunk = 16,
                          .lookahead = 0,
                          .loss_weight = false,
                          .addr_weight = 0.5};
  EXPECT_EQ(c.fwpkm, fwpkm);
  EXPECT_EQ(c.mlp.hidden, 56);
  EXPECT_EQ(c.init_std, 0.01);
  EXPECT_EQ(c.norm_eps, 1e-5);
  EXPECT_EQ(c.max_seq, 1024);
}

TEST(OfficialConfig, BecomesOursWhenWritten) {
  ModelConfig c = parse(qwen());
  const ModelConfig again = parse(config_to_json(c));
  c.official = false;
  c.official_json = nullptr;
  EXPECT_EQ(again, c);
}

TEST(OfficialConfig, OneMarkerIsEnough) {
  for (const char* marker : {"architectures", "model_type"}) {
    json file = qwen();
    file.erase(marker);
    EXPECT_TRUE(parse(file).official);
  }
  json file = qwen();
  file["model_type"] = "llama";
  expect_error(file, {"llama", "supported are Qwen3NextMemForCausalLM"});
  file = qwen();
  file["architectures"] = {"LaCTForCausalLM"};
  expect_error(file, {"lact_swiglu and qwen3_next_mem"});
  expect_error({{"architectures", json::array()}}, {"say nothing"});
  expect_error({{"architectures", "Qwen3NextMemForCausalLM"}}, {"architectures must be list of"});
}

TEST(OfficialConfig, TheirDefaults) {
  const ModelConfig c = parse({{"model_type", "qwen3_next_mem"}, {"tie_word_embeddings", true}});
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.layers, 48);
  EXPECT_EQ(c.attention.kv_heads, 2);
  EXPECT_EQ(c.attention.head_dim, 256);
  EXPECT_EQ(c.gdn.value_heads, 32);
  EXPECT_EQ(c.norm_eps, 1e-6);
  EXPECT_EQ(c.max_seq, 32768);
  EXPECT_EQ(c.layout, Layout::kGdnFa);
  EXPECT_EQ(c.name, "gdn+fa");
}

TEST(OfficialConfig, LayerTypes) {
  json file = qwen();
  file.erase("layer_types");
  EXPECT_EQ(parse(file).layout, Layout::kGdnSwa);
  file["sliding_window"] = nullptr;
  EXPECT_EQ(parse(file).layout, Layout::kGdnFa);
  file["full_attention_interval"] = 2;
  ModelConfig c = parse(file);
  EXPECT_EQ(c.mixers, (std::vector<Mixer>{Mixer::kGdn, Mixer::kFa, Mixer::kGdn, Mixer::kFa}));
  EXPECT_EQ(c.name, "gdn+fa|pkm@2+fwpkm@1,3");
  file["full_attention_interval"] = 1;
  EXPECT_EQ(parse(file).layout, Layout::kFa);
  file["full_attention_interval"] = 0;
  expect_error(file, {"full_attention_interval=0"});
  file = qwen();
  file["sliding_window"] = nullptr;
  expect_error(file, {"\"sliding_attention\", but sliding_window is null"});
  file["layer_types"] = {"linear_attention"};
  expect_error(file, {"layer_types has 1 entries for num_hidden_layers=4"});
  file["layer_types"] = {"linear_attention", "linear_attention", "linear_attention", "mamba"};
  expect_error(file, {"layer_types has \"mamba\""});
  file.erase("layer_types");
  file["num_hidden_layers"] = 1000000000000;
  expect_error(file, {"num_hidden_layers=1000000000000 must be"});
}

TEST(OfficialConfig, BothNamesOfLookahead) {
  json file = qwen();
  file.erase("fwpkm_target_value_lookahead");
  EXPECT_EQ(parse(file).fwpkm.lookahead, 1);
  file["fwpkm_target_lookahead"] = 3;
  EXPECT_EQ(parse(file).fwpkm.lookahead, 3);
  file["fwpkm_target_value_lookahead"] = 3;
  EXPECT_EQ(parse(file).fwpkm.lookahead, 3);
  file["fwpkm_target_value_lookahead"] = 1;
  expect_error(file, {"fwpkm_target_lookahead=3", "disagree"});
  file.erase("fwpkm_target_value_lookahead");
  file["fwpkm_target_lookahead"] = 16;
  expect_error(file, {"[fwpkm] compat \"official\" needs lookahead=16 below chunk=16"});
}

TEST(OfficialConfig, MlpVariantIsFwmlp) {
  json file = qwen();
  file["fwpkm_variant"] = "mlp";
  file["fwpkm_n_subkeys"] = 13;
  file["fwpkm_optimizer_lr"] = 0.1;
  file["fwpkm_compress_value"] = nullptr;
  const ModelConfig c = parse(file);
  EXPECT_TRUE(c.fwpkm.layers.empty());
  EXPECT_EQ(c.fwmlp.layers, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(c.fwmlp.hidden, 13);
  EXPECT_EQ(c.fwmlp.lr, 0.1);
  EXPECT_EQ(c.fwmlp.lookahead, 0);
  EXPECT_FALSE(c.fwmlp.value_norm);
  EXPECT_EQ(c.name, "gdn+swa|pkm@2+fwmlp@1,3");
  file["fwpkm_heads"] = 2;
  expect_error(file, {"fwpkm_heads is 2"});
}

TEST(OfficialConfig, Switches) {
  json file = qwen();
  file["fwpkm_addr_loss"] = nullptr;
  expect_error(file, {"fwpkm_mem_grad_to_values_only is true with fwpkm_addr_loss null"});
  file["fwpkm_mem_grad_to_values_only"] = false;
  file["fwpkm_qk_score_type"] = "dot_product";
  file["fwpkm_out_fuse_gate"] = false;
  file["pkm_query_rmsnorm"] = false;
  file["name"] = "mine";
  const ModelConfig c = parse(file);
  EXPECT_FALSE(c.fwpkm.addr_loss);
  EXPECT_EQ(c.fwpkm.score, Score::kDot);
  EXPECT_FALSE(c.fwpkm.gating);
  EXPECT_FALSE(c.pkm.query_norm);
  EXPECT_EQ(c.name, "mine");
}

TEST(OfficialConfig, SizesOfAbsentMemoriesDoNotMatter) {
  json file = qwen();
  file["fwpkm_layers"] = nullptr;
  file["fwpkm_n_subkeys"] = 2;  // below topk
  EXPECT_TRUE(parse(file).fwpkm.layers.empty());
}

TEST(OfficialConfig, RopeScaling) {
  json file = qwen();
  file["rope_scaling"] = {{"type", "yarn"}, {"factor", 16}};
  EXPECT_EQ(parse(file).attention.yarn_factor, 16);
  EXPECT_EQ(parse(file).yarn_length(), 1024);
  file["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(parse(file).yarn_length(), 4096);
  file["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(parse(file).attention.yarn_factor, 1);
  file["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}};
  expect_error(file, {"rope_scaling: rope_type \"linear\" is not supported"});
  file["rope_scaling"] = {{"rope_type", "yarn"}};
  expect_error(file, {"factor is missing"});
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 16}};
  expect_error(file, {"beta_fast is 16"});
  file["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 1}};
  expect_error(file, {"unknown key \"mscale\""});
  file["rope_scaling"] = 4;
  expect_error(file, {"rope_scaling must be null or an object"});
}

TEST(OfficialConfig, RefusesByName) {
  const std::pair<const char*, json> cases[] = {
      {"attention_bias", true},
      {"attention_dropout", 0.1},
      {"hidden_act", "gelu"},
      {"tie_word_embeddings", false},
      {"fwpkm_variant", "rnn"},
      {"fwpkm_before_attn", false},
      {"fwpkm_loss_type", "mae"},
      {"fwpkm_optimizer_type", "adam"},
      {"fwpkm_optimizer_lr", 0.5},
      {"fwpkm_optimizer_weight_decay", 0.1},
      {"fwpkm_grad_clip", true},
      {"fwpkm_query_src", "key"},
      {"fwpkm_value_src", "output"},
      {"fwpkm_compress_query", "l2norm"},
      {"fwpkm_compress_value", "l2norm"},
      {"fwpkm_score_nonlinear", "relu"},
      {"fwpkm_score_temperature", 0.5},
      {"fwpkm_qk_score_type", "cosine"},
      {"fwpkm_addr_loss", "mi"},
      {"fwpkm_mem_grad_to_values_only", false},
  };
  for (const auto& [key, value] : cases) {
    SCOPED_TRACE(key);
    json file = qwen();
    file[key] = value;
    expect_error(file, {"config.json: " + std::string(key), "not supported; it must be"});
  }
  json file = qwen();
  file.erase("tie_word_embeddings");
  expect_error(file, {"tie_word_embeddings is false by default there"});
}

TEST(OfficialConfig, WrongTypesAndKeys) {
  json file = qwen();
  file["hidden_size"] = "40";
  expect_error(file, {"config.json: hidden_size must be integer, got \"40\""});
  file = qwen();
  file["fwpkm_top_k"] = 4;
  expect_error(file, {"unknown key \"fwpkm_top_k\"; did you mean \"fwpkm_topk\"?"});
  file = qwen();
  file["fwpkm_topk"] = 64;
  expect_error(file, {"[fwpkm] topk=64 exceeds n_subkeys=8", "config.json"});
  file = qwen();
  file["pkm_layers"] = {7};
  expect_error(file, {"[pkm] layers has 7"});
}

TEST(OfficialConfig, FormatsDoNotMix) {
  for (const char* key : {"fwpkm", "layers", "train", "memory", "layout", "compat", "lact"}) {
    json file = qwen();
    file[key] = json::object();
    expect_error(file, {std::string("\"") + key + "\" is a key of our format", "use one format"});
  }
}

TEST(OfficialConfig, OverridesUseOurKeys) {
  const ModelConfig c = parse(qwen(), {"fwpkm.topk=2", "attention.yarn_factor=4", "compat=none"});
  EXPECT_EQ(c.fwpkm.topk, 2);
  EXPECT_EQ(c.attention.yarn_factor, 4);
  EXPECT_EQ(c.compat, Compat::kNone);
  EXPECT_EQ(c.official_json, qwen());
}

TEST(OfficialConfig, Lact) {
  const ModelConfig c = parse(lact());
  EXPECT_EQ(c.architecture, Architecture::kLact);
  EXPECT_EQ(c.name, "lact");
  EXPECT_TRUE(c.official);
  EXPECT_EQ(c.mlp.hidden, 2048);
  EXPECT_EQ(c.attention.head_dim, 64);
  EXPECT_EQ(c.attention.kv_heads, 12);
  EXPECT_EQ(c.rotary_dim(), 64);
  EXPECT_EQ(c.norm_eps, 1e-6);
  const LactConfig expected{.heads = 4, .window = 2048, .chunk = 512, .low_rank = 32};
  EXPECT_EQ(c.lact, expected);
}

TEST(OfficialConfig, LactRefusesByName) {
  const std::pair<const char*, json> cases[] = {
      {"num_attention_heads", 6},
      {"w0_w2_low_rank", -1},
      {"inter_multi", 2},
      {"qkv_bias", true},
      {"attn_qk_norm", true},
      {"qkv_silu", false},
      {"no_v_silu", false},
      {"use_muon", true},
      {"lr_dim", 2},
      {"ttt_prenorm", true},
      {"ttt_loss_type", "l2"},
      {"learnable_ttt_scale", false},
      {"use_momentum", false},
      {"ttt_nope", true},
      {"hidden_ratio", 3},
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"elementwise_affine", false},
      {"tie_word_embeddings", false},
      {"lr_parameterization", "x"},
  };
  for (const auto& [key, value] : cases) {
    SCOPED_TRACE(key);
    json file = lact();
    file[key] = value;
    expect_error(file, {"config.json: " + std::string(key), "not supported; it must be"});
  }
  json file = lact();
  file["num_attn_heads"] = file["num_attention_heads"] = 7;
  expect_error(file, {"num_attn_heads=7 must divide hidden_size=768"});
  file = lact();
  file["pkm_layers"] = {1};
  expect_error(file, {"unknown key \"pkm_layers\""});
}

}  // namespace
}  // namespace fwpkm
