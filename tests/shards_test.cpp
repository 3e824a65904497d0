#include "text/shards.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/parallel.h"
#include "corpus_files.h"
#include "temp_dir.h"
#include "text/encode.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

// Vocabulary of any size, one token per byte: for shards with wide tokens.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}
  int64_t vocab_size() const override { return vocab_size_; }
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> tokens;
    for (const char c : text) {
      tokens.push_back(static_cast<int32_t>(vocab_size_) - 1 - static_cast<unsigned char>(c));
    }
    return tokens;
  }
  std::string_view bytes_of(int32_t) const override { return ""; }
  int32_t end_of_text() const override { return 7; }
  std::string fingerprint() const override { return std::string(32, 'f'); }
  std::string kind() const override { return "fake"; }

 private:
  int64_t vocab_size_;
};

std::vector<int32_t> document(const TokenStore& store, int64_t i) {
  std::vector<int32_t> tokens(static_cast<size_t>(store.length(i)));
  store.read(i, 0, tokens);
  return tokens;
}

std::string all_bytes(const fs::path& folder) {
  std::string all;
  for (const auto& name :
       {"index.json", "shard-00000.tok", "shard-00001.tok", "shard-00002.tok", "shard-00003.tok"}) {
    if (fs::exists(folder / name)) {
      all += std::string(name) + read_text(folder / name, 1u << 30);
    }
  }
  return all;
}

// Damaging files many times need not wait for the disk.
void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t i = 0; i < 40; ++i) {
      text_ += made_up_text(i == 7 ? 300000 : 100 + i * 400, i) + "<|endoftext|>\n";
    }
    write_text_atomic(dir_ / "a.txt", text_);
  }
  EncodeSettings settings(const std::string& out, int64_t shard_bytes = 200000) const {
    return {{(dir_ / "a.txt").string()}, (dir_ / out).string(), shard_bytes};
  }
  TempDir dir_;
  std::string text_;
  std::shared_ptr<const Tokenizer> bytes_ = load_tokenizer("bytes");
};

TEST_F(Shards, DocumentsComeBackWithTheirBorders) {
  const EncodeResult result = encode_corpus(settings("out"), *bytes_);
  const auto expected = all_documents({(dir_ / "a.txt").string()});
  EXPECT_GT(result.shards, 2);
  const auto store = open_tokens(dir_ / "out", bytes_.get());
  ASSERT_EQ(store->documents(), 40);
  EXPECT_EQ(store->tokens(), result.tokens);
  EXPECT_EQ(store->vocab_size(), 257);
  EXPECT_EQ(store->tokenizer_spec(), "bytes");
  int64_t tokens = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const std::vector<int32_t> got = document(*store, i);
    EXPECT_EQ(got.back(), 256);
    EXPECT_EQ(bytes_->decode(got), expected[static_cast<size_t>(i)]);
    tokens += static_cast<int64_t>(got.size());
  }
  EXPECT_EQ(tokens, result.tokens);
  EXPECT_FALSE(fs::exists(dir_ / "out" / "unfinished.json"));
  verify_tokens(*store);

  std::vector<int32_t> some(10);
  store->read(3, 5, some);
  EXPECT_EQ(bytes_->decode(some), expected[3].substr(5, 10));
  expect_error([&] { store->length(40); }, "no document 40");
  expect_error([&] { store->read(-1, 0, some); }, "no document -1");
  expect_error([&] { store->read(0, store->length(0) - 9, some); }, "document 0");
  expect_error([&] { store->read(0, -1, some); }, "document 0");
  expect_error([&] { store->read(0, INT64_MAX, some); }, "document 0");
}

TEST_F(Shards, WideTokens) {
  for (const int64_t vocab : {65536, 65537, 1000000}) {
    const FakeTokenizer tokenizer(vocab);
    const std::string out = std::to_string(vocab);
    encode_corpus(settings(out), tokenizer);
    const auto store = open_tokens(dir_ / out, &tokenizer);
    auto expected = tokenizer.encode(all_documents({(dir_ / "a.txt").string()})[7], false);
    expected.push_back(7);
    EXPECT_EQ(document(*store, 7), expected);
  }
  EXPECT_GT(fs::file_size(dir_ / "65537" / "shard-00000.tok"), 0u);
}

TEST_F(Shards, ThreadsDoNotChangeTheBytes) {
  const int before = threads();
  std::vector<std::string> all;
  for (const int count : {1, 2, 5}) {
    set_threads(count);
    const std::string out = "threads" + std::to_string(count);
    encode_corpus(settings(out), *bytes_);
    all.push_back(all_bytes(dir_ / out));
  }
  set_threads(before);
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
}

TEST_F(Shards, BadTextStopsTheEncodingAndKeepsWhatIsDone) {
  std::string large;
  for (int i = 0; i < 15; ++i) {
    large += text_;
  }
  write_text_atomic(dir_ / "a.txt", large + "\xff");
  expect_error([&] { encode_corpus(settings("out", 3000000), *bytes_); }, "not UTF-8");
  EXPECT_TRUE(fs::exists(dir_ / "out" / "shard-00000.tok"));
  EXPECT_TRUE(fs::exists(dir_ / "out" / "unfinished.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "index.json"));
  expect_error([&] { open_tokens(dir_ / "out"); }, "not finished", "again to go on");
  // A repaired text is another one.
  write_text_atomic(dir_ / "a.txt", large);
  expect_error([&] { encode_corpus(settings("out", 3000000), *bytes_); }, "the text has changed",
               "--restart");
  EncodeSettings again = settings("out", 3000000);
  encode_corpus(settings("whole", 3000000), *bytes_);
  again.restart = true;
  encode_corpus(again, *bytes_);
  EXPECT_EQ(all_bytes(dir_ / "out"), all_bytes(dir_ / "whole"));
}

TEST_F(Shards, AnInterruptedEncodingGoesOn) {
  encode_corpus(settings("whole"), *bytes_);
  const std::string expected = all_bytes(dir_ / "whole");
  encode_corpus(settings("out"), *bytes_);

  // Undo the end, as a kill would have.
  const auto index = nlohmann::json::parse(read_text(dir_ / "out" / "index.json"));
  for (const size_t keep : {0, 1, 2}) {
    nlohmann::json unfinished = index;
    unfinished["modified_ns"] = {list_sources({(dir_ / "a.txt").string()})[0].modified_ns};
    unfinished["shards"].erase(unfinished["shards"].begin() + static_cast<std::ptrdiff_t>(keep),
                               unfinished["shards"].end());
    fs::remove(dir_ / "out" / "index.json");
    write_text_atomic(dir_ / "out" / "unfinished.json", unfinished.dump());
    for (size_t i = keep; i < index["shards"].size(); ++i) {
      write_text_atomic(dir_ / "out" / ShardIndex::shard_name(i), "half");
    }
    const EncodeResult result = encode_corpus(settings("out"), *bytes_);
    EXPECT_EQ(result.resumed_documents > 0, keep > 0);
    EXPECT_EQ(result.documents, 40);
    EXPECT_EQ(all_bytes(dir_ / "out"), expected) << keep;
  }
  // Once more finds everything done; other settings do not fit.
  EXPECT_EQ(encode_corpus(settings("out"), *bytes_).encoded_bytes, 0u);
  expect_error([&] { encode_corpus(settings("out", 100000), *bytes_); }, "other settings",
               "--restart");
  expect_error([&] { encode_corpus(settings("out"), FakeTokenizer(300)); }, "other settings");
  EXPECT_EQ(all_bytes(dir_ / "out"), expected);
}

TEST_F(Shards, AnotherTokenizerIsAnError) {
  encode_corpus(settings("out"), *bytes_);
  const FakeTokenizer other(257);
  expect_error([&] { open_tokens(dir_ / "out", &other); }, "another tokenizer",
               bytes_->fingerprint(), "fake");
}

TEST_F(Shards, AReadOnlyFolderIsAnError) {
  fs::permissions(dir_ / "a.txt", fs::perms::all);
  const Unprivileged user(dir_.path());
  fs::create_directory(dir_ / "locked");
  fs::permissions(dir_ / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  expect_error([&] { encode_corpus(settings("locked"), *bytes_); }, "ermission", "locked");
  expect_error([&] { encode_corpus(settings("locked/below"), *bytes_); }, "ermission", "--out");
  fs::permissions(dir_ / "locked", fs::perms::all);
  EXPECT_TRUE(fs::is_empty(dir_ / "locked"));
}

TEST_F(Shards, EveryTruncationAndFlipIsFound) {
  overwrite(dir_ / "a.txt", "one\n<|endoftext|>\ntwo and three\n<|endoftext|>\nfour");
  encode_corpus(settings("out"), *bytes_);
  const fs::path file = dir_ / "out" / "shard-00000.tok";
  const std::string good = read_text(file);
  const auto read_all = [&] { verify_tokens(*open_tokens(dir_ / "out")); };
  EXPECT_NO_THROW(read_all());
  for (size_t size = 0; size < good.size(); ++size) {
    overwrite(file, good.substr(0, size));
    expect_error(read_all, "shard-00000.tok");
  }
  // The zeros between tokens and index mean nothing; all else does.
  size_t unnoticed = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    overwrite(file, bad);
    try {
      read_all();
      ++unnoticed;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("shard-00000.tok"), std::string::npos);
    }
  }
  EXPECT_LT(unnoticed, 8u);
  overwrite(file, good + good);
  expect_error(read_all, "shard-00000.tok");
  fs::remove(file);
  expect_error(read_all, "shard-00000.tok");
}

TEST_F(Shards, HostileCountsAreRefused) {
  encode_corpus(settings("out"), *bytes_);
  const fs::path file = dir_ / "out" / "shard-00000.tok";
  const std::string good = read_text(file);
  for (const size_t field : {40, 32, 24}) {  // tokens, documents, sums, from the end
    for (const uint64_t value :
         {uint64_t{0}, uint64_t{1} << 61, ~uint64_t{0}, ~uint64_t{0} / 2, uint64_t{1} << 63}) {
      std::string bad = good;
      std::memcpy(bad.data() + bad.size() - field, &value, 8);
      overwrite(file, bad);
      expect_error([&] { const ShardFile shard(file); }, "shard-00000.tok", "damaged");
    }
  }
  // Wide tokens of a small vocabulary, as nobody writes them, with sums that are right.
  const std::string wide = [&] {
    constexpr size_t kHeader = 96, kTokens = 4, kIndex = kHeader + 4 * kTokens;
    const uint32_t width = 4;
    const std::array<uint64_t, 2> begins = {0, kTokens};
    const std::array<uint64_t, 3> counts = {kTokens, 1, 1};
    std::string bytes = good.substr(0, kIndex);
    std::memcpy(bytes.data() + 12, &width, 4);
    std::memset(bytes.data() + kHeader, 0, kIndex - kHeader);
    const uint64_t block = hash_bytes(bytes.data() + kHeader, kIndex - kHeader);
    uint64_t sum = hash_bytes(bytes.data(), kHeader);
    sum = hash_bytes(begins.data(), sizeof begins, sum);
    sum = hash_bytes(&block, sizeof block, sum);
    sum = hash_bytes(counts.data(), sizeof counts, sum);
    bytes.append(reinterpret_cast<const char*>(begins.data()), sizeof begins);
    bytes.append(reinterpret_cast<const char*>(&block), sizeof block);
    bytes.append(reinterpret_cast<const char*>(counts.data()), sizeof counts);
    bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    return bytes + "FWPKMEND";
  }();
  overwrite(file, wide);
  expect_error([&] { const ShardFile shard(file); }, "damaged", "4 bytes a token");
  overwrite(file, good);
  const std::string index = read_text(dir_ / "out" / "index.json");
  const auto json = nlohmann::json::parse(index);
  for (const std::string place :
       {"/format", "/version", "/tokenizer", "/tokenizer/vocab_size", "/tokenizer/end_of_text",
        "/tokenizer/kind", "/tokenizer/fingerprint", "/tokens", "/documents", "/shards", "/sources",
        "/shards/0/file", "/shards/0/tokens", "/shards/0/documents", "/shards/0/bytes",
        "/shards/0/checksum", "/shards/1", "/sources/0"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(), nlohmann::json(-1), nlohmann::json(1e300), nlohmann::json(INT64_MAX),
          nlohmann::json("../a.txt"), nlohmann::json(2.5), nlohmann::json::array({1})}) {
      nlohmann::json bad = json;
      bad[nlohmann::json::json_pointer(place)] = value;
      overwrite(dir_ / "out" / "index.json", bad.dump());
      expect_error([&] { open_tokens(dir_ / "out"); }, "out");
    }
  }
  for (size_t size = 1; size + 2 < index.size(); size += 7) {
    overwrite(dir_ / "out" / "index.json", index.substr(0, size));
    expect_error([&] { open_tokens(dir_ / "out"); }, "index.json");
  }
  expect_error([&] { open_tokens(dir_ / "nowhere"); }, "nowhere");
  expect_error([&] { open_tokens(dir_.path()); }, "index.json");
}

// ---------------------------------------------------------------------- the authors' files

template <typename T>
void write_official(const fs::path& name, const std::vector<std::vector<T>>& documents) {
  std::string bin, idx;
  for (const auto& tokens : documents) {
    idx += fmt::format("{} {}\n", tokens.size(), bin.size());
    bin.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
  }
  write_text_atomic(name.string() + ".bin", bin);
  write_text_atomic(name.string() + ".idx", idx);
}

TEST_F(Shards, TheAuthorsFilesAreRead) {
  write_official<uint16_t>(dir_ / "narrow", {{1, 2, 65535}, {}, {4}, {5, 6}});
  write_official<uint32_t>(dir_ / "wide", {{70000, 2}, {3}});
  for (const std::string name : {"narrow", "narrow.bin", "narrow.idx"}) {
    const auto store = open_tokens(dir_ / name);
    ASSERT_EQ(store->documents(), 4);
    EXPECT_EQ(store->tokens(), 6);
    EXPECT_EQ(document(*store, 0), (std::vector<int32_t>{1, 2, 65535}));
    EXPECT_EQ(store->length(1), 0);
    EXPECT_EQ(document(*store, 3), (std::vector<int32_t>{5, 6}));
    EXPECT_EQ(store->fingerprint(), "");
    verify_tokens(*store);
    std::vector<int32_t> one(1);
    store->read(3, 1, one);
    EXPECT_EQ(one[0], 6);
    expect_error([&] { store->read(3, 2, one); }, "document 3");
    expect_error([&] { store->length(4); }, "no document 4");
  }
  EXPECT_EQ(document(*open_tokens(dir_ / "wide"), 0), (std::vector<int32_t>{70000, 2}));
  const auto store = open_tokens(dir_ / "narrow", bytes_.get());
  EXPECT_EQ(store->vocab_size(), 257);
  expect_error([&] { verify_tokens(*store); }, "token 65535", "257");
}

TEST_F(Shards, TheAuthorsFilesAreChecked) {
  write_official<uint16_t>(dir_ / "x", {{1, 2, 3}, {4}});
  const std::string bin = read_text(dir_ / "x.bin"), idx = read_text(dir_ / "x.idx");
  const auto fails = [&](const std::string& new_bin, const std::string& new_idx) {
    overwrite(dir_ / "x.bin", new_bin);
    overwrite(dir_ / "x.idx", new_idx);
    expect_error([&] { open_tokens(dir_ / "x"); }, "[", "x.");
  };
  for (size_t size = 0; size < bin.size(); ++size) {
    fails(bin.substr(0, size), idx);
  }
  for (const std::string bad : {"", "\n", "3 0\n", "3 0\n1 7\n", "3 0\n1\n", "3 0\n1 6 9\n",
                                "-3 0\n1 6\n", "18446744073709551615 0\n4 6\n",
                                "99999999999999999999999 0\n", "0 0\n", "{}", "3 0\n1 6\nx"}) {
    fails(bin, bad);
  }
  fs::remove(dir_ / "x.idx");
  expect_error([&] { open_tokens(dir_ / "x"); }, "x.idx");
}

}  // namespace
}  // namespace fwpkm
