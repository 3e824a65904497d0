#include "text/official_shards.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

class OfficialStore final : public TokenStore {
 public:
  OfficialStore(const fs::path& bin, const fs::path& idx, int64_t vocab_size)
      : path_(bin.string()), file_(bin), vocab_size_(vocab_size) {
    const std::vector<uint64_t> offsets = read_index(idx);
    const uint64_t size = file_.bytes().size();
    const uint64_t tokens = begins_.back();
    require(
        tokens > 0 && (size == 2 * tokens || size == 4 * tokens), "shards",
        "'{}' has {} bytes, but the {} tokens that '{}' lists need 2 or 4 each; one of the two is "
        "cut short or from another run",
        path_, size, tokens, idx.string());
    width_ = size / tokens;
    for (size_t i = 0; i < offsets.size(); ++i) {
      require(offsets[i] == begins_[i] * width_, "shards",
              "'{}' line {}: offset {} should be {}; the file is damaged", idx.string(), i + 1,
              offsets[i], begins_[i] * width_);
    }
  }

  int64_t documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t tokens() const override { return static_cast<int64_t>(begins_.back()); }
  int64_t vocab_size() const override { return vocab_size_; }
  std::string fingerprint() const override { return ""; }
  std::string kind() const override { return ""; }

  int64_t length(int64_t document) const override {
    require(document >= 0 && document < documents(), "shards",
            "there is no document {} in '{}', which has {}", document, path_, documents());
    const auto at = static_cast<size_t>(document);
    return static_cast<int64_t>(begins_[at + 1] - begins_[at]);
  }

  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    const int64_t size = length(document), count = static_cast<int64_t>(out.size());
    require(begin >= 0 && begin <= size && count <= size - begin, "shards",
            "cannot read {} tokens from token {} of document {} in '{}', which has {}", count,
            begin, document, path_, size);
    const uint64_t limit = vocab_size_ > 0 ? static_cast<uint64_t>(vocab_size_) : 1ull << 31;
    const std::byte* from =
        file_.bytes().data() +
        (begins_[static_cast<size_t>(document)] + static_cast<uint64_t>(begin)) * width_;
    for (size_t i = 0; i < out.size(); ++i) {
      uint32_t value = 0;
      std::memcpy(&value, from + i * width_, width_);
      require(value < limit, "shards",
              "'{}' has token {} in document {}, outside the vocabulary of {}; it was encoded with "
              "another "
              "tokenizer",
              path_, value, document, limit);
      out[i] = static_cast<int32_t>(value);
    }
  }

 private:
  // Fills begins_ with sums of lengths, and returns the offsets.
  std::vector<uint64_t> read_index(const fs::path& idx) {
    const MappedFile file(idx);
    const auto* at = reinterpret_cast<const char*>(file.bytes().data());
    const char* const end = at + file.bytes().size();
    std::vector<uint64_t> offsets;
    while (at < end) {
      uint64_t length = 0, offset = 0;
      auto parsed = std::from_chars(at, end, length);
      bool good = parsed.ec == std::errc() && parsed.ptr < end && *parsed.ptr == ' ';
      if (good) {
        parsed = std::from_chars(parsed.ptr + 1, end, offset);
        good = parsed.ec == std::errc() && (parsed.ptr == end || *parsed.ptr == '\n');
      }
      // No more tokens than bytes: sums cannot overflow.
      good =
          good && length <= file_.bytes().size() && begins_.back() + length <= file_.bytes().size();
      require(good, "shards",
              "'{}' line {} is not \"tokens offset\" inside '{}'; the file is damaged or of "
              "another kind",
              idx.string(), offsets.size() + 1, path_);
      begins_.push_back(begins_.back() + length);
      offsets.push_back(offset);
      at = parsed.ptr + (parsed.ptr < end ? 1 : 0);
    }
    return offsets;
  }

  std::string path_;
  MappedFile file_;
  int64_t vocab_size_;
  size_t width_ = 0;
  std::vector<uint64_t> begins_{0};
};

}  // namespace

std::shared_ptr<const TokenStore> open_official(const fs::path& path, int64_t vocab_size) {
  fs::path name = path;
  if (name.extension() == ".bin" || name.extension() == ".idx") {
    name.replace_extension();
  }
  const fs::path bin = name.string() + ".bin", idx = name.string() + ".idx";
  require(fs::exists(bin) && fs::exists(idx), "shards",
          "'{}' is neither a folder of shards nor a pair of files '{}' and '{}'; check the path",
          path.string(), bin.string(), idx.string());
  return std::make_shared<OfficialStore>(bin, idx, vocab_size);
}

}  // namespace fwpkm
