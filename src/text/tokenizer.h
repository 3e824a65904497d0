// Text to tokens and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fwpkm {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  // `continues`: the text goes on with a document whose front was encoded before, so no mark of a
  // beginning (the space that some models put first) is added. End of text is never added.
  virtual std::vector<int32_t> encode(std::string_view text, bool continues = false) const = 0;
  // The bytes that a token stands for; none for end of text. They may be a part of a character.
  virtual std::string_view bytes_of(int32_t token) const = 0;
  virtual std::string decode(std::span<const int32_t> tokens) const;
  virtual int32_t end_of_text() const = 0;
  // 32 hexadecimal digits that tell this tokenizer's content from any other's.
  virtual std::string fingerprint() const = 0;
  virtual std::string kind() const = 0;  // "bytes", "sentencepiece" or "recall"
  // The content of the file that it can be loaded from; empty where there is none.
  virtual std::string model_bytes() const { return ""; }
};

// "bytes": 256 byte values and end of text, 257 tokens. "recall": the words of builtin:recall, as
// in text/recall_tokenizer.h. Anything else is the path of a file: a SentencePiece model, whose end
// of text is its piece <|endoftext|> or else </s>, or what model_bytes() of a recall tokenizer
// gave.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec);

// The tokenizer of the model in a folder: tokenizer.json there tells which one it was trained with,
// tokenizer.model may hold it. `spec` names one where the folder does not tell; where it does, it
// must be the same. Null if neither tells.
std::shared_ptr<const Tokenizer> load_tokenizer_of(const std::filesystem::path& folder,
                                                   const std::string& spec = "");

// A text that comes token by token: push() yields what is certain, always whole UTF-8 characters.
// Bytes that cannot become a character turn into U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  std::string push(int32_t token);
  // The rest: U+FFFD if the text ends inside a character.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;
};

struct TrainLimits {
  int64_t sample_bytes = int64_t{32} << 20;  // text that SentencePiece sees at most
  uint64_t seed = 0;                         // which lines these are
};

// done from 0 to 1, and what is being done.
using TrainProgress = std::function<void(double done, const std::string& note)>;

// Trains a byte-pair SentencePiece model on lines drawn evenly from the corpus and writes it
// atomically. It is lossless: decode(encode(x)) == x for every UTF-8 text x. The same corpus, size
// and limits give the same bytes.
void train_sentencepiece(const std::vector<std::string>& inputs, int64_t vocab_size,
                         const std::string& out_model, const TrainProgress& progress,
                         const TrainLimits& limits = {});

}  // namespace fwpkm
