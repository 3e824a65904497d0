#include "session/open.h"

#include "base/error.h"
#include "model/checkpoint.h"

namespace fwpkm {

const Tokenizer& OpenModel::text() const {
  require(tokenizer != nullptr, "tokenizer",
          "{} does not say which tokenizer it was trained with; give --tokenizer", folder.string());
  return *tokenizer;
}

OpenModel open_model(const std::filesystem::path& folder, Device device,
                     const std::string& tokenizer, std::span<const std::string> overrides) {
  OpenModel open;
  open.folder = folder;
  open.tokenizer_spec = tokenizer;
  open.tokenizer = load_tokenizer_of(folder, tokenizer);
  open.model = load_model(folder, device, false, overrides);
  if (open.tokenizer) {
    require(open.tokenizer->vocab_size() <= open.model->config().vocab_size, "tokenizer",
            "the tokenizer has {} tokens, but the model knows {}; it is another model's",
            open.tokenizer->vocab_size(), open.model->config().vocab_size);
  }
  return open;
}

std::map<std::string, std::string> about_model(const OpenModel& open) {
  return {{"model", std::filesystem::absolute(open.folder).lexically_normal().string()},
          {"tokenizer", open.tokenizer_spec}};
}

std::vector<std::vector<int32_t>> spellings_of(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> all = {tokenizer.encode(text, false)};
  std::vector<int32_t> inside = tokenizer.encode(text, true);
  if (inside != all[0]) {
    all.push_back(std::move(inside));
  }
  return all;
}

}  // namespace fwpkm
