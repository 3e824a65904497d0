// One shard: a file of tokens with an index of its documents.
//
// All numbers are little-endian and unsigned.
//   header    96 bytes   "FWPKMTOK", u32 version 1, u32 bytes of a token (2 for a vocabulary of
//                        up to 65536, else 4), u64 vocab size, u64 end of text, 32 hexadecimal
//                        digits of the tokenizer's fingerprint, its kind in 32 bytes, filled up
//                        with zeros
//   tokens               then zeros up to a multiple of 8
//   index                u64 for each document and one more: where it begins, in tokens
//   sums                 u64 for each block of 256 KiB of tokens (the last may be shorter):
//                        its hash
//   trailer   40 bytes   u64 tokens, u64 documents, u64 sums, u64 hash of header, index, sums
//                        and the three numbers before, "FWPKMEND"
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "text/tokenizer.h"

namespace fwpkm {

// What shards say of the tokenizer that made them.
struct TokenFormat {
  int64_t vocab_size = 0;
  int32_t end_of_text = 0;
  std::string fingerprint, kind;

  static TokenFormat of(const Tokenizer& tokenizer);
  int token_bytes() const { return vocab_size <= 65536 ? 2 : 4; }
  bool operator==(const TokenFormat&) const = default;
};

struct ShardSummary {
  int64_t tokens = 0, documents = 0;
  uint64_t bytes = 0;     // of the file
  uint64_t checksum = 0;  // the trailer's, which stands for the whole content
  bool operator==(const ShardSummary&) const = default;
};

// Appears under its name only when it is complete.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, const TokenFormat& format);
  void add(std::span<const int32_t> tokens);
  // Adds end of text.
  void end_document();
  int64_t token_bytes_written() const { return tokens_ * format_.token_bytes(); }
  ShardSummary commit();

 private:
  void flush_block();
  void put(const void* data, size_t size);       // to the file
  void put_meta(const void* data, size_t size);  // to the file and the checksum

  TokenFormat format_;
  AtomicFile file_;
  std::vector<std::byte> block_;
  std::vector<uint64_t> begins_{0}, sums_;
  int64_t tokens_ = 0;
  uint64_t bytes_ = 0, checksum_ = 0;
};

// A mapped shard. Header, index and sums are checked when it is opened, a block when it is first
// read.
class ShardFile {
 public:
  explicit ShardFile(const std::filesystem::path& path);

  const TokenFormat& format() const { return format_; }
  const ShardSummary& summary() const { return summary_; }
  int64_t length(int64_t document) const;
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const;

 private:
  uint64_t number_at(size_t offset) const;
  void check_layout();
  void check_index() const;
  void check_blocks(uint64_t first_byte, uint64_t last_byte) const;

  std::string path_;
  MappedFile file_;
  TokenFormat format_;
  ShardSummary summary_;
  size_t index_at_ = 0, sums_at_ = 0, blocks_ = 0;
  std::unique_ptr<std::atomic<bool>[]> checked_;
};

}  // namespace fwpkm
