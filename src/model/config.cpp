#include "model/config.h"

#include <algorithm>
#include <set>

#include "model/config_fields.h"
#include "model/cost.h"

namespace fwpkm {
namespace {

bool contains(const std::vector<int64_t>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

std::string placement(std::string_view memory, const std::vector<int64_t>& layers) {
  return layers.empty() ? "" : fmt::format("{}@{}", memory, fmt::join(layers, ","));
}

// Cross-field checks. Each message ends with what to change and where it came from.
class Checker {
 public:
  Checker(const ModelConfig& config, const std::string& source) : c_(config), source_(source) {}

  void run() const {
    mixers();
    attention();
    ensure(c_.gdn.value_heads % c_.gdn.key_heads == 0, "gdn",
           "value_heads={} is not a multiple of key_heads={}; change gdn.value_heads",
           c_.gdn.value_heads, c_.gdn.key_heads);
    placed("pkm", c_.pkm.layers);
    placed("fwpkm", c_.fwpkm.layers);
    placed("fwmlp", c_.fwmlp.layers);
    product_keys("pkm", c_.pkm);
    product_keys("fwpkm", c_.fwpkm);
    fast_weights("fwpkm", c_.fwpkm);
    fast_weights("fwmlp", c_.fwmlp);
    for (const int64_t layer : c_.fwmlp.layers) {
      ensure(!contains(c_.fwpkm.layers, static_cast<int>(layer)), "fwmlp",
             "layer {} has a FwPKM too; take it out of fwpkm.layers or fwmlp.layers", layer);
    }
    lact();
    train();
    const int64_t params = count_params(c_).total();
    ensure(params <= kMaxParams, "config",
           "the model has {} parameters, more than the limit of 2^40; lower the sizes", params);
  }

 private:
  template <typename... Args>
  void ensure(bool ok, std::string_view tag, fmt::format_string<Args...> format,
              Args&&... args) const {
    if (!ok) {
      fail(tag, "{} ({})", fmt::format(format, std::forward<Args>(args)...), source_);
    }
  }

  void mixers() const {
    if (c_.mixers.empty()) {
      return;
    }
    ensure(static_cast<int64_t>(c_.mixers.size()) == c_.layers, "config",
           "mixers has {} entries for layers={}; list one per layer", c_.mixers.size(), c_.layers);
    ensure(std::count(c_.mixers.begin(), c_.mixers.end(), Mixer::kLact) == 0, "config",
           "mixers cannot name LaCT; set architecture to \"lact\"");
  }

  void attention() const {
    const AttentionConfig& a = c_.attention;
    ensure(a.heads % a.kv_heads == 0, "attention",
           "heads={} is not a multiple of kv_heads={}; change attention.kv_heads", a.heads,
           a.kv_heads);
    ensure(c_.rotary_dim() % 2 == 0, "attention",
           "head_dim={} with rotary_fraction={} rotates {} features, an odd number; change "
           "attention.rotary_fraction",
           a.head_dim, a.rotary_fraction, c_.rotary_dim());
  }

  void placed(std::string_view tag, const std::vector<int64_t>& layers) const {
    std::set<int64_t> seen;
    for (const int64_t layer : layers) {
      ensure(layer >= 0 && layer < c_.layers, tag,
             "layers has {}, but layers are counted from 0 to {}; change {}.layers", layer,
             c_.layers - 1, tag);
      ensure(seen.insert(layer).second, tag, "layers has {} twice; remove one from {}.layers",
             layer, tag);
    }
  }

  template <typename Memory>
  void product_keys(std::string_view tag, const Memory& m) const {
    ensure(m.topk <= m.n_subkeys, tag, "topk={} exceeds n_subkeys={}; lower {}.topk", m.topk,
           m.n_subkeys, tag);
    ensure(m.key_dim % 2 == 0, tag,
           "key_dim={} is odd, but a query has two halves; change {}.key_dim", m.key_dim, tag);
  }

  template <typename Memory>
  void fast_weights(std::string_view tag, const Memory& m) const {
    ensure(!m.value_norm || m.value_dim >= 2, tag,
           "value_norm needs value_dim of 2 or more, got {}; raise {}.value_dim", m.value_dim, tag);
    // The authors' step is scaled by chunk / (chunk - lookahead).
    ensure(c_.compat == Compat::kNone || m.layers.empty() || m.lookahead < m.chunk, tag,
           "compat \"official\" needs lookahead={} below chunk={}; lower {}.lookahead", m.lookahead,
           m.chunk, tag);
  }

  void lact() const {
    if (c_.architecture != Architecture::kLact) {
      return;
    }
    const AttentionConfig& a = c_.attention;
    ensure(c_.mixers.empty(), "lact", "mixers has no meaning in a LaCT model; remove it");
    ensure(c_.pkm.layers.empty() && c_.fwpkm.layers.empty() && c_.fwmlp.layers.empty(), "lact",
           "a LaCT model has no pkm, fwpkm or fwmlp layers; empty those lists");
    ensure(
        a.heads * a.head_dim == c_.hidden_size, "lact",
        "attention heads={} of head_dim={} do not make hidden_size={}; change attention.head_dim",
        a.heads, a.head_dim, c_.hidden_size);
    ensure(a.kv_heads == a.heads, "lact",
           "kv_heads={} differs from heads={}; LaCT has no shared heads, set attention.kv_heads={}",
           a.kv_heads, a.heads, a.heads);
    ensure(!c_.train.hide_borders, "lact",
           "borders of documents cannot be hidden in a LaCT model; set train.hide_borders=false");
    ensure(c_.hidden_size % c_.lact.heads == 0, "lact",
           "heads={} does not divide hidden_size={}; change lact.heads", c_.lact.heads,
           c_.hidden_size);
  }

  void train() const {
    const TrainConfig& t = c_.train;
    ensure(t.min_lr <= t.max_lr, "train", "min_lr={} exceeds max_lr={}; lower train.min_lr",
           t.min_lr, t.max_lr);
    ensure(t.batch % t.micro() == 0, "train",
           "batch={} is not a multiple of micro_batch={}; change train.micro_batch", t.batch,
           t.micro_batch);
  }

  const ModelConfig& c_;
  const std::string& source_;
};

ModelConfig read_ours(const nlohmann::json& json, const std::string& source) {
  const ModelConfig defaults;
  const std::vector<std::string> keys = field_keys(defaults);
  for (const auto& entry : json.items()) {
    const bool ours = std::any_of(keys.begin(), keys.end(), [&](std::string_view key) {
      return key == entry.key() || split_key(key).first == entry.key();
    });
    if (!ours && is_official_key(entry.key())) {
      fail("config",
           "{}: unknown key \"{}\"; it belongs to the authors' format, which needs "
           "\"architectures\" or \"model_type\"; ours has \"{}\"",
           source, entry.key(), nearest_key(entry.key(), keys));
    }
  }
  require_known_keys(json, keys, source);
  require(json.contains("name"), "config", "{}: key \"name\" is missing; add \"name\": \"...\"",
          source);
  ModelConfig config;
  read_fields(json, source, config);
  return config;
}

}  // namespace

Mixer ModelConfig::mixer(int layer) const {
  if (architecture == Architecture::kLact) {
    return Mixer::kLact;
  }
  if (!mixers.empty()) {
    return mixers.at(static_cast<size_t>(layer));
  }
  if (layout == Layout::kFa) {
    return Mixer::kFa;
  }
  if (layout == Layout::kGdn || layer % 4 != 3) {
    return Mixer::kGdn;
  }
  return layout == Layout::kGdnSwa ? Mixer::kSwa : Mixer::kFa;
}

bool ModelConfig::has_mixer(Mixer kind) const {
  for (int layer = 0; layer < layers; ++layer) {
    if (mixer(layer) == kind) {
      return true;
    }
  }
  return false;
}

int64_t ModelConfig::window(int layer) const {
  return mixer(layer) == Mixer::kSwa    ? attention.window
         : mixer(layer) == Mixer::kLact ? lact.window
                                        : 0;
}

bool ModelConfig::has_pkm(int layer) const {
  return contains(pkm.layers, layer);
}

bool ModelConfig::has_fwpkm(int layer) const {
  return contains(fwpkm.layers, layer);
}

bool ModelConfig::has_fwmlp(int layer) const {
  return contains(fwmlp.layers, layer);
}

int64_t ModelConfig::rotary_dim() const {
  return static_cast<int64_t>(static_cast<double>(attention.head_dim) * attention.rotary_fraction);
}

int64_t ModelConfig::yarn_length() const {
  return attention.yarn_original_length > 0 ? attention.yarn_original_length : max_seq;
}

std::string row_name(const ModelConfig& config) {
  if (config.architecture == Architecture::kLact) {
    return "lact";
  }
  std::string row(enum_name(config.layout));
  if (!config.mixers.empty()) {
    row.clear();
    for (const Mixer kind : {Mixer::kGdn, Mixer::kSwa, Mixer::kFa}) {
      if (config.has_mixer(kind)) {
        row += fmt::format("{}{}", row.empty() ? "" : "+", enum_name(kind));
      }
    }
  }
  char separator = '|';
  for (const std::string& memory :
       {placement("pkm", config.pkm.layers), placement("fwpkm", config.fwpkm.layers),
        placement("fwmlp", config.fwmlp.layers)}) {
    if (!memory.empty()) {
      row += separator + memory;
      separator = '+';
    }
  }
  return row;
}

ModelConfig load_config(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return parse_config(read_json_file(file), file.string(), overrides);
}

ModelConfig parse_config(const nlohmann::json& json, const std::string& source,
                         std::span<const std::string> overrides) {
  if (!json.is_object()) {
    fail("config", "{}: a config is a JSON object, got {}", source, shown(json));
  }
  ModelConfig config =
      is_official(json) ? translate_official(json, source) : read_ours(json, source);
  const bool seq_follows = !config.official && find_field(json, "train.seq", source) == nullptr;
  bool seq_given = false;
  for (const std::string& assignment : overrides) {
    seq_given |= override_field(assignment, config) == "train.seq";
  }
  if (seq_follows && !seq_given) {
    config.train.seq = config.max_seq;
  }
  validate(config, source);
  return config;
}

nlohmann::json config_to_json(const ModelConfig& config) {
  return write_fields(config);
}

void validate(const ModelConfig& config, const std::string& source) {
  check_fields(config, source);
  Checker(config, source).run();
}

std::string config_help() {
  return describe_fields(ModelConfig{});
}

}  // namespace fwpkm
