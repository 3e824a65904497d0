#include "text/data_spec.h"

#include <charconv>

#include "base/error.h"
#include "text/builtin.h"
#include "text/recall_tokenizer.h"
#include "text/shards.h"

namespace fwpkm {
namespace {

// Documents of an encoded corpus.
class StoreDocuments : public DocumentSource {
 public:
  StoreDocuments(std::shared_ptr<const TokenStore> store, int64_t vocab_size)
      : store_(std::move(store)), vocab_size_(vocab_size) {}
  int64_t documents() const override { return store_->documents(); }
  int64_t length(int64_t document) const override { return store_->length(document); }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    store_->read(document, begin, out);
  }
  int64_t vocab_size() const override { return vocab_size_; }
  std::string fingerprint() const override {
    return fmt::format("store:{}:{}:{}", store_->fingerprint(), store_->documents(),
                       store_->tokens());
  }

 private:
  std::shared_ptr<const TokenStore> store_;
  int64_t vocab_size_;
};

struct Spec {
  std::string name;
  double weight = 1;
};

Spec parse_spec(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) {
    return {text, 1};
  }
  Spec spec;
  spec.name = text.substr(0, at);
  const char* begin = text.data() + at + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, spec.weight);
  require(error == std::errc() && stop == end && spec.weight > 0, "data",
          "'{}': what follows @ must be a weight above 0, as in books@0.5", text);
  return spec;
}

}  // namespace

Data open_data(const DataSettings& settings) {
  require(!settings.data.empty(), "data", "no data was given");
  Data data;
  if (!settings.tokenizer.empty()) {
    data.tokenizer = load_tokenizer(settings.tokenizer);
  }
  for (const std::string& text : settings.data) {
    const Spec spec = parse_spec(text);
    WeightedSource source;
    source.weight = spec.weight;
    if (spec.name == "builtin") {
      source.documents = builtin_documents(settings.seed, 0, settings.split);
      if (!data.tokenizer) {
        data.tokenizer = load_tokenizer("bytes");
      }
      require(
          data.tokenizer->kind() == "bytes", "data",
          "the built-in corpus is made of bytes, and the tokenizer that was given, or that other "
          "data has, is of kind {}; leave --tokenizer out, and mix it with bytes only",
          data.tokenizer->kind());
      source.end_of_text = data.tokenizer->end_of_text();
    } else if (spec.name == "builtin:recall") {
      const RecallSettings recall;
      const auto words = recall_tokenizer(recall);
      if (!data.tokenizer) {
        data.tokenizer = words;
      }
      require(
          data.tokenizer->fingerprint() == words->fingerprint(), "data",
          "{} has words of its own, {} tokens, and the tokenizer that was given, or that other "
          "data has, is another ({}, {} tokens); leave --tokenizer out, and mix it with its like "
          "only",
          spec.name, words->vocab_size(), data.tokenizer->kind(), data.tokenizer->vocab_size());
      source.documents = recall_documents(recall, settings.seed, settings.split);
      source.end_of_text = kRecallEnd;
    } else {
      require(!spec.name.starts_with("builtin"), "data",
              "there is no built-in corpus '{}'; use builtin or builtin:recall", spec.name);
      const auto store = open_tokens(spec.name, data.tokenizer.get());
      if (!data.tokenizer && !store->tokenizer_spec().empty()) {
        data.tokenizer = load_tokenizer(store->tokenizer_spec());
      }
      const int64_t vocab = store->vocab_size() > 0 ? store->vocab_size()
                            : data.tokenizer        ? data.tokenizer->vocab_size()
                                                    : 0;
      require(vocab > 0, "data",
              "{} does not say which tokenizer it was encoded with; give --tokenizer", spec.name);
      source.documents = std::make_shared<StoreDocuments>(store, vocab);
      source.end_of_text = kNoEndOfText;  // documents hold their own
    }
    const int64_t vocab = source.documents->vocab_size();
    require(data.vocab_size == 0 || data.vocab_size == vocab, "data",
            "{} has a vocabulary of {} tokens, but the data before it has {}; encode all with one "
            "tokenizer",
            spec.name, vocab, data.vocab_size);
    data.vocab_size = vocab;
    data.end_of_text = source.end_of_text != kNoEndOfText ? source.end_of_text
                       : data.tokenizer                   ? data.tokenizer->end_of_text()
                                                          : -1;
    data.sources.push_back(std::move(source));
  }
  return data;
}

}  // namespace fwpkm
