#include "cli/eval_reading.h"

#include <charconv>

#include "base/error.h"
#include "cli/open.h"
#include "eval/folder.h"
#include "model/checkpoint.h"
#include "report/draw.h"

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

void write_page(const std::string& folder, const nlohmann::json& result, const Common& common) {
  if (folder.empty()) {
    return;
  }
  const auto name = result.at("model").at("name").get<std::string>();
  report::Page page(name, result.at("kind").get<std::string>());
  const report::Result drawn[] = {{name, result, folder}};
  report::draw_results(&page, result.at("kind").get<std::string>(), drawn);
  const auto path = std::filesystem::path(folder) / "report.html";
  page.write(path);
  say(common, fmt::format("\n{}\n", path.string()));
}

void add_reading_options(CLI::App* app, ReadingArguments* a, const std::string& whole, bool* freeze,
                         bool* start_over) {
  a->chunk = whole;
  add_model_options(app, ModelOption::kRequired, &a->model, &a->tokenizer);
  app->add_option("--chunk", a->chunk,
                  fmt::format("Tokens between updates of memories; {}: one update, after all of it "
                              "was read",
                              whole))
      ->type_name(whole + "|N")
      ->capture_default_str();
  app->add_flag("--freeze", *freeze, "Memories are only read, never written");
  app->add_option("--out", a->out, "Folder for the result; an evaluation that stopped goes on")
      ->type_name("DIR");
  app->add_flag("--start-over", *start_over, "Empty the folder first");
}

}  // namespace fwpkm::cli
