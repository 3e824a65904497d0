// The authors' config files. Their keys, defaults and meanings; what we cannot do is refused by
// name, so that nothing in a file is silently ignored.
#include <algorithm>
#include <optional>
#include <set>

#include "model/config_fields.h"

namespace fwpkm {
namespace {

using nlohmann::json;
using Layers = std::vector<int64_t>;

// Keys that Hugging Face writes and that change nothing here: token ids, precisions (fast weights
// are float32 or better always), caching and which fused kernels to use.
constexpr std::string_view kIgnored[] = {"_attn_implementation",
                                         "_attn_implementation_autoset",
                                         "_name_or_path",
                                         "architectures",
                                         "attn_implementation",
                                         "auto_map",
                                         "bos_token_id",
                                         "chunk_size_feed_forward",
                                         "dtype",
                                         "eos_token_id",
                                         "fp32_states",
                                         "fuse_cross_entropy",
                                         "fuse_norm",
                                         "fuse_swiglu",
                                         "fwpkm_fp32_fw",
                                         "id2label",
                                         "is_decoder",
                                         "is_encoder_decoder",
                                         "label2id",
                                         "last_layer_fuse_norm",
                                         "max_window_layers",
                                         "model_type",
                                         "num_fwpkm_layers",
                                         "output_attentions",
                                         "output_hidden_states",
                                         "pad_token_id",
                                         "problem_type",
                                         "return_dict",
                                         "return_dict_in_generate",
                                         "sep_token_id",
                                         "tokenizer_class",
                                         "torch_dtype",
                                         "torchscript",
                                         "transformers_version",
                                         "use_bfloat16",
                                         "use_cache",
                                         "use_fused_kernel",
                                         "use_sliding_window"};

// Takes keys out of one of their files and remembers which.
class Reader {
 public:
  Reader(const json& file, const std::string& source) : json_(file), source_(source) {
    keys_.insert(keys_.end(), std::begin(kIgnored), std::end(kIgnored));
  }

  const json* find(std::string_view key) {
    keys_.emplace_back(key);
    const auto found = json_.find(std::string(key));
    return found == json_.end() ? nullptr : &*found;
  }

  template <typename T>
  T take(std::string_view key, T fallback) {
    if (const json* value = find(key)) {
      read_value(*value, key, source_, fallback);
    }
    return fallback;
  }

  // A key that may be null; absent gives `fallback`.
  template <typename T>
  std::optional<T> take_nullable(std::string_view key, std::optional<T> fallback) {
    const json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    if (value->is_null()) {
      return std::nullopt;
    }
    T result{};
    read_value(*value, key, source_, result);
    return result;
  }

  // Only the values in `allowed` work here; `fallback` is what their code takes for no value.
  void only(std::string_view key, const json& fallback, std::initializer_list<json> allowed) {
    const json* value = find(key);
    const json& got = value ? *value : fallback;
    if (std::find(allowed.begin(), allowed.end(), got) == allowed.end()) {
      std::string text;
      for (const json& option : allowed) {
        text += (text.empty() ? "" : " or ") + shown(option);
      }
      fail("config", "{}: {} is {}{}, which is not supported; it must be {}", source_, key,
           shown(got), value ? "" : " by default there", text);
    }
  }

  // All keys have been asked for: what is left is unknown.
  void finish() {
    for (const auto& entry : json_.items()) {
      if (std::find(keys_.begin(), keys_.end(), entry.key()) == keys_.end()) {
        fail("config", "{}: unknown key {}; did you mean \"{}\"?", source_, shown(entry.key()),
             nearest_key(entry.key(), keys_));
      }
    }
  }

  const std::string& source() const { return source_; }
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  const json& json_;
  const std::string& source_;
  std::vector<std::string> keys_;
};

void read_rope(Reader& in, ModelConfig& c) {
  c.max_seq = in.take<int64_t>("max_position_embeddings", c.max_seq);
  c.attention.rope_theta = in.take<double>("rope_theta", 10000);
  const json* scaling = in.find("rope_scaling");
  if (scaling == nullptr || scaling->is_null()) {
    return;
  }
  const std::string where = in.source() + ": rope_scaling";
  if (!scaling->is_object()) {
    fail("config", "{} must be null or an object, got {}", where, shown(*scaling));
  }
  Reader rope(*scaling, where);
  std::string type = rope.take<std::string>("type", "");
  type = rope.take<std::string>("rope_type", type);
  require(type == "yarn" || type == "default", "config",
          "{}: rope_type {} is not supported; it must be \"yarn\" or \"default\"", where,
          shown(type));
  if (type == "yarn") {
    require(scaling->contains("factor"), "config", "{}: factor is missing", where);
    c.attention.yarn_factor = rope.take<double>("factor", 1);
    c.attention.yarn_original_length =
        rope.take_nullable<int64_t>("original_max_position_embeddings", 0).value_or(0);
    rope.only("beta_fast", 32, {32, nullptr});
    rope.only("beta_slow", 1, {1, nullptr});
    rope.only("attention_factor", nullptr, {nullptr});
    rope.only("truncate", true, {true});
  }
  rope.only("rope_theta", c.attention.rope_theta, {c.attention.rope_theta});
  rope.finish();
}

// One mixer per layer; taken back to a layout where it is one.
void read_mixers(Reader& in, ModelConfig& c) {
  const auto window = in.take_nullable<int64_t>("sliding_window", std::nullopt);
  const auto interval = in.take<int64_t>("full_attention_interval", 4);
  const auto types = in.take_nullable<std::vector<std::string>>("layer_types", std::nullopt);
  require(interval >= 1, "config", "{}: full_attention_interval={} must be 1 or more", in.source(),
          interval);
  // The list below is made before ranges are checked.
  require(rule_holds(IntRange{1, 1 << 12}, c.layers), "config",
          "{}: num_hidden_layers={} must be 1..4096", in.source(), c.layers);
  c.attention.window = window.value_or(c.attention.window);
  if (types) {
    require(static_cast<int64_t>(types->size()) == c.layers, "config",
            "{}: layer_types has {} entries for num_hidden_layers={}", in.source(), types->size(),
            c.layers);
    for (const std::string& type : *types) {
      if (type == "linear_attention") {
        c.mixers.push_back(Mixer::kGdn);
      } else if (type == "sliding_attention") {
        require(window.has_value(), "config",
                "{}: layer_types has \"sliding_attention\", but sliding_window is null",
                in.source());
        c.mixers.push_back(Mixer::kSwa);
      } else {
        require(type == "full_attention", "config",
                "{}: layer_types has {}; it must be \"linear_attention\", \"sliding_attention\" or "
                "\"full_attention\"",
                in.source(), shown(type));
        c.mixers.push_back(Mixer::kFa);
      }
    }
  } else {
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      const Mixer attention = window ? Mixer::kSwa : Mixer::kFa;
      c.mixers.push_back((layer + 1) % interval ? Mixer::kGdn : attention);
    }
  }
  for (const Layout layout : {Layout::kGdn, Layout::kGdnSwa, Layout::kGdnFa, Layout::kFa}) {
    ModelConfig regular;
    regular.layout = layout;
    bool same = true;
    for (int layer = 0; layer < c.layers; ++layer) {
      same = same && regular.mixer(layer) == c.mixer(layer);
    }
    if (same) {
      c.layout = layout;
      c.mixers.clear();
      return;
    }
  }
}

// Same defaults as theirs; only used where there is such a layer.
void read_pkm(Reader& in, ModelConfig& c) {
  PkmConfig pkm;
  pkm.layers = in.take_nullable<Layers>("pkm_layers", std::nullopt).value_or(Layers{});
  pkm.key_dim = in.take<int64_t>("pkm_k_dim", 512);
  pkm.value_dim = in.take<int64_t>("pkm_v_dim", 512);
  pkm.heads = in.take<int64_t>("pkm_heads", 4);
  pkm.topk = in.take<int64_t>("pkm_topk", 32);
  pkm.n_subkeys = in.take<int64_t>("pkm_n_subkeys", 512);
  pkm.query_norm = in.take<bool>("pkm_query_rmsnorm", true);
  if (!pkm.layers.empty()) {
    c.pkm = pkm;
  }
}

// Their files say fwpkm_target_lookahead, their code reads fwpkm_target_value_lookahead.
int64_t read_lookahead(Reader& in) {
  const json* file = in.find("fwpkm_target_lookahead");
  const auto lookahead = in.take<int64_t>("fwpkm_target_lookahead", 1);
  const auto code = in.take<int64_t>("fwpkm_target_value_lookahead", lookahead);
  require(file == nullptr || lookahead == code, "config",
          "{}: fwpkm_target_lookahead={} and fwpkm_target_value_lookahead={} disagree; remove one",
          in.source(), lookahead, code);
  return code;
}

void read_fwpkm(Reader& in, ModelConfig& c) {
  FwpkmConfig m;
  m.layers = in.take_nullable<Layers>("fwpkm_layers", std::nullopt).value_or(Layers{});
  m.key_dim = in.take<int64_t>("fwpkm_k_dim", 512);
  m.value_dim = in.take<int64_t>("fwpkm_v_dim", 512);
  m.heads = in.take<int64_t>("fwpkm_heads", 1);
  m.topk = in.take<int64_t>("fwpkm_topk", 8);
  m.n_subkeys = in.take<int64_t>("fwpkm_n_subkeys", 512);
  m.chunk = in.take<int64_t>("fwpkm_update_chunk_size", 512);
  m.lookahead = read_lookahead(in);
  m.gating = in.take<bool>("fwpkm_out_fuse_gate", true);
  m.loss_weight = in.take<bool>("fwpkm_weight_loss_with_gates", true);
  m.addr_weight = in.take<double>("fwpkm_addr_loss_weight", 1);
  const auto variant = in.take<std::string>("fwpkm_variant", "pkm");
  const auto lr = in.take<double>("fwpkm_optimizer_lr", 1);
  const auto values_only = in.take<bool>("fwpkm_mem_grad_to_values_only", true);

  in.only("fwpkm_variant", "pkm", {"pkm", "mlp"});
  in.only("fwpkm_before_attn", true, {true});
  in.only("fwpkm_loss_type", "mse", {"mse"});
  in.only("fwpkm_optimizer_type", "sgd", {"sgd"});
  in.only("fwpkm_optimizer_weight_decay", 0, {0});
  in.only("fwpkm_grad_clip", false, {false});
  in.only("fwpkm_query_src", "hidden", {"hidden"});
  in.only("fwpkm_value_src", "hidden", {"hidden"});
  in.only("fwpkm_compress_query", nullptr, {nullptr});
  in.only("fwpkm_compress_value", "zero_mean", {"zero_mean", nullptr});
  in.only("fwpkm_score_nonlinear", "softmax", {"softmax"});
  in.only("fwpkm_score_temperature", 1, {1});
  in.only("fwpkm_qk_score_type", "idw", {"idw", "dot_product"});
  in.only("fwpkm_addr_loss", "me", {"me", nullptr});
  m.value_norm = in.take_nullable<std::string>("fwpkm_compress_value", "zero_mean").has_value();
  m.addr_loss = in.take_nullable<std::string>("fwpkm_addr_loss", "me").has_value();
  m.score = in.take<std::string>("fwpkm_qk_score_type", "idw") == "idw" ? Score::kIdw : Score::kDot;

  if (variant == "mlp") {
    require(m.heads == 1, "config",
            "{}: fwpkm_heads is {}, which is not supported with variant \"mlp\"; it must be 1",
            in.source(), m.heads);
    if (!m.layers.empty()) {
      c.fwmlp = {.layers = m.layers,
                 .key_dim = m.key_dim,
                 .value_dim = m.value_dim,
                 .hidden = m.n_subkeys,
                 .chunk = m.chunk,
                 .lookahead = m.lookahead,
                 .lr = lr,
                 .value_norm = m.value_norm,
                 .gating = m.gating};
    }
    return;
  }
  in.only("fwpkm_optimizer_lr", 1, {1});
  // With the addressing loss, keys follow it alone; without, they follow the memory loss.
  require(
      values_only == m.addr_loss, "config",
      "{}: fwpkm_mem_grad_to_values_only is {} with fwpkm_addr_loss {}, which is not supported; "
      "it must be {}",
      in.source(), values_only, m.addr_loss ? "\"me\"" : "null", m.addr_loss);
  if (!m.layers.empty()) {
    c.fwpkm = m;
  }
}

ModelConfig read_qwen(Reader& in) {
  ModelConfig c;
  c.vocab_size = in.take<int64_t>("vocab_size", 151936);
  c.hidden_size = in.take<int64_t>("hidden_size", 2048);
  c.mlp.hidden = in.take<int64_t>("intermediate_size", 5632);
  c.layers = in.take<int64_t>("num_hidden_layers", 48);
  c.attention.heads = in.take<int64_t>("num_attention_heads", 16);
  c.attention.kv_heads = in.take<int64_t>("num_key_value_heads", 2);
  c.attention.head_dim = in.take<int64_t>("head_dim", 256);
  c.attention.rotary_fraction = in.take<double>("partial_rotary_factor", 0.25);
  c.norm_eps = in.take<double>("rms_norm_eps", 1e-6);
  c.init_std = in.take<double>("initializer_range", 0.02);
  c.gdn.conv = in.take<int64_t>("linear_conv_kernel_dim", 4);
  c.gdn.key_dim = in.take<int64_t>("linear_key_head_dim", 128);
  c.gdn.value_dim = in.take<int64_t>("linear_value_head_dim", 128);
  c.gdn.key_heads = in.take<int64_t>("linear_num_key_heads", 16);
  c.gdn.value_heads = in.take<int64_t>("linear_num_value_heads", 32);
  c.max_seq = 32768;
  in.only("tie_word_embeddings", false, {true});
  in.only("attention_bias", false, {false});
  in.only("attention_dropout", 0, {0});
  in.only("hidden_act", "silu", {"silu", "swish"});
  read_rope(in, c);
  read_mixers(in, c);
  read_pkm(in, c);
  read_fwpkm(in, c);
  return c;
}

ModelConfig read_lact(Reader& in) {
  ModelConfig c;
  c.architecture = Architecture::kLact;
  c.vocab_size = in.take<int64_t>("vocab_size", 32000);
  c.hidden_size = in.take<int64_t>("hidden_size", 2048);
  c.layers = in.take<int64_t>("num_hidden_layers", 24);
  c.norm_eps = in.take<double>("norm_eps", 1e-6);
  c.init_std = in.take<double>("initializer_range", 0.006);
  const auto heads = in.take<int64_t>("num_attn_heads", 32);
  in.only("num_attention_heads", 32, {heads});
  require(rule_holds(kWidth, c.hidden_size), "config", "{}: hidden_size={} must be {}", in.source(),
          c.hidden_size, rule_text(kWidth));
  require(heads >= 1 && c.hidden_size % heads == 0, "config",
          "{}: num_attn_heads={} must divide hidden_size={}", in.source(), heads, c.hidden_size);
  c.attention.heads = c.attention.kv_heads = heads;
  c.attention.head_dim = c.hidden_size / heads;
  c.attention.rotary_fraction = in.take<double>("partial_rotary_factor", 1);
  c.lact.heads = in.take<int64_t>("num_lact_heads", 4);
  c.lact.window = in.take<int64_t>("window_size", 2048);
  c.lact.chunk = in.take<int64_t>("lact_chunk_size", 2048);
  c.lact.low_rank = in.take<int64_t>("w0_w2_low_rank", -1);
  c.lact.init_gain = in.take<double>("fw_init_gain", 0.5);
  require(c.lact.low_rank >= 1, "config",
          "{}: w0_w2_low_rank is {}, which is not supported; it must be 1 or more", in.source(),
          c.lact.low_rank);
  // A SwiGLU of ratio 4 has 2/3 of 4 * hidden features, rounded up to a multiple of 256.
  in.only("hidden_ratio", 4, {4, nullptr});
  const int64_t rounded = (c.hidden_size * 4 * 2 / 3 + 255) / 256 * 256;
  c.mlp.hidden = in.take_nullable<int64_t>("intermediate_size", std::nullopt).value_or(rounded);
  c.max_seq = 2048;
  in.only("tie_word_embeddings", false, {true});
  in.only("attention_bias", false, {false});
  in.only("hidden_act", "swish", {"swish", "silu"});
  in.only("inter_multi", 1, {1});
  in.only("qkv_bias", false, {false});
  in.only("attn_qk_norm", false, {false});
  in.only("qkv_silu", true, {true});
  in.only("no_v_silu", false, {true});
  in.only("use_muon", false, {false});
  in.only("lr_dim", 1, {1});
  in.only("lr_parameterization", "mamba", {"mamba"});
  in.only("learnable_ttt_scale", true, {true});
  in.only("use_momentum", true, {true});
  in.only("ttt_loss_type", "dot_product", {"dot_product"});
  in.only("ttt_prenorm", false, {false});
  in.only("ttt_nope", false, {false});
  in.only("elementwise_affine", true, {true});
  read_rope(in, c);
  return c;
}

// "qwen3_next_mem" or "lact_swiglu", from whichever marker is there.
std::string official_type(const json& file, const std::string& source) {
  std::set<std::string> types;
  if (const auto found = file.find("model_type"); found != file.end()) {
    std::string type;
    read_value(*found, "model_type", source, type);
    types.insert(type);
  }
  if (const auto found = file.find("architectures"); found != file.end() && !found->is_null()) {
    std::vector<std::string> classes;
    read_value(*found, "architectures", source, classes);
    for (const std::string& name : classes) {
      types.insert(name == "Qwen3NextMemForCausalLM" ? "qwen3_next_mem"
                   : name == "LaCTForCausalLM"       ? "lact_swiglu"
                                                     : name);
    }
  }
  require(types.size() == 1 && (types.contains("qwen3_next_mem") || types.contains("lact_swiglu")),
          "config",
          "{}: architectures and model_type say {}; supported are Qwen3NextMemForCausalLM "
          "(qwen3_next_mem) and LaCTForCausalLM (lact_swiglu)",
          source, types.empty() ? "nothing" : fmt::format("{}", fmt::join(types, " and ")));
  return *types.begin();
}

}  // namespace

bool is_official(const json& file) {
  return file.contains("architectures") || file.contains("model_type");
}

bool is_official_key(const std::string& key) {
  static const std::set<std::string> keys = [] {
    const json nothing = {{"tie_word_embeddings", true},
                          {"no_v_silu", true},
                          {"w0_w2_low_rank", 1},
                          {"num_attn_heads", 32}};
    const std::string source;
    Reader qwen(nothing, source), lact(nothing, source);
    read_qwen(qwen);
    read_lact(lact);
    std::set<std::string> all(qwen.keys().begin(), qwen.keys().end());
    all.insert(lact.keys().begin(), lact.keys().end());
    return all;
  }();
  return keys.contains(key);
}

ModelConfig translate_official(const json& file, const std::string& source) {
  const std::string type = official_type(file, source);
  for (const std::string& key : field_keys(ModelConfig{})) {
    const auto [section, name] = split_key(key);
    const std::string top(section.empty() ? name : section);
    require(!file.contains(top) || top == "name" || is_official_key(top), "config",
            "{}: \"{}\" is a key of our format, but the file is in the authors' "
            "(\"architectures\" or \"model_type\"); use one format",
            source, top);
  }
  Reader in(file, source);
  ModelConfig c = type == "lact_swiglu" ? read_lact(in) : read_qwen(in);
  c.name = in.take<std::string>("name", row_name(c));
  in.finish();
  c.official = true;
  c.official_json = file;
  c.compat = Compat::kOfficial;
  c.memory = MemoryMode::kShared;
  c.carry = Carry::kForever;
  return c;
}

}  // namespace fwpkm
