// What a model is: its sizes, its layers and how its memories behave. Files are JSON, in our
// format or in the authors' (Hugging Face style) one, which is translated. docs/config.md lists
// the keys; config_fields.h is where each is declared, once.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace fwpkm {

enum class Architecture { kFwpkm, kLact };
enum class Layout { kGdn, kGdnSwa, kGdnFa, kFa };
enum class Mixer { kGdn, kSwa, kFa, kLact };
enum class MemoryMode { kShared, kPerSequence };
enum class Carry { kSequence, kDocument, kForever };
enum class Compat { kNone, kOfficial };
enum class Score { kIdw, kDot };

// The step of a value write: a rule, or a number (then `number` holds it).
struct ValueStep {
  enum class Kind { kSlots, kPaper, kRewrite, kNumber };
  Kind kind = Kind::kSlots;
  double number = 0;
  bool operator==(const ValueStep&) const = default;
};

struct AttentionConfig {
  int64_t heads = 12, kv_heads = 4, head_dim = 64, window = 512;
  double rotary_fraction = 0.25, rope_theta = 10000, yarn_factor = 1;
  int64_t yarn_original_length = 0;  // 0: max_seq
  bool operator==(const AttentionConfig&) const = default;
};

struct GdnConfig {
  int64_t key_heads = 8, value_heads = 8, key_dim = 64, value_dim = 64, conv = 4;
  bool operator==(const GdnConfig&) const = default;
};

struct MlpConfig {
  int64_t hidden = 2304;
  bool operator==(const MlpConfig&) const = default;
};

struct PkmConfig {
  std::vector<int64_t> layers;
  int64_t heads = 4, topk = 32, n_subkeys = 512, key_dim = 512, value_dim = 512;
  bool query_norm = true;
  int64_t slots() const { return n_subkeys * n_subkeys; }
  bool operator==(const PkmConfig&) const = default;
};

struct FwpkmConfig {
  std::vector<int64_t> layers;
  int64_t heads = 1, topk = 8, n_subkeys = 512, key_dim = 512, value_dim = 512;
  int64_t chunk = 512, lookahead = 1;
  bool value_norm = true, gating = true;
  bool loss_weight = true;  // without gating, writes have weight 1 whatever this says
  bool addr_loss = true;
  double addr_weight = 1;
  Score score = Score::kIdw;
  int64_t slots() const { return n_subkeys * n_subkeys; }
  bool weighted() const { return gating && loss_weight; }
  bool operator==(const FwpkmConfig&) const = default;
};

struct FwmlpConfig {
  std::vector<int64_t> layers;
  int64_t key_dim = 512, value_dim = 512, hidden = 2304, chunk = 512, lookahead = 1;
  double lr = 0.1;
  bool value_norm = true, gating = true;
  bool operator==(const FwmlpConfig&) const = default;
};

struct LactConfig {
  int64_t heads = 4, window = 2048, chunk = 512, low_rank = 32;
  double lr = 0.001, init_gain = 0.5;
  bool operator==(const LactConfig&) const = default;
};

struct TrainConfig {
  double max_lr = 1e-3, min_lr = 1e-4;
  int64_t warmup = 100, steps = 20000;
  double weight_decay = 0.1;
  int64_t batch = 128, micro_batch = 8, seq = 4096;
  double clip = 1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double pswa_prob = 0;
  int64_t pswa_window = 512;
  bool hide_borders = false;
  int64_t seed = 1;
  // Rows that go through the model at once; gradients of a batch accumulate over batch / micro().
  int64_t micro() const { return micro_batch < batch ? micro_batch : batch; }
  bool operator==(const TrainConfig&) const = default;
};

struct ModelConfig {
  std::string name;
  Architecture architecture = Architecture::kFwpkm;
  int64_t vocab_size = 32000, hidden_size = 768, layers = 12;
  Layout layout = Layout::kGdn;
  std::vector<Mixer> mixers;  // one per layer; empty: `layout` decides
  double norm_eps = 1e-5, init_std = 0.02;
  int64_t max_seq = 4096;
  MemoryMode memory = MemoryMode::kPerSequence;
  Carry carry = Carry::kSequence;
  ValueStep value_step;
  Compat compat = Compat::kNone;
  int64_t bptt_chunks = 0;  // 0: all
  AttentionConfig attention;
  GdnConfig gdn;
  MlpConfig mlp;
  PkmConfig pkm;
  FwpkmConfig fwpkm;
  FwmlpConfig fwmlp;
  LactConfig lact;
  TrainConfig train;

  // Set where the file was the authors'. `official_json` is that file as it was: no override is
  // in it.
  bool official = false;
  nlohmann::json official_json;

  Mixer mixer(int layer) const;
  bool has_mixer(Mixer kind) const;  // in any layer
  int64_t window(int layer) const;   // tokens that its attention sees; 0: all, or it has none
  bool has_pkm(int layer) const;     // in place of the MLP
  bool has_fwpkm(int layer) const;   // before the token mixer
  bool has_any_fwpkm() const { return !fwpkm.layers.empty(); }
  bool has_fwmlp(int layer) const;  // before the token mixer
  int64_t rotary_dim() const;       // features of a head that rotate
  int64_t yarn_length() const;      // positions that YaRN stretches

  bool operator==(const ModelConfig&) const = default;
};

// The paper's row for this model, such as "gdn+swa|pkm@6+fwpkm@2,10".
std::string row_name(const ModelConfig& config);

// `overrides` are "key=value" with our key names, such as "fwpkm.topk=8"; lists are "2,6,10".
// They are applied last, then the whole is validated.
ModelConfig load_config(const std::filesystem::path& file,
                        std::span<const std::string> overrides = {});
ModelConfig parse_config(const nlohmann::json& json, const std::string& source,
                         std::span<const std::string> overrides = {});

// Our format, every key. parse_config of it gives the same model; `official` is not kept.
nlohmann::json config_to_json(const ModelConfig& config);

// Throws for the first thing that is wrong. `source` stands in the message.
void validate(const ModelConfig& config, const std::string& source);

// All keys with type, range, default and meaning.
std::string config_help();

}  // namespace fwpkm
