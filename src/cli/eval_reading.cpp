#include "cli/eval_reading.h"

#include <charconv>

#include "base/error.h"
#include "cli/open.h"
#include "eval/folder.h"
#include "model/checkpoint.h"

namespace fwpkm::cli {

Evaluated open_evaluated(const ReadingArguments& a, const Common& common) {
  const OpenModel open = open_model(a.model, a.tokenizer, common);
  Evaluated evaluated;
  evaluated.tokenizer = open.tokenizer;
  evaluated.about = about_evaluated(*open.model, open.folder);
  evaluated.with_chunk = [folder = open.folder, config = open.model->config(),
                          common](int64_t chunk) -> std::shared_ptr<const Model> {
    std::vector<std::string> overrides = common.overrides;
    for (const std::string& more : chunk_overrides(config, chunk)) {
      overrides.push_back(more);
    }
    return load_model(folder, common.parsed_device(), false, overrides);
  };
  return evaluated;
}

int64_t parse_chunk(const std::string& text, const std::string& whole) {
  if (text == whole) {
    return 0;
  }
  int64_t chunk = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), chunk);
  require(error == std::errc() && end == text.data() + text.size() && chunk > 0, "eval",
          "--chunk '{}' is neither {} nor a number of tokens", text, whole);
  return chunk;
}

void add_reading_options(CLI::App* app, ReadingArguments* a, const std::string& whole,
                         bool* freeze) {
  a->chunk = whole;
  add_eval_options(app, a);
  app->add_option("--chunk", a->chunk,
                  fmt::format("Tokens between updates of memories; {}: one update, after all of it "
                              "was read",
                              whole))
      ->type_name(whole + "|N")
      ->capture_default_str();
  app->add_flag("--freeze", *freeze, "Memories are only read, never written");
}

}  // namespace fwpkm::cli
