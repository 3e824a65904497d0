// Models as programs open them: weights, tokenizer, and where they came from.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "text/tokenizer.h"

namespace fwpkm {

struct OpenModel {
  std::filesystem::path folder;
  std::string tokenizer_spec;  // as given to open_model
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null where nothing tells which one it is

  // The tokenizer, or an error where there is none.
  const Tokenizer& text() const;
};

// `folder` holds config.json and model.safetensors; find_model (train/run_folder.h) finds it in the
// --out of a training run. `tokenizer` as in load_tokenizer_of, `overrides` as in load_model.
OpenModel open_model(const std::filesystem::path& folder, Device device,
                     const std::string& tokenizer = "",
                     std::span<const std::string> overrides = {});

// For Session::save: where the session's model is. The commands find it again by this.
std::map<std::string, std::string> about_model(const OpenModel& open);

// The tokens of a text as it may stand at the start of a stream or inside of one, for
// Session::written_by.
std::vector<std::vector<int32_t>> spellings_of(std::string_view text, const Tokenizer& tokenizer);

}  // namespace fwpkm
