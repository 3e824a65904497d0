// A corpus, encoded once: from text files to a folder of shards.
//
//   index.json        counts, tokenizer, shards, sources; written last: then all is complete
//   shard-00000.tok   shards, see text/shard_file.h
//   tokenizer.model   what the tokenizer is loaded from, unless it is bytes
//   unfinished.json   instead of index.json: what is done so far
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/shard_file.h"

namespace fwpkm {

struct EncodeSettings {
  std::vector<std::string> inputs;
  std::string out;
  int64_t shard_bytes = int64_t{64}
                        << 20;  // of tokens; a shard ends with the document that reaches it
  bool restart = false;         // throw away what is there
};

struct EncodeProgress {
  double done = 0;          // 0 to 1
  uint64_t text_bytes = 0;  // encoded by this process
};

struct EncodeResult {
  int64_t tokens = 0, documents = 0, shards = 0;
  uint64_t text_bytes = 0;
  int64_t resumed_documents = 0;     // were there already
  uint64_t encoded_bytes = 0;        // text that this process encoded
  std::vector<std::string> skipped;  // files of other kinds in the folders
};

// Encodes on all threads; the files do not depend on their number. After a kill, a full disk or a
// bad file, the same call goes on behind the last shard that is complete, and the files become
// what they would have been without the interruption.
EncodeResult encode_corpus(const EncodeSettings& settings, const Tokenizer& tokenizer,
                           const std::function<void(const EncodeProgress&)>& progress = {});

// The contents of index.json, checked.
struct ShardIndex {
  struct Shard {
    std::string file;
    ShardSummary summary;
  };
  struct Source {
    std::string path;
    uint64_t bytes = 0;
    bool operator==(const Source&) const = default;
  };
  TokenFormat format;
  int64_t tokens = 0, documents = 0;
  uint64_t text_bytes = 0;
  int64_t shard_bytes = 0;  // the setting
  std::vector<Shard> shards;
  std::vector<Source> sources;

  nlohmann::json to_json() const;
  // Checks every field; `source` names the file in messages.
  static ShardIndex from_json(const nlohmann::json& json, const std::string& source);
  static std::string shard_name(size_t number);
};

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kUnfinishedFile = "unfinished.json";
inline constexpr const char* kTokenizerFile = "tokenizer.model";

}  // namespace fwpkm
