#include "report/training.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json_fields.h"
#include "base/timer.h"
#include "train/metrics.h"
#include "train/run_folder.h"

namespace fwpkm::report {
namespace {

using Json = nlohmann::json;

// A number of the metrics that gets a plot.
struct Figure {
  const char* key;
  const char* title;
  const char* label;
  bool log = false;
};
constexpr Figure kFigures[] = {
    {"loss", "Loss", "nats per token"},
    {"valid_loss", "Validation loss", "nats per token"},
    {"lr", "Learning rate", "learning rate"},
    {"grad_norm", "Norm of the gradient", "norm, before clipping", true},
    {"tokens_per_second", "Speed", "tokens per second"},
};
// The same for the numbers of each layer's memory.
constexpr Figure kMemoryFigures[] = {
    {"memory_loss", "Memory loss", "mean squared error of what was written"},
    {"gate", "Gates", "mean gate"},
    {"addressing_loss", "Addressing loss", "nats"},
    {"coverage", "Coverage", "share of all slots that a step read"},
    {"collision", "Collisions", "share of reads of slots that were read more than once"},
    {"kld", "Uneven use of slots", "divergence from even use, nats"},
};

struct Run {
  std::string label;
  std::map<std::string, Series> numbers;                          // by key
  std::map<std::string, std::map<std::string, Series>> memories;  // by key, then layer
  std::map<std::string, std::vector<double>> gates;               // by layer, of the last step
  int64_t last = 0;                                               // step
  std::map<std::string, Json> settings;                           // dotted keys
  Json state;                                                     // run.json, or null
};

void add_point(Series* series, int64_t step, const Json& value) {
  const auto x = static_cast<double>(step);
  // JSON has no NaN: what is not a number was not finite.
  const double y = value.is_number() ? value.get<double>() : std::nan("");
  // A resumed run may have lines twice if it was killed at a bad moment; the later ones count.
  while (!series->x.empty() && series->x.back() >= x) {
    series->x.pop_back();
    series->y.pop_back();
  }
  series->x.push_back(x);
  series->y.push_back(y);
}

void flatten(const Json& json, const std::string& prefix, std::map<std::string, Json>* out) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      flatten(value, prefix + key + ".", out);
    } else {
      (*out)[prefix + key] = value;
    }
  }
}

Run read_run(const TrainingRun& source) {
  Run run;
  run.label = source.label;
  read_metrics(source.folder, [&](int64_t step, const Json& line) {
    run.last = step;
    for (const Figure& figure : kFigures) {
      if (line.contains(figure.key)) {
        add_point(&run.numbers[figure.key], step, line[figure.key]);
      }
    }
    const Json memory = line.value("memory", Json::object());
    for (const auto& [layer, values] : memory.items()) {
      for (const Figure& figure : kMemoryFigures) {
        if (values.contains(figure.key)) {
          add_point(&run.memories[figure.key][layer], step, values[figure.key]);
        }
      }
      if (values.contains("gate_histogram")) {
        run.gates[layer] = values["gate_histogram"].get<std::vector<double>>();
      }
    }
  });
  if (std::filesystem::exists(source.folder / "checkpoints")) {
    const std::filesystem::path newest = find_model(source.folder);
    flatten(read_json_file(newest / "config.json"), "", &run.settings);
    if (std::filesystem::exists(newest / "run.json")) {
      run.state = read_json_file(newest / "run.json");
    }
  }
  return run;
}

void draw_summary(Page* page, const std::vector<Run>& runs) {
  Table table{.caption = "Runs",
              .columns = {{"run"},
                          {"steps", "0"},
                          {"last loss", ".4"},
                          {"best validation loss", ".4"},
                          {"at step", "0"},
                          {"its perplexity", ".2"},
                          {"tokens/s, median", "0"},
                          {"version"}}};
  for (const Run& run : runs) {
    Cell loss, best, step, perplexity, speed;
    if (const auto it = run.numbers.find("loss"); it != run.numbers.end()) {
      loss = it->second.y.back();
    }
    if (const auto it = run.numbers.find("valid_loss"); it != run.numbers.end()) {
      const std::vector<double>& y = it->second.y;
      const auto lowest = std::min_element(y.begin(), y.end(), [](double a, double b) {
        return a < b || std::isnan(b) > std::isnan(a);
      });
      best = *lowest;
      step = it->second.x[static_cast<size_t>(lowest - y.begin())];
      perplexity = std::exp(*lowest);
    }
    if (const auto it = run.numbers.find("tokens_per_second"); it != run.numbers.end()) {
      speed = median(it->second.y);
    }
    const Cell version =
        run.state.contains("version") ? Cell(run.state["version"].get<std::string>()) : Cell();
    table.rows.push_back({run.label, run.last, loss, best, step, perplexity, speed, version});
  }
  page->add(std::move(table));
}

void draw_curves(Page* page, const std::vector<Run>& runs) {
  for (const Figure& figure : kFigures) {
    Curves curves{.title = figure.title,
                  .x = {.label = "step"},
                  .y = {.label = figure.label, .log = figure.log}};
    for (const Run& run : runs) {
      if (const auto it = run.numbers.find(figure.key); it != run.numbers.end()) {
        curves.series.push_back({run.label, it->second.x, it->second.y});
      }
    }
    if (!curves.series.empty()) {
      page->add(std::move(curves));
    }
  }
}

void draw_memories(Page* page, const std::vector<Run>& runs) {
  if (std::all_of(runs.begin(), runs.end(), [](const Run& run) { return run.memories.empty(); })) {
    return;
  }
  page->add(Section{.title = "Memories", .level = 2});
  const auto name = [&](const Run& run, const std::string& layer) {
    return runs.size() == 1 ? "layer " + layer : run.label + ", layer " + layer;
  };
  for (const Figure& figure : kMemoryFigures) {
    Curves curves{.title = figure.title, .x = {.label = "step"}, .y = {.label = figure.label}};
    for (const Run& run : runs) {
      if (const auto it = run.memories.find(figure.key); it != run.memories.end()) {
        for (const auto& [layer, series] : it->second) {
          curves.series.push_back({name(run, layer), series.x, series.y});
        }
      }
    }
    if (!curves.series.empty()) {
      page->add(std::move(curves));
    }
  }
  Bars bars{.title = "Gates of the last step",
            .group_label = "layer",
            .y = {.label = "share of tokens", .format = ".1%"},
            .stacked = true,
            .ordered = true};
  size_t bins = 0;
  for (const Run& run : runs) {
    for (const auto& [layer, gates] : run.gates) {
      bins = std::max(bins, gates.size());
    }
  }
  for (size_t bin = 0; bin < bins; ++bin) {
    const double width = 1.0 / static_cast<double>(bins);
    bars.series.push_back({fmt::format("{:.2g} to {:.2g}", static_cast<double>(bin) * width,
                                       static_cast<double>(bin + 1) * width)});
  }
  for (const Run& run : runs) {
    for (const auto& [layer, gates] : run.gates) {
      bars.groups.push_back({layer, runs.size() == 1 ? "" : run.label});
      for (size_t bin = 0; bin < bins; ++bin) {
        bars.series[bin].values.push_back(bin < gates.size() ? gates[bin] : std::nan(""));
      }
    }
  }
  if (!bars.groups.empty()) {
    page->add(std::move(bars));
  }
}

Cell setting_cell(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  return value.is_number() ? Cell(value.get<double>()) : Cell(value.dump());
}

void draw_settings(Page* page, const std::vector<Run>& runs) {
  std::set<std::string> keys;
  bool missing = false;
  for (const Run& run : runs) {
    missing = missing || run.settings.empty();
    for (const auto& [key, value] : run.settings) {
      keys.insert(key);
    }
  }
  page->add(Section{.title = "Settings", .level = 2});
  if (missing) {
    page->add(Paragraph{.text = "Settings are in checkpoints; runs that have none yet show none.",
                        .note = true});
  }
  Table different{.caption = "Where the runs differ", .columns = {{"key"}}};
  Table all{.caption = "All settings", .columns = {{"key"}}};
  for (const Run& run : runs) {
    for (Table* table : {&different, &all}) {
      table->columns.push_back({.name = run.label, .sortable = false});
    }
  }
  for (const std::string& key : keys) {
    std::vector<Cell> row = {key};
    std::set<Json> values;
    for (const Run& run : runs) {
      const auto it = run.settings.find(key);
      const Json value = it == run.settings.end() ? Json() : it->second;
      values.insert(value);
      row.push_back(value.is_null() ? Cell() : setting_cell(value));
    }
    if (values.size() > 1) {
      different.rows.push_back(row);
    }
    all.rows.push_back(std::move(row));
  }
  if (!different.rows.empty()) {
    page->add(std::move(different));
  } else if (runs.size() > 1) {
    page->add(Paragraph{.text = "The settings of all runs are the same."});
  }
  Table data{.caption = "Data", .columns = {{"run"}, {"source"}, {"share", ".3"}}};
  for (const Run& run : runs) {
    const Json state = run.state.is_object() ? run.state : Json::object();
    const Json sources = state.value("data", Json::object()).value("sources", Json::array());
    for (const Json& source : sources) {
      data.rows.push_back({run.label, source.value("data", ""), source.value("weight", 1.0)});
    }
  }
  if (!data.rows.empty()) {
    page->add(std::move(data));
  }
  if (!all.rows.empty()) {
    page->add(Details{.summary = "All settings", .blocks = {std::move(all)}});
  }
}

}  // namespace

void draw_training(Page* page, std::span<const TrainingRun> sources) {
  std::vector<Run> runs;
  for (const TrainingRun& source : sources) {
    runs.push_back(read_run(source));
  }
  page->add(Section{.title = "Training"});
  draw_summary(page, runs);
  draw_curves(page, runs);
  draw_memories(page, runs);
  draw_settings(page, runs);
}

}  // namespace fwpkm::report
