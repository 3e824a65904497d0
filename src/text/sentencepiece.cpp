#include "text/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "text/corpus.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace fwpkm {
namespace {

// SentencePiece writes a space as this character (U+2581), in pieces and in encoding.
constexpr std::string_view kSpace = "\xe2\x96\x81";

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const size_t mark = std::min(piece.find(kSpace, at), piece.size());
    text += piece.substr(at, mark - at);
    at = mark;
    if (at < piece.size()) {
      text += ' ';
      at += kSpace.size();
    }
  }
  return text;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) : path_(path), model_(read_text(path)) {
    load();
    read_pieces();
    find_end_of_text();
    // A model may put a space before every text; continuations must not get one.
    const std::vector<int32_t> probe = encode_raw("a");
    adds_space_ = !probe.empty() && bytes_of(probe.front()).starts_with(' ');
    newline_ = encode_raw("\n");
    words_apart_ = !adds_space_ && takes_text_as_it_is() && no_piece_spans_words();
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::string fingerprint() const override { return hash_hex(model_); }
  std::string kind() const override { return "sentencepiece"; }
  std::string model_bytes() const override { return model_; }

  std::string_view bytes_of(int32_t token) const override {
    require(token >= 0 && token < vocab_size(), "tokenizer", "token {} is outside the {} of '{}'",
            token, vocab_size(), path_);
    return bytes_[static_cast<size_t>(token)];
  }

  std::vector<int32_t> encode(std::string_view text, bool continues) const override {
    const size_t bad = utf8_error(text);
    require(bad == text.npos, "tokenizer",
            "the text is not UTF-8 at byte {}; the bytes tokenizer takes any bytes", bad);
    if (text.empty()) {
      return {};
    }
    if (continues && adds_space_) {
      return encode_after_newline(text);
    }
    if (!words_apart_) {
      return encode_around_marks(text);
    }
    std::vector<int32_t> tokens;
    tokens.reserve(text.size() / 3);
    WordCaches::Loan cache(caches_);
    cache->encode_words(
        text, [&](std::string_view word) { return encode_around_marks(word); }, tokens);
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text = Tokenizer::decode(tokens);
    if (adds_space_ && text.starts_with(' ')) {
      text.erase(0, 1);
    }
    return text;
  }

 private:
  void load() {
    // The library writes its own complaint to standard error as well; ours says it all.
    std::ostringstream quiet;
    std::streambuf* const old = std::cerr.rdbuf(quiet.rdbuf());
    const auto status = processor_.LoadFromSerializedProto(model_);
    std::cerr.rdbuf(old);
    require(status.ok() && processor_.GetPieceSize() > 0, "tokenizer",
            "'{}' is not a SentencePiece model{}{}; give bytes or the path of a .model file", path_,
            status.ok() ? "" : ": ", status.ok() ? "" : status.message());
  }

  void read_pieces() {
    const int size = processor_.GetPieceSize();
    bytes_.reserve(static_cast<size_t>(size));
    for (int id = 0; id < size; ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      if (processor_.IsControl(id) || processor_.IsUnused(id)) {
        bytes_.emplace_back();
      } else if (processor_.IsUnknown(id)) {
        bytes_.emplace_back("\xef\xbf\xbd");
      } else if (processor_.IsByte(id)) {
        require(piece.size() == 6, "tokenizer",
                "'{}': piece {} ('{}') is marked as a byte, but is no byte", path_, id, piece);
        bytes_.emplace_back(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      } else {
        bytes_.push_back(with_spaces(piece));
      }
    }
    // U+2581 itself can only be kept as its bytes.
    for (const char byte : kSpace) {
      const int id =
          processor_.PieceToId(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
      if (!processor_.IsByte(id)) {
        mark_bytes_.clear();
        break;
      }
      mark_bytes_.push_back(id);
    }
  }

  void find_end_of_text() {
    for (const std::string_view name : {kDocumentSeparator, std::string_view("</s>")}) {
      const int id = processor_.PieceToId(std::string(name));
      if (!processor_.IsUnknown(id)) {
        end_of_text_ = id;
        bytes_[static_cast<size_t>(id)].clear();
        return;
      }
    }
    if (const int id = processor_.eos_id(); id >= 0) {
      end_of_text_ = id;
      return;
    }
    fail("tokenizer",
         "'{}' has no piece for end of text, neither <|endoftext|> nor </s>; train it with one",
         path_);
  }

  bool takes_text_as_it_is() const {
    const std::string text = "  a\xef\xac\x81 \xe2\x91\xa0  b \n\n c\t ";
    return Tokenizer::decode(encode_raw(text)) == text;
  }

  // Then, and if text is taken as it is, words (see WordCache) can be encoded one by one: neither
  // merges nor best paths reach across their borders.
  bool no_piece_spans_words() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](std::string_view bytes) {
      return bytes.empty() || WordCache::word_length(bytes) == bytes.size();
    });
  }

  std::vector<int32_t> encode_raw(std::string_view text) const {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    require(status.ok(), "tokenizer", "'{}' cannot encode a text: {}", path_, status.message());
    return ids;
  }

  std::vector<int32_t> encode_around_marks(std::string_view text) const {
    size_t mark = text.find(kSpace);
    if (mark == text.npos || mark_bytes_.empty()) {
      return encode_raw(text);
    }
    std::vector<int32_t> tokens;
    while (true) {
      const std::vector<int32_t> part = encode_raw(text.substr(0, mark));
      tokens.insert(tokens.end(), part.begin(), part.end());
      if (mark == text.npos) {
        return tokens;
      }
      tokens.insert(tokens.end(), mark_bytes_.begin(), mark_bytes_.end());
      text.remove_prefix(mark + kSpace.size());
      mark = text.find(kSpace);
    }
  }

  // As it would be encoded in the middle of a text: behind a line's end, which is then removed.
  std::vector<int32_t> encode_after_newline(std::string_view text) const {
    std::vector<int32_t> tokens = encode_raw("\n" + std::string(text));
    if (tokens.size() >= newline_.size() &&
        std::equal(newline_.begin(), newline_.end(), tokens.begin())) {
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(newline_.size()));
    }
    return tokens;
  }

  std::string path_, model_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> bytes_;  // of each token
  std::vector<int32_t> mark_bytes_;
  std::vector<int32_t> newline_;
  int32_t end_of_text_ = -1;
  bool adds_space_ = false;
  bool words_apart_ = false;
  mutable WordCaches caches_;
};

}  // namespace

std::shared_ptr<const Tokenizer> load_sentencepiece(const std::string& path) {
  return std::make_shared<SentencePieceTokenizer>(path);
}

}  // namespace fwpkm
