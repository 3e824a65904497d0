// Needles in haystacks: what was found, by length, readings and depth.
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "report/kinds.h"

namespace fwpkm::report {
namespace {

using nlohmann::json;

struct Measure {
  const char* key;
  const char* title;
};
constexpr Measure kMeasures[] = {{"exact", "Whole value said"},
                                 {"candidate", "Right value likelier than the other needles'"},
                                 {"digit", "Characters in their place"}};
constexpr int kBins = 10;

using Place = std::pair<int64_t, int64_t>;  // length, readings

std::string place_name(const Place& place) {
  return fmt::format("{} x {}", place.first, place.second);
}

// A measure of all groups of a result, by place and depth_bin; -1 is all depths.
std::map<std::pair<Place, int>, double> values_of(const json& data, const char* key) {
  std::map<std::pair<Place, int>, double> values;
  for (const json& group : data.at("groups")) {
    const json& bin = group.at("depth_bin");
    const Place place = {group.at("length").get<int64_t>(), group.at("readings").get<int64_t>()};
    values[{place, bin.is_null() ? -1 : bin.get<int>()}] = group.at(key).get<double>();
  }
  return values;
}

}  // namespace

void draw_niah(Page* page, std::span<const Result> results) {
  page->add(Paragraph{
      .text = "Long texts with sentences in them that tell a number for a key; after the text was "
              "read so many times, one of the numbers is asked for. Nothing is written while "
              "answering."});
  Table table{.caption = "All depths",
              .columns = {{"model"},
                          {"length", "0"},
                          {"readings", "0"},
                          {"samples", "0"},
                          {"exact", ".3"},
                          {"digit", ".3"},
                          {"candidate", ".3"}}};
  std::set<Place> places;
  for (const Result& result : results) {
    for (const json& group : result.data.at("groups")) {
      if (!group.at("depth_bin").is_null()) {
        continue;
      }
      const auto length = group.at("length").get<int64_t>();
      const auto readings = group.at("readings").get<int64_t>();
      places.emplace(length, readings);
      table.rows.push_back({result.label, length, readings, group.at("samples").get<int64_t>(),
                            group.at("exact").get<double>(), group.at("digit").get<double>(),
                            group.at("candidate").get<double>()});
    }
    const json& guess = result.data.at("guess");
    table.rows.push_back({result.label + ", if it guessed", nullptr, nullptr, nullptr,
                          guess.at("exact").get<double>(), guess.at("digit").get<double>(),
                          guess.at("candidate").get<double>()});
  }
  page->add(std::move(table));

  for (const Measure& measure : kMeasures) {
    Bars bars{.title = measure.title,
              .group_label = "readings of a length",
              .y = {.label = "share", .format = ".3", .low = 0.0, .high = 1.0}};
    for (const Place& place : places) {
      bars.groups.push_back({fmt::format("{}", place.second), fmt::format("{}", place.first)});
    }
    for (const Result& result : results) {
      const auto values = values_of(result.data, measure.key);
      BarSeries& series = bars.series.emplace_back(BarSeries{.name = result.label});
      for (const Place& place : places) {
        const auto it = values.find({place, -1});
        series.values.push_back(it == values.end() ? NAN : it->second);
      }
    }
    page->add(std::move(bars));
  }

  for (const Result& result : results) {
    for (const Measure& measure : kMeasures) {
      HeatMap map{.title = fmt::format("{}, by depth: {}", measure.title, result.label),
                  .row_label = "length x readings",
                  .column_label = "depth of the needle",
                  .value_label = measure.key,
                  .format = ".3",
                  .low = 0.0,
                  .high = 1.0};
      for (int bin = 0; bin < kBins; ++bin) {
        map.columns.push_back(fmt::format("{}-{}%", bin * 100 / kBins, (bin + 1) * 100 / kBins));
      }
      const auto values = values_of(result.data, measure.key);
      for (const Place& place : places) {
        if (!values.contains({place, -1})) {
          continue;
        }
        map.rows.push_back(place_name(place));
        for (int bin = 0; bin < kBins; ++bin) {
          const auto it = values.find({place, bin});
          map.values.push_back(it == values.end() ? NAN : it->second);
        }
      }
      page->add(std::move(map));
    }
    draw_about(page, result);
  }
}

}  // namespace fwpkm::report
