#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "text/encode.h"

namespace fwpkm {
namespace {

constexpr const char* kFormat = "fwpkm tokens";
constexpr int64_t kVersion = 1;

// Fields of one JSON object, with messages that name the file and the field.
class Fields {
 public:
  Fields(const nlohmann::json& json, std::string source) : json_(json), source_(std::move(source)) {
    require(json.is_object(), "shards", "{} is damaged: not a JSON object", source_);
  }
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    require(found != json_.end(), "shards", "{} is damaged: it has no \"{}\"; encode again",
            source_, key);
    return *found;
  }
  int64_t number(const char* key) const {
    const nlohmann::json& value = at(key);
    require(value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < 9e18,
            "shards", "{} is damaged: \"{}\" is no number from 0; encode again", source_, key);
    return value.get<int64_t>();
  }
  std::string text(const char* key) const {
    const nlohmann::json& value = at(key);
    require(value.is_string(), "shards", "{} is damaged: \"{}\" is no string; encode again",
            source_, key);
    return value.get<std::string>();
  }
  const nlohmann::json& list(const char* key) const {
    const nlohmann::json& value = at(key);
    require(value.is_array(), "shards", "{} is damaged: \"{}\" is no list; encode again", source_,
            key);
    return value;
  }
  uint64_t hex(const char* key) const {
    const std::string digits = text(key);
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    require(error == std::errc() && end == digits.data() + digits.size(), "shards",
            "{} is damaged: \"{}\" is no hexadecimal number; encode again", source_, key);
    return value;
  }

 private:
  const nlohmann::json& json_;
  std::string source_;
};

}  // namespace

std::string ShardIndex::shard_name(size_t number) {
  return fmt::format("shard-{:05}.tok", number);
}

nlohmann::json ShardIndex::to_json() const {
  nlohmann::json json = {{"format", kFormat},
                         {"version", kVersion},
                         {"tokenizer",
                          {{"kind", format.kind},
                           {"fingerprint", format.fingerprint},
                           {"vocab_size", format.vocab_size},
                           {"end_of_text", format.end_of_text}}},
                         {"tokens", tokens},
                         {"documents", documents},
                         {"text_bytes", text_bytes},
                         {"shard_bytes", shard_bytes},
                         {"shards", nlohmann::json::array()},
                         {"sources", nlohmann::json::array()}};
  for (const Shard& shard : shards) {
    json["shards"].push_back({{"file", shard.file},
                              {"tokens", shard.summary.tokens},
                              {"documents", shard.summary.documents},
                              {"bytes", shard.summary.bytes},
                              {"checksum", fmt::format("{:016x}", shard.summary.checksum)}});
  }
  for (const Source& source : sources) {
    json["sources"].push_back({{"path", source.path}, {"bytes", source.bytes}});
  }
  return json;
}

ShardIndex ShardIndex::from_json(const nlohmann::json& json, const std::string& source) {
  const Fields fields(json, source);
  require(fields.text("format") == kFormat, "shards", "{} is not an index of tokens", source);
  require(fields.number("version") == kVersion, "shards",
          "{} has version {}, and this program reads {}; encode again", source,
          fields.number("version"), kVersion);
  ShardIndex index;
  const Fields tokenizer(fields.at("tokenizer"), source);
  const int64_t end = tokenizer.number("end_of_text");
  index.format = {tokenizer.number("vocab_size"), static_cast<int32_t>(end),
                  tokenizer.text("fingerprint"), tokenizer.text("kind")};
  require(index.format.vocab_size <= int64_t{1} << 31 && end < index.format.vocab_size, "shards",
          "{} is damaged: end of text {} of {} tokens; encode again", source, end,
          index.format.vocab_size);
  index.tokens = fields.number("tokens");
  index.documents = fields.number("documents");
  index.text_bytes = static_cast<uint64_t>(fields.number("text_bytes"));
  index.shard_bytes = fields.number("shard_bytes");
  for (const nlohmann::json& entry : fields.list("shards")) {
    const Fields shard(entry, source);
    const std::string name = shard.text("file");
    require(name == shard_name(index.shards.size()), "shards",
            "{} is damaged: shard {} is called '{}'; encode again", source, index.shards.size(),
            name);
    index.shards.push_back({name,
                            {shard.number("tokens"), shard.number("documents"),
                             static_cast<uint64_t>(shard.number("bytes")), shard.hex("checksum")}});
  }
  for (const nlohmann::json& entry : fields.list("sources")) {
    const Fields file(entry, source);
    index.sources.push_back({file.text("path"), static_cast<uint64_t>(file.number("bytes"))});
  }
  return index;
}

}  // namespace fwpkm
