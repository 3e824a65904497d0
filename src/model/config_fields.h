// Every key of our config format, once: reading, writing, overrides, ranges and help all walk
// this list. Internal to config.cpp and config_official.cpp.
#pragma once

#include "base/json_fields.h"
#include "model/config.h"

namespace fwpkm {

template <>
struct EnumNames<Architecture> {
  static constexpr std::array<std::string_view, 2> names{"fwpkm", "lact"};
};
template <>
struct EnumNames<Layout> {
  static constexpr std::array<std::string_view, 4> names{"gdn", "gdn+swa", "gdn+fa", "fa"};
};
template <>
struct EnumNames<Mixer> {  // kLact comes with the architecture and has no name in a file
  static constexpr std::array<std::string_view, 3> names{"gdn", "swa", "fa"};
};
template <>
struct EnumNames<MemoryMode> {
  static constexpr std::array<std::string_view, 2> names{"shared", "per_sequence"};
};
template <>
struct EnumNames<Carry> {
  static constexpr std::array<std::string_view, 3> names{"sequence", "document", "forever"};
};
template <>
struct EnumNames<Compat> {
  static constexpr std::array<std::string_view, 2> names{"none", "official"};
};
template <>
struct EnumNames<Score> {
  static constexpr std::array<std::string_view, 2> names{"idw", "dot"};
};
template <>
struct EnumNames<ValueStep::Kind> {
  static constexpr std::array<std::string_view, 3> names{"slots", "paper", "rewrite"};
};

template <>
struct Codec<ValueStep> {
  static std::string type() { return Codec<ValueStep::Kind>::type() + " | number above 0"; }
  static bool read(const nlohmann::json& json, ValueStep& out) {
    ValueStep step;
    if (Codec<double>::read(json, step.number)) {
      step.kind = ValueStep::Kind::kNumber;
    } else if (!Codec<ValueStep::Kind>::read(json, step.kind)) {
      return false;
    }
    out = step;
    return true;
  }
  static nlohmann::json write(const ValueStep& step) {
    return step.kind == ValueStep::Kind::kNumber ? nlohmann::json(step.number)
                                                 : nlohmann::json(enum_name(step.kind));
  }
  static nlohmann::json from_text(const std::string& text) {
    const nlohmann::json number = Codec<double>::from_text(text);
    return number.is_number() ? number : nlohmann::json(text);
  }
};

struct StepRule {};
inline std::string rule_text(StepRule) {
  return "";
}
inline bool rule_holds(StepRule, const ValueStep& step) {
  return step.kind != ValueStep::Kind::kNumber || rule_holds(RealRange{0, 1e6, true}, step.number);
}

// Upper bounds are far above any sensible model, and low enough that no parameter count (cost.cpp)
// can overflow 64 bits.
inline constexpr IntRange kHeads{1, 1 << 10}, kHeadDim{1, 1 << 13}, kWidth{1, 1 << 16},
    kHidden{1, 1 << 20}, kSubkeys{1, 1 << 16}, kTokens{1, int64_t{1} << 40},
    kTokensOrNone{0, int64_t{1} << 40};
inline constexpr RealRange kPositive{0, 1e9, true}, kFraction{0, 1}, kRate{0, 1e3};
inline constexpr AnyValue kAny{};

template <typename Config, typename F>
void visit(Config& c, F&& f) {
  f("name", c.name, NotEmpty{}, "what the model is called in reports; required");
  f("architecture", c.architecture, kAny, "lact replaces all token mixers by LaCT layers");
  f("vocab_size", c.vocab_size, IntRange{1, 1 << 24}, "tokens; the embedding is tied");
  f("hidden_size", c.hidden_size, kWidth, "features of the residual stream");
  f("layers", c.layers, IntRange{1, 1 << 12}, "number of layers");
  f("layout", c.layout, kAny,
    "token mixers; of each 4 layers the last is attention, or all are (fa)");
  f("mixers", c.mixers, kAny, "one mixer per layer; takes the place of layout");
  f("norm_eps", c.norm_eps, kPositive, "epsilon of RMS norms");
  f("init_std", c.init_std, kPositive, "standard deviation of initial slow weights");
  f("max_seq", c.max_seq, kTokens, "longest sequence seen in training");
  f("memory", c.memory, kAny, "whose values FwPKM writes: one table for all rows, or one per row");
  f("carry", c.carry, kAny, "how long a row keeps its own values");
  f("value_step", c.value_step, StepRule{}, "step of a FwPKM value write");
  f("compat", c.compat, kAny, "official: fast-weight training as in the authors' code");
  f("bptt_chunks", c.bptt_chunks, kTokensOrNone,
    "chunks that gradients go back through writes; 0 is all");

  f("attention.heads", c.attention.heads, kHeads, "query heads");
  f("attention.kv_heads", c.attention.kv_heads, kHeads, "key and value heads; divides heads");
  f("attention.head_dim", c.attention.head_dim, kHeadDim, "features of a head");
  f("attention.window", c.attention.window, kTokens, "tokens that swa layers see");
  f("attention.rotary_fraction", c.attention.rotary_fraction, kFraction,
    "part of a head that rotates");
  f("attention.rope_theta", c.attention.rope_theta, RealRange{1, 1e12}, "rotary base");
  f("attention.yarn_factor", c.attention.yarn_factor, RealRange{1, 1e6},
    "how many times longer YaRN makes the context");
  f("attention.yarn_original_length", c.attention.yarn_original_length, kTokensOrNone,
    "length that YaRN stretches; 0 is max_seq");

  f("gdn.key_heads", c.gdn.key_heads, kHeads, "query and key heads");
  f("gdn.value_heads", c.gdn.value_heads, kHeads, "value heads; a multiple of key_heads");
  f("gdn.key_dim", c.gdn.key_dim, kHeadDim, "features of a key head");
  f("gdn.value_dim", c.gdn.value_dim, kHeadDim, "features of a value head");
  f("gdn.conv", c.gdn.conv, IntRange{1, 64}, "taps of the short convolution");

  f("mlp.hidden", c.mlp.hidden, kHidden, "SwiGLU features");

  f("pkm.layers", c.pkm.layers, kAny, "layers whose MLP is a PKM, from 0");
  f("pkm.heads", c.pkm.heads, kHeads, "heads");
  f("pkm.topk", c.pkm.topk, kSubkeys, "slots read per head; at most n_subkeys");
  f("pkm.n_subkeys", c.pkm.n_subkeys, kSubkeys, "sub-keys per codebook; slots are its square");
  f("pkm.key_dim", c.pkm.key_dim, kWidth, "features of a query, both halves; even");
  f("pkm.value_dim", c.pkm.value_dim, kWidth, "features of a value");
  f("pkm.query_norm", c.pkm.query_norm, kAny, "RMS norm on queries");

  f("fwpkm.layers", c.fwpkm.layers, kAny, "layers with a FwPKM before the mixer, from 0");
  f("fwpkm.heads", c.fwpkm.heads, kHeads, "heads");
  f("fwpkm.topk", c.fwpkm.topk, kSubkeys, "slots read per head; at most n_subkeys");
  f("fwpkm.n_subkeys", c.fwpkm.n_subkeys, kSubkeys, "sub-keys per codebook; slots are its square");
  f("fwpkm.key_dim", c.fwpkm.key_dim, kWidth, "features of a query, both halves; even");
  f("fwpkm.value_dim", c.fwpkm.value_dim, kWidth, "features of a value");
  f("fwpkm.chunk", c.fwpkm.chunk, kTokens, "tokens between updates");
  f("fwpkm.lookahead", c.fwpkm.lookahead, kTokensOrNone, "a token stores the value this far ahead");
  f("fwpkm.value_norm", c.fwpkm.value_norm, kAny, "z-score values");
  f("fwpkm.gating", c.fwpkm.gating, kAny, "gate between what was read and the token's own value");
  f("fwpkm.loss_weight", c.fwpkm.loss_weight, kAny, "weight writes by gates; needs gating");
  f("fwpkm.addr_loss", c.fwpkm.addr_loss, kAny,
    "keys follow the addressing loss; else the memory loss");
  f("fwpkm.addr_weight", c.fwpkm.addr_weight, kRate, "weight of the addressing loss");
  f("fwpkm.score", c.fwpkm.score, kAny, "how a query scores a sub-key");

  f("fwmlp.layers", c.fwmlp.layers, kAny, "layers with a fast-weight MLP before the mixer, from 0");
  f("fwmlp.key_dim", c.fwmlp.key_dim, kWidth, "input features");
  f("fwmlp.value_dim", c.fwmlp.value_dim, kWidth, "output features");
  f("fwmlp.hidden", c.fwmlp.hidden, kHidden, "SwiGLU features");
  f("fwmlp.chunk", c.fwmlp.chunk, kTokens, "tokens between updates");
  f("fwmlp.lookahead", c.fwmlp.lookahead, kTokensOrNone, "a token stores the value this far ahead");
  f("fwmlp.lr", c.fwmlp.lr, kRate, "step of a write");
  f("fwmlp.value_norm", c.fwmlp.value_norm, kAny, "z-score values");
  f("fwmlp.gating", c.fwmlp.gating, kAny, "gate between what was read and the token's own value");

  f("lact.heads", c.lact.heads, kHeads, "fast-weight heads; divides hidden_size");
  f("lact.window", c.lact.window, kTokens, "tokens that its attention sees");
  f("lact.chunk", c.lact.chunk, kTokens, "tokens between updates");
  f("lact.low_rank", c.lact.low_rank, IntRange{1, 1 << 12},
    "rank of two of the three initial fast weights");
  f("lact.lr", c.lact.lr, RealRange{0, 1e3, true}, "base learning rate of the fast weights");
  f("lact.init_gain", c.lact.init_gain, kPositive, "gain of the low-rank factors at the start");

  f("train.max_lr", c.train.max_lr, kRate, "learning rate after the warm-up");
  f("train.min_lr", c.train.min_lr, kRate, "learning rate at the last step");
  f("train.warmup", c.train.warmup, kTokensOrNone, "steps of linear warm-up");
  f("train.steps", c.train.steps, kTokens, "optimizer steps");
  f("train.weight_decay", c.train.weight_decay, kRate, "on matrices only");
  f("train.batch", c.train.batch, IntRange{1, 1 << 24}, "sequences per step");
  f("train.micro_batch", c.train.micro_batch, IntRange{1, 1 << 24},
    "sequences in one pass; a larger one than batch is batch");
  f("train.seq", c.train.seq, kTokens, "tokens per sequence; max_seq where the file has none");
  f("train.clip", c.train.clip, kRate, "largest gradient norm; 0 is no clipping");
  f("train.beta1", c.train.beta1, RealRange{0, 0.999999}, "AdamW, mean of gradients");
  f("train.beta2", c.train.beta2, RealRange{0, 0.999999}, "AdamW, mean of squares");
  f("train.eps", c.train.eps, kPositive, "AdamW, epsilon");
  f("train.pswa_prob", c.train.pswa_prob, kFraction,
    "probability that a step limits full attention to a window");
  f("train.pswa_window", c.train.pswa_window, kTokens, "that window");
  f("train.hide_borders", c.train.hide_borders, kAny,
    "mixers do not see across the border of documents in a sequence");
  f("train.seed", c.train.seed, IntRange{0, INT64_MAX}, "seed of all random numbers");
}

// config_official.cpp: true where the JSON bears the authors' markers.
bool is_official(const nlohmann::json& json);
// The keys of the authors' formats, for messages.
bool is_official_key(const std::string& key);
ModelConfig translate_official(const nlohmann::json& json, const std::string& source);

}  // namespace fwpkm
