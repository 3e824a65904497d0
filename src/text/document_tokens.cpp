#include "text/document_tokens.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "text/corpus.h"
#include "text/data_spec.h"
#include "text/encode.h"

namespace fwpkm {

namespace fs = std::filesystem;

class DocumentTokens::Source {
 public:
  virtual ~Source() = default;
  virtual bool next(Piece* piece, int64_t most) = 0;
  virtual double fraction() const = 0;
  virtual bool endless() const { return false; }
};

// Text, encoded piece by piece.
class DocumentTokens::TextSource : public Source {
 public:
  TextSource(std::vector<SourceFile> files, const Tokenizer& tokenizer)
      : reader_(std::move(files)), tokenizer_(tokenizer) {}

  bool next(Piece* piece, int64_t most) override {
    while (at_ == tokens_.size()) {
      TextPiece text;
      if (!reader_.next(text)) {
        return false;
      }
      if (text.starts_document) {
        ++document_;
        starts_ = true;
      }
      tokens_ = tokenizer_.encode(text.text, !text.starts_document);
      ends_ = text.ends_document;
      if (ends_) {
        tokens_.push_back(tokenizer_.end_of_text());
      }
      at_ = 0;
    }
    const size_t count = std::min(tokens_.size() - at_, static_cast<size_t>(most));
    const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(at_);
    piece->document = document_;
    piece->tokens.assign(begin, begin + static_cast<ptrdiff_t>(count));
    piece->starts = std::exchange(starts_, false);
    at_ += count;
    piece->ends = ends_ && at_ == tokens_.size();
    return true;
  }
  double fraction() const override { return reader_.fraction(); }

 private:
  DocumentReader reader_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  size_t at_ = 0;
  int64_t document_ = -1;
  bool starts_ = false, ends_ = false;
};

// Tokens that are there already.
class DocumentTokens::StoredSource : public Source {
 public:
  StoredSource(std::vector<WeightedSource> sources, int32_t end_of_text)
      : sources_(std::move(sources)), end_of_text_(end_of_text) {
    for (const WeightedSource& source : sources_) {
      total_ += source.documents->documents();
      endless_ = endless_ || source.documents->documents() == kEndless;
    }
  }

  bool next(Piece* piece, int64_t most) override {
    while (source_ < sources_.size()) {
      const DocumentSource& source = *sources_[source_].documents;
      if (source.documents() != kEndless && document_ == source.documents()) {
        ++source_;
        document_ = at_ = 0;
        continue;
      }
      const int64_t length = source.length(document_);
      if (length == 0) {
        ++document_;
        continue;
      }
      const int64_t count = std::min(length - at_, most);
      piece->document = number_;
      piece->starts = at_ == 0;
      piece->tokens.resize(static_cast<size_t>(count));
      if (count > 0) {
        source.read(document_, at_, piece->tokens);
        last_ = piece->tokens.back();
      }
      at_ += count;
      // Documents hold their own end of text, or get one.
      piece->ends = at_ == length && last_ == end_of_text_;
      if (at_ == length && !piece->ends && count < most) {
        piece->tokens.push_back(last_ = end_of_text_);
        piece->ends = true;
      }
      if (piece->ends) {
        ++document_;
        ++number_;
        at_ = 0;
      }
      return true;
    }
    return false;
  }
  double fraction() const override {
    return endless_ ? 0 : static_cast<double>(number_) / static_cast<double>(total_);
  }
  bool endless() const override { return endless_; }

 private:
  std::vector<WeightedSource> sources_;
  int32_t end_of_text_;
  int64_t total_ = 0;
  bool endless_ = false;
  size_t source_ = 0;
  int64_t document_ = 0, number_ = 0, at_ = 0;
  int32_t last_ = -1;
};

namespace {

bool is_encoded(const std::string& path) {
  return path.starts_with("builtin") || fs::exists(fs::path(path) / kIndexFile) ||
         path.ends_with(".bin") || path.ends_with(".idx") || fs::exists(path + ".bin");
}

}  // namespace

DocumentTokens::DocumentTokens(const std::vector<std::string>& paths,
                               std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  const auto encoded = std::count_if(paths.begin(), paths.end(), is_encoded);
  if (encoded == 0) {
    std::vector<SourceFile> files = list_sources(paths);
    about_ = {{"tokenizer", tokenizer_->fingerprint()}, {"files", nlohmann::json::array()}};
    for (const SourceFile& file : files) {
      about_["files"].push_back(
          {{"path", file.path}, {"bytes", file.bytes}, {"modified_ns", file.modified_ns}});
    }
    source_ = std::make_unique<TextSource>(std::move(files), *tokenizer_);
    return;
  }
  require(encoded == std::ssize(paths), "data",
          "some of the {} inputs are text and some are encoded; give one kind", paths.size());
  DataSettings settings;
  settings.data = paths;
  settings.split = Split::kValid;
  Data data = open_data(settings);
  require(!data.tokenizer || data.tokenizer->fingerprint() == tokenizer_->fingerprint(), "data",
          "{} was encoded with another tokenizer ({}) than the model was trained with ({})",
          paths[0], data.tokenizer->kind(), tokenizer_->kind());
  about_ = {{"tokenizer", tokenizer_->fingerprint()}, {"sources", nlohmann::json::array()}};
  for (const WeightedSource& source : data.sources) {
    about_["sources"].push_back(source.documents->fingerprint());
  }
  source_ = std::make_unique<StoredSource>(std::move(data.sources), tokenizer_->end_of_text());
}

DocumentTokens::~DocumentTokens() = default;

bool DocumentTokens::next(Piece* piece, int64_t most) {
  return source_->next(piece, most);
}

void DocumentTokens::skip(int64_t tokens) {
  Piece piece;
  while (tokens > 0) {
    require(next(&piece, tokens), "data", "the data ends {} tokens early; it has changed", tokens);
    tokens -= std::ssize(piece.tokens);
  }
}

double DocumentTokens::fraction() const {
  return source_->fraction();
}

bool DocumentTokens::endless() const {
  return source_->endless();
}

}  // namespace fwpkm
