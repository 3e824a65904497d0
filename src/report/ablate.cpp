// Models that were trained and evaluated alike.
#include "report/kinds.h"

namespace fwpkm::report {

void draw_ablate(Page* page, std::span<const Result> results) {
  const std::pair<const char*, Column> columns[] = {
      {"active_params", {.name = "active parameters", .format = "0"}},
      {"valid_loss", {.name = "validation loss", .format = ".4"}},
      {"ppl", {.name = "perplexity", .format = ".3"}},
      {"ppl_frozen", {.name = "the same, frozen", .format = ".3"}},
      {"gate", {.name = "mean gate", .format = ".3"}},
      {"collision", {.name = "collision", .format = ".3"}},
      {"coverage", {.name = "coverage", .format = ".3"}},
      {"kld", {.name = "KLD", .format = ".3"}},
      {"needles_1", {.name = "needles, 1 reading", .format = ".3"}},
      {"needles_4", {.name = "needles, 4 readings", .format = ".3"}},
      {"answer_ppl", {.name = "perplexity of answers", .format = ".3"}},
      {"retention", {.name = "retention", .format = ".3"}}};
  for (const Result& result : results) {
    Table table{.caption = result.label, .columns = {{.name = "model"}}};
    for (const auto& [key, column] : columns) {
      table.columns.push_back(column);
    }
    for (const nlohmann::json& variant : result.data.at("variants")) {
      std::vector<Cell> row = {variant.at("name").get<std::string>()};
      for (const auto& [key, column] : columns) {
        const nlohmann::json value = variant.value(key, nlohmann::json());
        row.push_back(value.is_null() ? Cell() : Cell(value.get<double>()));
      }
      table.rows.push_back(std::move(row));
    }
    page->add(std::move(table));
  }
}

}  // namespace fwpkm::report
