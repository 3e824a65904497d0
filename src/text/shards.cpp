#include "text/shards.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_fields.h"
#include "text/encode.h"
#include "text/official_shards.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

class FolderStore final : public TokenStore {
 public:
  explicit FolderStore(const fs::path& folder) : folder_(folder) {
    const fs::path file = folder / kIndexFile;
    const ShardIndex index = ShardIndex::from_json(read_json_file(file), file.string());
    format_ = index.format;
    for (const ShardIndex::Shard& entry : index.shards) {
      auto shard = std::make_unique<ShardFile>(folder / entry.file);
      require(shard->format() == format_ && shard->summary() == entry.summary, "shards",
              "'{}' is not the shard that '{}' lists; the folder is a mixture, encode again",
              (folder / entry.file).string(), file.string());
      documents_ += entry.summary.documents;
      tokens_ += entry.summary.tokens;
      ends_.push_back(documents_);
      shards_.push_back(std::move(shard));
    }
    require(
        documents_ == index.documents && tokens_ == index.tokens && documents_ > 0, "shards",
        "'{}' is damaged: its shards have {} documents and {} tokens, not {} and {}; encode again",
        file.string(), documents_, tokens_, index.documents, index.tokens);
  }

  int64_t documents() const override { return documents_; }
  int64_t tokens() const override { return tokens_; }
  int64_t vocab_size() const override { return format_.vocab_size; }
  std::string fingerprint() const override { return format_.fingerprint; }
  std::string kind() const override { return format_.kind; }
  std::string tokenizer_spec() const override {
    return format_.kind == "bytes" ? "bytes" : (folder_ / kTokenizerFile).string();
  }
  int64_t length(int64_t document) const override {
    const auto [shard, local] = find(document);
    return shard->length(local);
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    const auto [shard, local] = find(document);
    shard->read(local, begin, out);
  }

 private:
  std::pair<const ShardFile*, int64_t> find(int64_t document) const {
    require(document >= 0 && document < documents_, "shards",
            "there is no document {} in '{}', which has {}", document, folder_.string(),
            documents_);
    const auto at =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), document) - ends_.begin());
    return {shards_[at].get(), document - (at == 0 ? 0 : ends_[at - 1])};
  }

  fs::path folder_;
  TokenFormat format_;
  std::vector<std::unique_ptr<ShardFile>> shards_;
  std::vector<int64_t> ends_;  // documents up to and with each shard
  int64_t documents_ = 0, tokens_ = 0;
};

}  // namespace

std::shared_ptr<const TokenStore> open_tokens(const fs::path& path, const Tokenizer* tokenizer) {
  if (!fs::is_directory(path)) {
    return open_official(path, tokenizer == nullptr ? 0 : tokenizer->vocab_size());
  }
  require(!fs::exists(path / kUnfinishedFile) || fs::exists(path / kIndexFile), "shards",
          "the encoding in '{}' is not finished; give the same `fwpkm data encode` command again "
          "to go on",
          path.string());
  require(fs::exists(path / kIndexFile), "shards",
          "'{}' has no {}; give a folder that `fwpkm data encode` wrote", path.string(),
          kIndexFile);
  auto store = std::make_shared<FolderStore>(path);
  if (tokenizer != nullptr) {
    require(store->fingerprint() == tokenizer->fingerprint(), "shards",
            "'{}' was encoded with another tokenizer: {} {} of {} tokens, not {} {} of {}; encode "
            "the text again "
            "with this one",
            path.string(), store->kind(), store->fingerprint(), store->vocab_size(),
            tokenizer->kind(), tokenizer->fingerprint(), tokenizer->vocab_size());
  }
  return store;
}

void verify_tokens(const TokenStore& store, const std::function<void(double)>& progress) {
  std::vector<int32_t> tokens(1u << 16);
  int64_t done = 0;
  for (int64_t document = 0; document < store.documents(); ++document) {
    const int64_t length = store.length(document);
    for (int64_t begin = 0; begin < length; begin += static_cast<int64_t>(tokens.size())) {
      const int64_t count = std::min(length - begin, static_cast<int64_t>(tokens.size()));
      store.read(document, begin, std::span(tokens).first(static_cast<size_t>(count)));
      done += count;
      if (progress) {
        progress(static_cast<double>(done) / static_cast<double>(store.tokens()));
      }
    }
  }
}

}  // namespace fwpkm
