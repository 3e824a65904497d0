// Perplexity of streams: tables, curves within documents, use of slots, gates.
#include <fmt/format.h>

#include <map>

#include "report/kinds.h"

namespace fwpkm::report {
namespace {

using nlohmann::json;

constexpr size_t kDocuments = 10;  // that have curves

// One model of one result, as it is called where several stand side by side.
struct Read {
  std::string label;
  const json* model = nullptr;
};

std::vector<Read> all_reads(std::span<const Result> results) {
  std::vector<Read> reads;
  for (const Result& result : results) {
    const json& models = result.data.at("models");
    for (const json& model : models) {
      const auto name = model.at("name").get<std::string>();
      reads.push_back({models.size() == 1 ? result.label : result.label + ": " + name, &model});
    }
  }
  return reads;
}

std::string describe(const json& settings) {
  return fmt::format("memory resets: {}{}; mixers: {}", settings.at("reset").get<std::string>(),
                     settings.at("freeze").get<bool>() ? ", frozen" : "",
                     settings.at("reset_mixers").get<std::string>());
}

void draw_totals(Page* page, std::span<const Result> results) {
  Table table{.caption = "Perplexity over all tokens",
              .columns = {{.name = "model"},
                          {.name = "tokens", .format = "0"},
                          {.name = "loss (nats)", .format = ".4"},
                          {.name = "perplexity", .format = ".3"},
                          {.name = "how it read"}}};
  for (const Result& result : results) {
    for (const Read& read : all_reads({&result, 1})) {
      table.rows.push_back({read.label, result.data.at("tokens").get<int64_t>(),
                            read.model->at("loss").get<double>(),
                            read.model->at("ppl").get<double>(),
                            describe(result.data.at("settings"))});
    }
  }
  page->add(std::move(table));
}

void draw_documents(Page* page, const Result& result) {
  const json& models = result.data.at("models");
  Table table{.columns = {{.name = "document", .format = "0"}, {.name = "tokens", .format = "0"}}};
  for (const json& model : models) {
    table.columns.push_back({.name = model.at("name"), .format = ".3"});
  }
  const bool two = models.size() == 2;
  if (two) {
    table.columns.push_back({.name = "difference", .format = ".3"});
  }
  for (const json& document : result.data.at("documents")) {
    std::vector<Cell> row = {document.at("document").get<int64_t>(),
                             document.at("tokens").get<int64_t>()};
    for (const json& ppl : document.at("ppl")) {
      row.emplace_back(ppl.get<double>());
    }
    if (two) {
      row.emplace_back(document.at("ppl").at(0).get<double>() -
                       document.at("ppl").at(1).get<double>());
    }
    table.rows.push_back(std::move(row));
  }
  Details details{
      .summary = fmt::format("{}: perplexity of {} documents", result.label, table.rows.size())};
  details.blocks.emplace_back(std::move(table));
  page->add(std::move(details));
}

// Perplexity from a document's begin on; of two models the difference.
void draw_curves(Page* page, const Result& result) {
  const json& models = result.data.at("models");
  const bool two = models.size() == 2;
  std::map<int64_t, Series> documents;
  for (const json& point : result.data.at("curves")) {
    const auto number = point.at(0).get<int64_t>();
    if (!documents.contains(number) && documents.size() == kDocuments) {
      continue;
    }
    Series& series = documents[number];
    series.name = fmt::format("document {}", number);
    series.x.push_back(point.at(1).get<double>());
    series.y.push_back(point.at(2).get<double>() - (two ? point.at(3).get<double>() : 0));
  }
  if (documents.empty()) {
    return;
  }
  Curves curves{.x = {.label = "tokens of the document", .format = "0"}};
  curves.title =
      two ? fmt::format("{}: perplexity of {} minus that of {}, from the document's begin on",
                        result.label, models.at(0).at("name").get<std::string>(),
                        models.at(1).at("name").get<std::string>())
          : fmt::format("{}: perplexity from the document's begin on", result.label);
  curves.y = {.label = two ? "difference of perplexity" : "perplexity"};
  for (auto& [number, series] : documents) {
    curves.series.push_back(std::move(series));
  }
  page->add(std::move(curves));
}

void draw_slots(Page* page, std::span<const Read> reads) {
  const std::pair<const char*, const char*> kinds[] = {
      {"collision", "share of reads that met a slot which others read too"},
      {"coverage", "share of all slots that were read"},
      {"kld", "divergence of the use of slots from an even one (nats)"}};
  for (const auto& [key, title] : kinds) {
    Curves curves{.title = title,
                  .x = {.label = "tokens read", .format = "0"},
                  .y = {.label = key, .low = 0.0}};
    for (const Read& read : reads) {
      std::map<std::string, Series> layers;
      for (const json& window : read.model->at("windows")) {
        for (const auto& [layer, memory] : window.at("memory").items()) {
          if (memory.contains(key)) {
            Series& series = layers[layer];
            series.name = fmt::format("{}, layer {}", read.label, layer);
            series.x.push_back(window.at("end").get<double>());
            series.y.push_back(memory.at(key).get<double>());
          }
        }
      }
      for (auto& [layer, series] : layers) {
        curves.series.push_back(std::move(series));
      }
    }
    if (!curves.series.empty()) {
      page->add(std::move(curves));
    }
  }
}

void draw_gates(Page* page, std::span<const Read> reads) {
  Bars bars{.title = "How open the gates of memories are: shares of tokens by gate, in ten bins",
            .group_label = "layer",
            .y = {.label = "share of tokens", .format = ".1%", .low = 0.0, .high = 1.0},
            .stacked = true,
            .ordered = true};
  for (int bin = 0; bin < 10; ++bin) {
    bars.series.push_back({.name = fmt::format("{:.1f} to {:.1f}", 0.1 * bin, 0.1 * (bin + 1))});
  }
  for (const Read& read : reads) {
    for (const auto& [layer, gate] : read.model->at("gates").items()) {
      bars.groups.push_back({.name = layer, .cluster = read.label});
      for (size_t bin = 0; bin < bars.series.size(); ++bin) {
        bars.series[bin].values.push_back(gate.at("bins").at(bin).get<double>());
      }
    }
  }
  if (!bars.groups.empty()) {
    page->add(std::move(bars));
  }
}

}  // namespace

void draw_ppl(Page* page, std::span<const Result> results) {
  draw_totals(page, results);
  for (const Result& result : results) {
    draw_curves(page, result);
    draw_documents(page, result);
  }
  const std::vector<Read> reads = all_reads(results);
  draw_gates(page, reads);
  draw_slots(page, reads);
  for (const Result& result : results) {
    draw_about(page, result);
  }
}

}  // namespace fwpkm::report
