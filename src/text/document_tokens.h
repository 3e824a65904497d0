// Documents in their order as tokens, each with end of text behind it; for reading through.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace fwpkm {

class DocumentTokens {
 public:
  // `paths`: text files or folders of them (text/corpus.h), which are encoded as they are read, or
  // what open_data takes: encoded corpora, builtin. All of one kind.
  DocumentTokens(const std::vector<std::string>& paths, std::shared_ptr<const Tokenizer> tokenizer);
  ~DocumentTokens();
  DocumentTokens(const DocumentTokens&) = delete;
  DocumentTokens& operator=(const DocumentTokens&) = delete;

  struct Piece {
    int64_t document = 0;  // its number
    bool starts = false, ends = false;
    std::vector<int32_t> tokens;
  };
  // Up to `most` tokens of one document; false if there are no more. Memory does not grow with
  // documents.
  bool next(Piece* piece, int64_t most);
  // Passes over tokens.
  void skip(int64_t tokens);
  // How much has been read, 0 to 1; 0 for what has no end.
  double fraction() const;
  bool endless() const;
  int32_t end_of_text() const { return tokenizer_->end_of_text(); }
  // Names the data: equal values mean equal tokens.
  const nlohmann::json& about() const { return about_; }

 private:
  class Source;
  class TextSource;
  class StoredSource;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Source> source_;
  nlohmann::json about_;
};

}  // namespace fwpkm
