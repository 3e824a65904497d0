// Continual learning: how losses change as a model adapts to domain after domain.
#include "report/kinds.h"

namespace fwpkm::report {

using nlohmann::json;

void draw_continual(Page* page, std::span<const Result> results) {
  page->add(Paragraph{
      .text = "A model reads one domain after the other and is tested on all of them after each, "
              "without writing. Retention: of what adapting to a domain had gained on it right "
              "after, the share that is left at the end; over all domains but the last."});
  Table table{.caption = "Retention",
              .columns = {{.name = "model"}, {.name = "retention", .format = ".3"}}};
  for (const Result& result : results) {
    const json& kept = result.data.at("retention");
    table.rows.push_back({result.label, kept.is_null() ? Cell() : Cell(kept.get<double>())});
  }
  page->add(std::move(table));
  for (const Result& result : results) {
    const auto domains = result.data.at("domains").get<std::vector<std::string>>();
    HeatMap map{.title = result.label + ": change of the loss on each domain",
                .row_label = "after adapting to",
                .column_label = "tested on",
                .value_label = "change of loss (nats)",
                .rows = domains,
                .columns = domains,
                .format = ".3",
                .diverging = true};
    Curves curves{.title = result.label + ": change of the loss over the stages",
                  .x = {.label = "domains read", .format = "0"},
                  .y = {.label = "change of loss (nats)"}};
    for (size_t d = 0; d < domains.size(); ++d) {
      Series series{.name = domains[d]};
      for (size_t stage = 0; stage <= domains.size(); ++stage) {
        series.x.push_back(static_cast<double>(stage));
        series.y.push_back(result.data.at("change").at(stage).at(d).get<double>());
      }
      curves.series.push_back(std::move(series));
      curves.marks.push_back({.x = static_cast<double>(d), .label = domains[d]});
    }
    for (size_t stage = 1; stage <= domains.size(); ++stage) {
      for (size_t d = 0; d < domains.size(); ++d) {
        map.values.push_back(result.data.at("change").at(stage).at(d).get<double>());
      }
    }
    page->add(std::move(map));
    page->add(std::move(curves));
    draw_about(page, result);
  }
}

}  // namespace fwpkm::report
