#include "text/tokenizer.h"

#include <array>
#include <fstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_fields.h"
#include "text/recall_tokenizer.h"
#include "text/sentencepiece.h"
#include "text/utf8.h"

namespace fwpkm {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<char>(i);
    }
  }
  int64_t vocab_size() const override { return 257; }
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    std::vector<int32_t> tokens(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      tokens[i] = static_cast<unsigned char>(text[i]);
    }
    return tokens;
  }
  std::string_view bytes_of(int32_t token) const override {
    require(token >= 0 && token <= 256, "tokenizer",
            "token {} is outside the 257 of the bytes tokenizer", token);
    return token == 256 ? std::string_view()
                        : std::string_view(&bytes_[static_cast<size_t>(token)], 1);
  }
  int32_t end_of_text() const override { return 256; }
  std::string fingerprint() const override { return hash_hex("bytes and end of text"); }
  std::string kind() const override { return "bytes"; }

 private:
  std::array<char, 256> bytes_;
};

// The first line of a file, without its end; at most 80 bytes of it, and "" where there is no file.
std::string first_line(const std::string& path) {
  std::array<char, 80> buffer{};
  std::ifstream(path, std::ios::binary).read(buffer.data(), buffer.size());
  const std::string_view text(buffer.data(), buffer.size());
  return std::string(text.substr(0, text.find_first_of(std::string_view("\n\0", 2))));
}

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    text += bytes_of(token);
  }
  return text;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec) {
  require(!spec.empty(), "tokenizer",
          "no tokenizer is given; use bytes, recall or the path of a SentencePiece model");
  if (spec == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  if (is_recall_spec(spec)) {
    return recall_tokenizer_of(spec);
  }
  if (const std::string line = first_line(spec); is_recall_spec(line)) {
    return recall_tokenizer_of(line);
  }
  return load_sentencepiece(spec);
}

std::shared_ptr<const Tokenizer> load_tokenizer_of(const std::filesystem::path& folder,
                                                   const std::string& spec) {
  const std::filesystem::path about = folder / "tokenizer.json";
  if (!std::filesystem::exists(about)) {
    return spec.empty() ? nullptr : load_tokenizer(spec);
  }
  const nlohmann::json json = read_json_file(about);
  const auto text = [&](const char* key) {
    require(json.is_object() && json.contains(key) && json.at(key).is_string(), "tokenizer",
            "{} does not say \"{}\"; it is damaged", about.string(), key);
    return json.at(key).get<std::string>();
  };
  const bool bytes = text("kind") == "bytes";
  const std::string from = !spec.empty() ? spec
                           : bytes       ? "bytes"
                                         : (folder / "tokenizer.model").string();
  auto tokenizer = load_tokenizer(from);
  require(tokenizer->fingerprint() == text("fingerprint"), "tokenizer",
          "{} is not the tokenizer that {} was trained with; leave --tokenizer out", from,
          folder.string());
  return tokenizer;
}

std::string StreamDecoder::push(int32_t token) {
  pending_ += tokenizer_->bytes_of(token);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const auto length = static_cast<size_t>(utf8_length(static_cast<unsigned char>(rest.front())));
    const std::string_view character = rest.substr(0, length);
    if (length == 0 || !utf8_so_far(character)) {
      out += kReplacement;
      rest.remove_prefix(1);
    } else if (character.size() < length) {
      break;  // the next token may finish it
    } else {
      out += character;
      rest.remove_prefix(length);
    }
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDecoder::finish() {
  const bool partial = !pending_.empty();
  pending_.clear();
  return partial ? std::string(kReplacement) : "";
}

}  // namespace fwpkm
