// How many facts of the built-in corpus models tell again.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/kinds.h"

namespace fwpkm::report {
namespace {

using nlohmann::json;

double number_or_nan(const json& value) {
  return value.is_null() ? NAN : value.get<double>();
}

Cell cell(const json& value) {
  return value.is_null() ? Cell() : Cell(value.get<double>());
}

}  // namespace

void draw_recall(Page* page, std::span<const Result> results) {
  page->add(Paragraph{
      .text = "Facts of two key words and a value, and later questions on them. Beyond the window: "
              "attention can no longer see the fact, and the memory has written it."});
  Table table{.columns = {{.name = "model"},
                          {.name = "memory"},
                          {.name = "recall beyond the window", .format = ".3"},
                          {.name = "within the window", .format = ".3"},
                          {.name = "guessing", .format = ".3"}}};
  Bars distances{.title = "Recall by the distance of the fact",
                 .group_label = "tokens back to the fact",
                 .y = {.label = "recall", .low = 0.0, .high = 1.0}};
  Bars readings{.title = "All facts read first, then all questions: recall by readings",
                .group_label = "readings",
                .y = {.label = "recall", .low = 0.0, .high = 1.0}};
  for (const Result& result : results) {
    const json& data = result.data;
    table.rows.push_back({result.label,
                          data.at("memory").empty()       ? "none"
                          : data.at("freeze").get<bool>() ? "frozen"
                                                          : "live",
                          cell(data.at("recall_beyond_window")),
                          cell(data.at("recall_within_window")), cell(data.at("chance"))});
    distances.series.push_back({.name = result.label});
    readings.series.push_back({.name = result.label});
  }
  const auto fill = [&](Bars* bars, const char* list, auto&& name_of) {
    std::vector<std::string> names;
    for (const Result& result : results) {
      for (const json& row : result.data.at(list)) {
        if (const std::string name = name_of(row);
            std::find(names.begin(), names.end(), name) == names.end()) {
          names.push_back(name);
        }
      }
    }
    for (const std::string& name : names) {
      bars->groups.push_back({.name = name});
      for (size_t r = 0; r < results.size(); ++r) {
        double value = NAN;
        for (const json& row : results[r].data.at(list)) {
          value = name_of(row) == name ? number_or_nan(row.at("recall")) : value;
        }
        bars->series[r].values.push_back(value);
      }
    }
    if (!names.empty()) {
      page->add(*bars);
    }
  };
  page->add(std::move(table));
  fill(&distances, "by_distance", [](const json& row) {
    return fmt::format("{} to {}", row.at("from").get<int64_t>(), row.at("to").get<int64_t>());
  });
  fill(&readings, "by_readings",
       [](const json& row) { return std::to_string(row.at("readings").get<int64_t>()); });
}

}  // namespace fwpkm::report
