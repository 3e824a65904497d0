// Encoded corpora: documents of tokens in memory-mapped files, read without loading them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace fwpkm {

// Documents of tokens. All calls but the constructor may come from several threads at once.
class TokenStore {
 public:
  virtual ~TokenStore() = default;

  virtual int64_t documents() const = 0;
  virtual int64_t tokens() const = 0;
  // Tokens of a document. In stores that we wrote, the last one is end of text.
  virtual int64_t length(int64_t document) const = 0;
  // Copies tokens begin .. begin + out.size() of a document. Damaged data is an error here, found
  // by checksum when its block is touched first, and so is a token outside the vocabulary.
  virtual void read(int64_t document, int64_t begin, std::span<int32_t> out) const = 0;

  // What the tokens mean. Files of the authors' code do not say: 0 and "" then, unless a tokenizer
  // was given to open_tokens.
  virtual int64_t vocab_size() const = 0;
  virtual std::string fingerprint() const = 0;
  virtual std::string kind() const = 0;
  // Where a store keeps the tokenizer it was encoded with, as load_tokenizer takes it; or "".
  virtual std::string tokenizer_spec() const { return ""; }
};

// Opens a folder that `fwpkm data encode` wrote, or files of the authors' code: NAME.bin with
// NAME.idx, given as either of them or as NAME. With a tokenizer, a store that was encoded with
// another one is an error. Everything but the tokens themselves is checked here.
std::shared_ptr<const TokenStore> open_tokens(const std::filesystem::path& path,
                                              const Tokenizer* tokenizer = nullptr);

// Reads every token once, so that all checks are made. `progress` gets 0 to 1.
void verify_tokens(const TokenStore& store, const std::function<void(double)>& progress = {});

}  // namespace fwpkm
