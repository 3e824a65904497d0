// Shards of tokens: one file, a folder of them with its index, and the authors' pairs of files.
//
// First byte, two low bits: 0 = a shard, 1 = a folder (index.json with its length in front, then
// the shard, which stands for all that the index lists), 2 and 3 = the authors' files (a byte for
// the vocabulary, the .idx with its length in front, then the .bin). On top of that:
//   4   repair lengths: magic words, counts and the index's two ends, or the .idx's offsets
//   8   repair checksums, and what a folder's index says of its shard
//   16  repeat the tokens until they fill more than one block; slow, so only without higher bits
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/hash.h"
#include "fuzz.h"
#include "text/encode.h"
#include "text/official_shards.h"
#include "text/shard_file.h"
#include "text/shards.h"

namespace fwpkm::fuzz {
namespace {

constexpr size_t kHeader = 96, kTrailer = 40, kBlock = 256u << 10, kMostShards = 3;
constexpr uint8_t kLengths = 4, kSums = 8, kManyBlocks = 16;

size_t padded(size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

// Where things are in a shard (text/shard_file.h), as its own numbers say.
struct Layout {
  explicit Layout(const std::string& bytes) {
    if (bytes.size() < kHeader + 8 + kTrailer || bytes.size() % 8 != 0) {
      return;
    }
    trailer = bytes.size() - kTrailer;
    width = load<uint32_t>(bytes, 12) == 2 ? 2 : 4;
    tokens = load<uint64_t>(bytes, trailer);
    documents = load<uint64_t>(bytes, trailer + 8);
    if (tokens > bytes.size() || documents > bytes.size()) {
      return;
    }
    blocks = (tokens * width + kBlock - 1) / kBlock;
    index = kHeader + padded(tokens * width);
    sums = index + 8 * (documents + 1);
    fits = sums + 8 * blocks == trailer;
  }
  bool fits = false;
  size_t width = 0, tokens = 0, documents = 0, blocks = 0, index = 0, sums = 0, trailer = 0;
};

std::string repeat_tokens(const std::string& bytes) {
  const Layout at(bytes);
  if (!at.fits || at.tokens == 0 || at.blocks > 1) {
    return bytes;
  }
  const std::string once = bytes.substr(kHeader, at.tokens * at.width);
  std::string tokens;
  while (tokens.size() <= kBlock) {
    tokens += once;
  }
  const size_t count = tokens.size() / at.width;
  tokens.resize(padded(tokens.size()));
  std::string longer = bytes.substr(0, kHeader) + tokens +
                       bytes.substr(at.index, at.trailer - at.index) + std::string(8, '\0') +
                       bytes.substr(at.trailer);
  store<uint64_t>(longer, longer.size() - kTrailer, count);
  store<uint64_t>(longer, longer.size() - kTrailer + 16, 2);
  return longer;
}

// Counts that make up the file's size: as many tokens as it says if they fit, the rest is index.
void repair_lengths(std::string& bytes) {
  bytes.resize(std::max(padded(bytes.size()), kHeader + 8 + 8 + kTrailer));
  const size_t trailer = bytes.size() - kTrailer;
  const size_t width = load<uint32_t>(bytes, 12) == 2 ? 2 : 4;
  const size_t room = trailer - kHeader - 16;  // one block's sum, one number of the index
  const size_t tokens = std::min(load<uint64_t>(bytes, trailer) % (room + 1), room / width / 4 * 4);
  const size_t blocks = (tokens * width + kBlock - 1) / kBlock;
  const size_t index = kHeader + padded(tokens * width);
  const size_t documents = (trailer - 8 * blocks - index) / 8 - 1;
  std::memcpy(bytes.data(), "FWPKMTOK", 8);
  store<uint32_t>(bytes, 8, 1);
  store<uint64_t>(bytes, index, 0);
  store<uint64_t>(bytes, index + 8 * documents, tokens);
  store<uint64_t>(bytes, trailer, tokens);
  store<uint64_t>(bytes, trailer + 8, documents);
  store<uint64_t>(bytes, trailer + 16, blocks);
  std::memcpy(bytes.data() + trailer + 32, "FWPKMEND", 8);
}

void repair_sums(std::string& bytes) {
  const Layout at(bytes);
  if (!at.fits) {
    return;
  }
  for (size_t i = 0; i < at.blocks; ++i) {
    const size_t size = std::min(kBlock, at.tokens * at.width - i * kBlock);
    store(bytes, at.sums + 8 * i, hash_bytes(bytes.data() + kHeader + i * kBlock, size));
  }
  uint64_t sum = hash_bytes(bytes.data(), kHeader);
  sum = hash_bytes(bytes.data() + at.index, at.sums - at.index, sum);
  sum = hash_bytes(bytes.data() + at.sums, at.trailer - at.sums, sum);
  store(bytes, at.trailer + 24, hash_bytes(bytes.data() + at.trailer, 24, sum));
}

std::string take_shard(Input& in, uint8_t mode) {
  std::string bytes = in.rest();
  if (mode & kLengths) {
    repair_lengths(bytes);
  }
  if ((mode & 0xf0) == kManyBlocks) {
    bytes = repeat_tokens(bytes);
    const Layout at(bytes);
    if (at.fits) {
      store<uint64_t>(bytes, at.index + 8 * at.documents, at.tokens);
    }
  }
  if (mode & kSums) {
    repair_sums(bytes);
  }
  return bytes;
}

// All tokens, or nothing where they are refused. Reads that reach outside must be refused.
template <typename Store>
std::optional<std::vector<int32_t>> read_all(const Store& store, int64_t documents) {
  std::vector<int32_t> all;
  check(refused([&] { store.length(-1); }) && refused([&] { store.length(documents); }),
        "documents are counted");
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t length = store.length(i);
    check(length >= 0, "no document is shorter than nothing");
    std::vector<int32_t> tokens(static_cast<size_t>(length) + 1);
    check(refused([&] { store.read(i, 0, tokens); }) &&
              refused([&] { store.read(i, -1, std::span(tokens).first(1)); }) &&
              refused([&] { store.read(i, length + 1, {}); }),
          "reads end with the document");
    tokens.pop_back();
    if (refused([&] { store.read(i, 0, tokens); })) {
      return std::nullopt;
    }
    if (length > 1) {
      int32_t last = -1;
      store.read(i, length - 1, {&last, 1});
      check(last == tokens.back(), "a part is a part of the whole");
    }
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return all;
}

// What the file plainly holds.
bool are_tokens(const std::vector<int32_t>& tokens, const std::string& bytes, size_t at,
                size_t width, uint64_t limit) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at + i * width, width);
    if (value >= limit || tokens[i] != static_cast<int32_t>(value)) {
      return false;
    }
  }
  return true;
}

void read_shard(Input& in, uint8_t mode) {
  const std::string bytes = take_shard(in, mode);
  const std::filesystem::path path = scratch().write("shard.tok", bytes);
  const auto shard = accepted([&] { return std::make_unique<ShardFile>(path); });
  if (!shard) {
    return;
  }
  const auto tokens = read_all(**shard, (*shard)->summary().documents);
  if (tokens) {
    check(static_cast<int64_t>(tokens->size()) == (*shard)->summary().tokens &&
              are_tokens(*tokens, bytes, kHeader, load<uint32_t>(bytes, 12),
                         static_cast<uint64_t>((*shard)->format().vocab_size)),
          "a shard's tokens are those of the file");
  }
}

// Makes the index tell of its shards what they are.
std::string repair_index(const std::string& text, const std::string& shard) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const Layout at(shard);
  if (!at.fits || !json.is_object() || !json["shards"].is_array()) {
    return text;
  }
  uint64_t count = 0;
  for (nlohmann::json& entry : json["shards"]) {
    if (entry.is_object()) {
      entry["file"] = ShardIndex::shard_name(count++);
      entry["tokens"] = at.tokens;
      entry["documents"] = at.documents;
      entry["bytes"] = shard.size();
      entry["checksum"] = fmt::format("{:016x}", load<uint64_t>(shard, at.trailer + 24));
    }
  }
  json["tokens"] = at.tokens * count;
  json["documents"] = at.documents * count;
  const std::string kind = shard.substr(64, 32);
  json["tokenizer"] = {{"vocab_size", load<uint64_t>(shard, 16)},
                       {"end_of_text", load<uint64_t>(shard, 24)},
                       {"fingerprint", shard.substr(32, 32)},
                       {"kind", kind.substr(0, kind.find('\0'))}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void read_folder(Input& in, uint8_t mode) {
  std::string index = in.text(in.word());
  const std::string shard = take_shard(in, mode);
  if (mode & kSums) {
    index = repair_index(index, shard);
  }
  scratch().write(kIndexFile, index);
  scratch().write(ShardIndex::shard_name(0), shard);
  for (size_t i = 1; i < kMostShards; ++i) {
    std::error_code there_already;
    std::filesystem::create_symlink(ShardIndex::shard_name(0),
                                    scratch() / ShardIndex::shard_name(i), there_already);
  }
  const auto store = accepted([&] { return open_tokens(scratch().path()); });
  if (!store) {
    return;
  }
  const auto tokens = read_all(**store, (*store)->documents());
  const bool verified = !refused([&] { verify_tokens(**store); });
  check(verified == tokens.has_value(), "tokens that are read can be verified");
  check(!tokens || static_cast<int64_t>(tokens->size()) == (*store)->tokens(),
        "a folder has the tokens of its shards");
}

// The .idx with the offsets that its lengths ask for, and a .bin as long as they say.
void repair_official(std::string& idx, std::string& bin) {
  const size_t width = bin.size() % 4 == 0 ? 4 : 2;
  std::string lines;
  size_t tokens = 0;
  for (size_t at = 0; at < idx.size();) {
    const size_t count = std::strtoull(idx.c_str() + at, nullptr, 10) % 4096;
    lines += fmt::format("{} {}\n", count, tokens * width);
    tokens += count;
    at = std::min(idx.find('\n', at), idx.size()) + 1;
  }
  idx = lines;
  bin.resize(std::min<size_t>(tokens * width, 256u << 10));
}

void read_official(Input& in, uint8_t mode) {
  const int64_t vocab = in.byte() % 32;
  const int64_t limit = vocab == 0 ? 0 : int64_t{1} << vocab;
  std::string idx = in.text(in.word()), bin = in.rest();
  if (mode & kLengths) {
    repair_official(idx, bin);
  }
  scratch().write("tokens.idx", idx);
  scratch().write("tokens.bin", bin);
  const auto store = accepted([&] { return open_official(scratch() / "tokens.bin", limit); });
  if (!store) {
    return;
  }
  const auto tokens = read_all(**store, (*store)->documents());
  if (tokens) {
    check(static_cast<int64_t>(tokens->size()) == (*store)->tokens() &&
              are_tokens(*tokens, bin, 0, bin.size() / tokens->size(),
                         limit > 0 ? static_cast<uint64_t>(limit) : 1ull << 31),
          "the tokens are those of the .bin");
  }
}

void target(Input in) {
  const uint8_t mode = in.byte();
  switch (mode & 3) {
    case 0:
      return read_shard(in, mode);
    case 1:
      return read_folder(in, mode);
    default:
      return read_official(in, mode);
  }
}

}  // namespace
}  // namespace fwpkm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fwpkm::fuzz::run(data, size, fwpkm::fuzz::target);
}
