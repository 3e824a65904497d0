// What `--data` means: names of corpora turned into sources of documents.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/batch_sources.h"
#include "text/tokenizer.h"

namespace fwpkm {

struct DataSettings {
  // "builtin", "builtin:recall", a folder that `fwpkm data encode` wrote, or a NAME.bin/NAME.idx
  // pair of the authors' code; each may end in @WEIGHT, its share of the tokens.
  std::vector<std::string> data;
  std::string tokenizer;  // empty: the one that the data was encoded with
  uint64_t seed = 1;      // of the built-in corpora
  Split split = Split::kTrain;
};

struct Data {
  std::vector<WeightedSource> sources;
  // What the tokens mean; none for files of the authors' code without --tokenizer.
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t vocab_size = 0;
  int32_t end_of_text = -1;  // the token that ends documents
};

// Opens everything and refuses, by name, what does not fit together.
Data open_data(const DataSettings& settings);

}  // namespace fwpkm
