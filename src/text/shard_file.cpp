#include "text/shard_file.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/hash.h"

namespace fwpkm {
namespace {

constexpr std::string_view kMagic = "FWPKMTOK", kEnd = "FWPKMEND";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 96, kTrailerBytes = 40, kFingerprint = 32, kKind = 32;
constexpr size_t kBlockBytes = 256u << 10;

uint64_t padded(uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

void store_tokens(std::span<const int32_t> tokens, int width, std::byte* out) {
  if (width == 4) {
    std::memcpy(out, tokens.data(), tokens.size_bytes());
    return;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<uint16_t>(tokens[i]);
    std::memcpy(out + 2 * i, &value, 2);
  }
}

}  // namespace

TokenFormat TokenFormat::of(const Tokenizer& tokenizer) {
  return {tokenizer.vocab_size(), tokenizer.end_of_text(), tokenizer.fingerprint(),
          tokenizer.kind()};
}

// ------------------------------------------------------------------------------------ writing

ShardWriter::ShardWriter(const std::filesystem::path& path, const TokenFormat& format)
    : format_(format), file_(path) {
  require(format.fingerprint.size() == kFingerprint && format.kind.size() <= kKind, "shards",
          "a tokenizer of kind '{}' with fingerprint '{}' cannot be recorded", format.kind,
          format.fingerprint);
  block_.reserve(kBlockBytes);
  std::array<char, kHeaderBytes> header{};
  const uint32_t width = static_cast<uint32_t>(format.token_bytes());
  const uint64_t vocab = static_cast<uint64_t>(format.vocab_size);
  const uint64_t end = static_cast<uint64_t>(format.end_of_text);
  std::memcpy(header.data(), kMagic.data(), 8);
  std::memcpy(header.data() + 8, &kVersion, 4);
  std::memcpy(header.data() + 12, &width, 4);
  std::memcpy(header.data() + 16, &vocab, 8);
  std::memcpy(header.data() + 24, &end, 8);
  std::memcpy(header.data() + 32, format.fingerprint.data(), kFingerprint);
  std::memcpy(header.data() + 64, format.kind.data(), format.kind.size());
  put_meta(header.data(), header.size());
}

void ShardWriter::put(const void* data, size_t size) {
  file_.write(data, size);
  bytes_ += size;
}

void ShardWriter::put_meta(const void* data, size_t size) {
  put(data, size);
  checksum_ = hash_bytes(data, size, checksum_);
}

void ShardWriter::add(std::span<const int32_t> tokens) {
  const auto width = static_cast<size_t>(format_.token_bytes());
  tokens_ += static_cast<int64_t>(tokens.size());
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), (kBlockBytes - block_.size()) / width);
    const size_t old = block_.size();
    block_.resize(old + count * width);
    store_tokens(tokens.first(count), static_cast<int>(width), block_.data() + old);
    tokens = tokens.subspan(count);
    if (block_.size() == kBlockBytes) {
      flush_block();
    }
  }
}

void ShardWriter::end_document() {
  add({&format_.end_of_text, 1});
  begins_.push_back(static_cast<uint64_t>(tokens_));
}

void ShardWriter::flush_block() {
  sums_.push_back(hash_bytes(block_.data(), block_.size()));
  put(block_.data(), block_.size());
  block_.clear();
}

ShardSummary ShardWriter::commit() {
  require(begins_.back() == static_cast<uint64_t>(tokens_), "shards",
          "the last document has not been ended");
  if (!block_.empty()) {
    flush_block();
  }
  constexpr std::array<char, 8> zeros{};
  put(zeros.data(), padded(bytes_) - bytes_);
  put_meta(begins_.data(), begins_.size() * 8);
  put_meta(sums_.data(), sums_.size() * 8);
  const std::array<uint64_t, 3> counts = {static_cast<uint64_t>(tokens_), begins_.size() - 1,
                                          sums_.size()};
  put_meta(counts.data(), sizeof counts);
  put(&checksum_, 8);
  put(kEnd.data(), 8);
  file_.commit();
  return {tokens_, static_cast<int64_t>(begins_.size()) - 1, bytes_, checksum_};
}

// ------------------------------------------------------------------------------------ reading

ShardFile::ShardFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  check_layout();
  check_index();
  checked_ = std::make_unique<std::atomic<bool>[]>(blocks_);
}

uint64_t ShardFile::number_at(size_t offset) const {
  uint64_t number = 0;
  std::memcpy(&number, file_.bytes().data() + offset, 8);
  return number;
}

void ShardFile::check_layout() {
  const auto* data = reinterpret_cast<const char*>(file_.bytes().data());
  const uint64_t size = file_.bytes().size();
  require(size >= 8 && std::string_view(data, 8) == kMagic, "shards",
          "'{}' is not a shard of tokens; give a folder that `fwpkm data encode` wrote", path_);
  require(size >= kHeaderBytes + kTrailerBytes && std::string_view(data + size - 8, 8) == kEnd,
          "shards", "'{}' is cut short ({} bytes); copy it again or encode again", path_, size);
  uint32_t version = 0, width = 0;
  std::memcpy(&version, data + 8, 4);
  std::memcpy(&width, data + 12, 4);
  require(version == kVersion, "shards",
          "'{}' has version {}, and this program reads {}; encode again", path_, version, kVersion);
  const uint64_t vocab = number_at(16), end = number_at(24);
  require(vocab > 0 && vocab <= (1ull << 31) && end < vocab && width == (vocab <= 65536 ? 2u : 4u),
          "shards",
          "'{}' is damaged: vocab size {}, end of text {}, {} bytes a token; encode again", path_,
          vocab, end, width);
  format_ = {static_cast<int64_t>(vocab), static_cast<int32_t>(end),
             std::string(data + 32, kFingerprint),
             std::string(data + 64, ::strnlen(data + 64, kKind))};

  // Each count is bounded by the file's size before it is used in a sum.
  const size_t trailer = size - kTrailerBytes;
  const uint64_t tokens = number_at(trailer), documents = number_at(trailer + 8),
                 sums = number_at(trailer + 16);
  bool fits = size % 8 == 0 && tokens <= size / width && documents < size / 8 && sums <= size / 8;
  if (fits) {
    const uint64_t token_bytes = tokens * width;
    index_at_ = kHeaderBytes + padded(token_bytes);
    sums_at_ = index_at_ + 8 * (documents + 1);
    blocks_ = (token_bytes + kBlockBytes - 1) / kBlockBytes;
    fits = sums == blocks_ && sums_at_ + 8 * sums + kTrailerBytes == size;
  }
  require(fits, "shards",
          "'{}' is damaged: {} tokens in {} documents do not make its {} bytes; encode again",
          path_, tokens, documents, size);
  uint64_t sum = hash_bytes(data, kHeaderBytes);
  sum = hash_bytes(data + index_at_, sums_at_ - index_at_, sum);
  sum = hash_bytes(data + sums_at_, trailer - sums_at_, sum);
  sum = hash_bytes(data + trailer, 24, sum);
  require(sum == number_at(trailer + 24), "shards",
          "'{}' is damaged: the checksum of its index is wrong; copy it again or encode again",
          path_);
  summary_ = {static_cast<int64_t>(tokens), static_cast<int64_t>(documents), size, sum};
}

// The checksum finds accidents; this finds files that were made to deceive.
void ShardFile::check_index() const {
  uint64_t last = number_at(index_at_);
  bool ordered = last == 0;
  for (int64_t i = 1; ordered && i <= summary_.documents; ++i) {
    const uint64_t next = number_at(index_at_ + 8 * static_cast<size_t>(i));
    ordered = next > last;
    last = next;
  }
  require(ordered && last == static_cast<uint64_t>(summary_.tokens), "shards",
          "'{}' is damaged: its documents are not in order; encode again", path_);
}

int64_t ShardFile::length(int64_t document) const {
  require(document >= 0 && document < summary_.documents, "shards",
          "there is no document {} in '{}', which has {}", document, path_, summary_.documents);
  const size_t at = index_at_ + 8 * static_cast<size_t>(document);
  return static_cast<int64_t>(number_at(at + 8) - number_at(at));
}

void ShardFile::read(int64_t document, int64_t begin, std::span<int32_t> out) const {
  const int64_t size = length(document), count = static_cast<int64_t>(out.size());
  require(begin >= 0 && begin <= size && count <= size - begin, "shards",
          "cannot read {} tokens from token {} of document {} in '{}', which has {}", count, begin,
          document, path_, size);
  if (out.empty()) {
    return;
  }
  const auto width = static_cast<uint64_t>(format_.token_bytes());
  const uint64_t first =
      (number_at(index_at_ + 8 * static_cast<size_t>(document)) + static_cast<uint64_t>(begin)) *
      width;
  check_blocks(first, first + out.size() * width - 1);
  const std::byte* from = file_.bytes().data() + kHeaderBytes + first;
  if (width == 4) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t value = 0;
    std::memcpy(&value, from + 2 * i, 2);
    out[i] = value;
  }
}

void ShardFile::check_blocks(uint64_t first_byte, uint64_t last_byte) const {
  for (size_t block = first_byte / kBlockBytes; block <= last_byte / kBlockBytes; ++block) {
    if (checked_[block].load(std::memory_order_acquire)) {
      continue;
    }
    const auto width = static_cast<size_t>(format_.token_bytes());
    const size_t begin = block * kBlockBytes;
    const size_t size = std::min(kBlockBytes, static_cast<size_t>(summary_.tokens) * width - begin);
    const std::byte* data = file_.bytes().data() + kHeaderBytes + begin;
    require(hash_bytes(data, size) == number_at(sums_at_ + 8 * block), "shards",
            "'{}' is damaged: the checksum of bytes {}..{} is wrong; copy it again or encode again",
            path_, kHeaderBytes + begin, kHeaderBytes + begin + size);
    uint32_t largest = 0;
    for (size_t at = 0; at < size; at += width) {
      uint32_t value = 0;
      std::memcpy(&value, data + at, width);
      largest = std::max(largest, value);
    }
    require(largest < format_.vocab_size, "shards",
            "'{}' is damaged: it has token {}, outside the vocabulary of {}; encode again", path_,
            largest, format_.vocab_size);
    checked_[block].store(true, std::memory_order_release);
  }
}

}  // namespace fwpkm
