// Writes what fuzzing starts from: make_seeds FOLDER CONFIGS
//   FOLDER/<target>/...    small inputs that the library accepts, made with its own writers
//   FOLDER/<target>.dict   words that inputs of the target are made of
// One function for each target; a new one is added to main().
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/json_fields.h"
#include "base/random.h"
#include "fuzz.h"
#include "memory_api/memory.h"
#include "model/config.h"
#include "tensor/safetensors.h"
#include "text/encode.h"

namespace fwpkm::fuzz {
namespace {

namespace fs = std::filesystem;

class Seeds {
 public:
  Seeds(const fs::path& folder, const std::string& target)
      : folder_(folder / target), dictionary_(folder / (target + ".dict")) {
    fs::create_directories(folder_);
  }
  ~Seeds() {
    std::ofstream file(dictionary_, std::ios::trunc);
    for (const std::string& word : words_) {
      file << '"' << word << "\"\n";
    }
  }
  Seeds(const Seeds&) = delete;
  Seeds& operator=(const Seeds&) = delete;

  // The same contents for each of the modes, which are the targets' first byte.
  void add(const std::string& name, std::vector<int> modes, const std::string& bytes) const {
    for (const int mode : modes) {
      std::ofstream file(folder_ / fmt::format("{}-{}", name, mode), std::ios::binary);
      file << static_cast<char>(mode) << bytes;
      require(file.flush().good(), "fuzz", "cannot write to {}", folder_.string());
    }
  }
  // Letters, digits and quotes; quotes are escaped, as libFuzzer wants them.
  void add_word(const std::string& word) {
    std::string escaped;
    for (const char c : word) {
      escaped += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
    }
    words_.insert(escaped);
  }
  void add_words(const nlohmann::json& json) {
    if (json.is_object()) {
      for (const auto& [key, value] : json.items()) {
        add_word(fmt::format("\"{}\":", key));
        add_words(value);
      }
    } else if (json.is_array()) {
      std::ranges::for_each(json, [&](const nlohmann::json& entry) { add_words(entry); });
    } else {
      add_word(json.dump());
    }
  }

 private:
  fs::path folder_, dictionary_;
  std::set<std::string> words_;
};

std::vector<float> numbers(size_t count, uint64_t seed) {
  const Random random(seed, 1);
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(random.normal_at(i));
  }
  return out;
}

void safetensors_seeds(const fs::path& folder) {
  Seeds seeds(folder, "fuzz_safetensors");
  const fs::path path = scratch() / "seed.safetensors";
  const std::vector<DType> types = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                                    DType::kI64, DType::kI32, DType::kI16, DType::kI8,
                                    DType::kU8,  DType::kBool};
  SafeTensorsWriter all(path);
  all.set_metadata("format", "seed");
  for (const DType type : types) {
    all.declare(std::string(dtype_name(type)), type, {2, 1});
    seeds.add_word(fmt::format("\"dtype\":\"{}\"", dtype_name(type)));
  }
  for (const DType type : types) {
    if (is_float(type)) {
      all.append(dtype_name(type), std::vector<double>{-1.5, 1e9});
    } else {
      all.append(dtype_name(type), std::vector<int64_t>{0, 1});
    }
  }
  all.commit();
  seeds.add("all-types", {0, 1, 2, 3}, read_text(path));

  SafeTensorsWriter empty(path);
  empty.declare("none", DType::kF32, {0, 3});
  empty.declare("scalar", DType::kI8, {});
  empty.append("scalar", std::vector<int64_t>{7});
  empty.commit();
  seeds.add("empty-and-scalar", {0, 3}, read_text(path));
  SafeTensorsWriter(path).commit();
  seeds.add("nothing", {0, 1}, read_text(path));

  for (const char* word :
       {"\"shape\":[", "\"data_offsets\":[", "\"__metadata__\":{", "[0,0]", "{}", "\\u0000",
        "9223372036854775807", "18446744073709551615", "-1", "1e99", "\"t\":{"}) {
    seeds.add_word(word);
  }
}

void shards_seeds(const fs::path& folder) {
  Seeds seeds(folder, "fuzz_shards");
  for (const int64_t vocab : {257, 70000}) {
    ShardIndex index;
    index.format = {vocab, 256, std::string(32, 'a'), "bytes"};
    ShardWriter writer(scratch() / "seed.tok", index.format);
    for (int32_t length : {3, 0, 40}) {
      for (int32_t i = 0; i < length; ++i) {
        const int32_t token = 7 * i % 256;
        writer.add({&token, 1});
      }
      writer.end_document();
    }
    const ShardSummary summary = writer.commit();
    const std::string shard = read_text(scratch() / "seed.tok");
    index.tokens = 2 * summary.tokens;
    index.documents = 2 * summary.documents;
    index.text_bytes = 43;
    index.shard_bytes = 1 << 20;
    index.shards = {{ShardIndex::shard_name(0), summary}, {ShardIndex::shard_name(1), summary}};
    index.sources = {{"a.txt", 43}};
    const nlohmann::json json = index.to_json();
    const std::string name = fmt::format("vocab{}", vocab);
    seeds.add("shard-" + name, {0, 4 + 8, 8, 4 + 8 + 16}, shard);
    seeds.add("folder-" + name, {1, 1 + 8, 1 + 4 + 8}, sized(json.dump()) + shard);
    seeds.add_words(json);
  }
  for (const size_t width : {2, 4}) {
    std::string idx, bin;
    size_t at = 0;
    for (const size_t length : {3, 0, 5}) {
      idx += fmt::format("{} {}\n", length, at);
      at += length * width;
    }
    for (size_t i = 0; i < at; ++i) {
      bin += static_cast<char>(i % width == 0 ? i : 0);
    }
    seeds.add(fmt::format("official{}", width), {2, 2 + 4},
              std::string(1, '\x10') + sized(idx) + bin);
  }
}

// The authors' two kinds of models, with every key that can say something.
constexpr const char* kOfficial[] = {
    R"({"architectures":["Qwen3NextMemForCausalLM"],"model_type":"qwen3_next_mem",
"vocab_size":61,"hidden_size":40,"intermediate_size":56,"num_hidden_layers":4,
"num_attention_heads":4,"num_key_value_heads":2,"hidden_act":"silu","initializer_range":0.01,
"rms_norm_eps":1e-05,"tie_word_embeddings":true,"rope_theta":10000,
"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":256},
"partial_rotary_factor":0.25,"head_dim":16,"max_position_embeddings":1024,
"linear_conv_kernel_dim":4,"linear_key_head_dim":8,"linear_value_head_dim":12,
"linear_num_key_heads":2,"linear_num_value_heads":4,"layer_types":["linear_attention",
"linear_attention","linear_attention","sliding_attention"],"sliding_window":8,"pkm_layers":[2],
"pkm_k_dim":16,"pkm_v_dim":20,"pkm_heads":2,"pkm_topk":3,"pkm_n_subkeys":6,
"pkm_query_rmsnorm":true,"fwpkm_layers":[1,3],"fwpkm_k_dim":16,"fwpkm_v_dim":24,"fwpkm_heads":1,
"fwpkm_topk":4,"fwpkm_n_subkeys":8,"fwpkm_variant":"pkm","fwpkm_update_chunk_size":16,
"fwpkm_addr_loss":"me","fwpkm_addr_loss_weight":0.5,"fwpkm_weight_loss_with_gates":false,
"fwpkm_mem_grad_to_values_only":true,"fwpkm_compress_value":"zero_mean",
"fwpkm_target_value_lookahead":0,"fwpkm_qk_score_type":"idw","fwpkm_out_fuse_gate":true})",
    R"({"model_type":"lact_swiglu","vocab_size":61,"hidden_size":48,"num_hidden_layers":2,
"num_attn_heads":4,"num_attention_heads":4,"num_lact_heads":2,"window_size":16,"lact_chunk_size":16,"w0_w2_low_rank":3,
"fw_init_gain":0.5,"intermediate_size":64,"hidden_ratio":4,"tie_word_embeddings":true,
"no_v_silu":true,"norm_eps":1e-6,"initializer_range":0.006,"max_position_embeddings":64,
"rope_theta":500000})"};

void config_seeds(const fs::path& folder, const fs::path& configs) {
  Seeds seeds(folder, "fuzz_config");
  std::vector<std::string> texts(std::begin(kOfficial), std::end(kOfficial));
  for (const auto& entry : fs::recursive_directory_iterator(configs)) {
    if (entry.path().extension() == ".json") {
      texts.push_back(read_text(entry.path()));
    }
  }
  texts.push_back(config_to_json(load_config(configs / "tiny.json")).dump());  // every key of ours
  for (size_t i = 0; i < texts.size(); ++i) {
    const nlohmann::json json = nlohmann::json::parse(texts[i]);
    parse_config(json, fmt::format("seed {}", i));  // a seed must be accepted
    seeds.add(fmt::format("config{}", i), {0, 2}, texts[i]);
    seeds.add_words(json);
  }
  seeds.add(
      "overrides", {1},
      texts.back() + std::string(1, '\0') + "fwpkm.topk=2\nmixers=gdn,swa,fa,gdn\nvalue_step=0.5");
  for (const char* word : {"null", "-1", "1e300", "[]", "{}", "\"fwmlp\":{\"layers\":[0]}"}) {
    seeds.add_word(word);
  }
}

void memory_seeds(const fs::path& folder) {
  Seeds seeds(folder, "fuzz_memory");
  const fs::path path = scratch() / "seed.safetensors";
  Memory::Settings settings{.key_dim = 4, .value_dim = 3, .n_subkeys = 6, .topk = 2};
  for (int i = 0; i < 3; ++i) {
    settings.score = i == 1 ? Memory::Score::kDot : Memory::Score::kDistance;
    settings.value_step = i == 2 ? Memory::Step::of(0.5) : Memory::Step::rewrite();
    settings.addr_weight = i;
    Memory memory(settings);
    if (i > 0) {
      memory.write(numbers(5 * 4, 1), numbers(5 * 3, 2));
    }
    memory.save(path);
    seeds.add(fmt::format("memory{}", i), {0, 2, 3}, read_text(path));
    const SafeTensors file = SafeTensors::open(path);
    for (const auto& [key, value] : file.metadata()) {
      seeds.add_word(fmt::format("\"{}\":\"{}\"", key, value));
    }
  }
  for (const char* word : {"\"slots\"", "\"paper\"", "\"shape\":[", "\"data_offsets\":[", "46340",
                           "1048576", "nan", "inf", "\"F32\"", "\"I32\""}) {
    seeds.add_word(word);
  }
  const std::vector<float> contents = numbers(40, 3);
  std::string made("\x03\x04\x05\x06\x10\x02\x01\x00\x01\x02\x03\x01\x02\x03", 14);
  made.append(reinterpret_cast<const char*>(contents.data()), contents.size() * sizeof(float));
  seeds.add("made", {4}, made);
}

// The target changes a good session of its own; whole files are too large to be worth it.
void session_seeds(const fs::path& folder) {
  Seeds seeds(folder, "fuzz_session");
  seeds.add("nothing", {0, 1}, std::string("fwpkm session\0\0\0", 16) + std::string(48, '\0'));
  seeds.add("unchanged", {2}, sized("{}"));
  for (const char* patch :
       {R"({"now":{"read":9}})", R"({"now":{"layers":[]}})", R"({"marks":[]})", R"({"seed":1})",
        R"({"history":false})", R"({"now":{"position":1,"first":2,"drawn":3,"last":false}})",
        R"({"model":{"config":{},"tensors":[]}})"}) {
    seeds.add(fmt::format("patch{}", hash_hex(patch)), {2}, sized(patch));
  }
  for (char section = 0; section < 40; section += 3) {
    seeds.add(fmt::format("edit{}", static_cast<int>(section)), {2},
              sized("{}") + std::string{section, 4, 0, 4, 1, 0, 0, 0, section, 0, 0, '\xff'});
  }
  for (const char* word : {"\"now\":", "\"marks\":", "\"layers\":", "\"queued\":", "\"written\":",
                           "\"updates\":", "\"cache\":", "\"lact\":", "\"keys\":", "\"mlp\":",
                           "\"name\":", "\"last\":", "-1", "9223372036854775807"}) {
    seeds.add_word(word);
  }
}

}  // namespace
}  // namespace fwpkm::fuzz

int main(int argc, char** argv) try {
  fwpkm::require(argc == 3, "fuzz", "call it as make_seeds FOLDER CONFIGS");
  const std::filesystem::path folder = argv[1];
  fwpkm::fuzz::safetensors_seeds(folder);
  fwpkm::fuzz::shards_seeds(folder);
  fwpkm::fuzz::config_seeds(folder, argv[2]);
  fwpkm::fuzz::memory_seeds(folder);
  fwpkm::fuzz::session_seeds(folder);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
