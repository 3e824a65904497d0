// Perplexity of answers to questions on long documents, by task.
#include <cmath>
#include <map>
#include <set>

#include "report/kinds.h"

namespace fwpkm::report {
namespace {

using nlohmann::json;

// The numbers of each task, and of all together.
std::map<std::string, json> tasks_of(const Result& result) {
  std::map<std::string, json> tasks;
  for (const json& task : result.data.at("tasks")) {
    tasks[task.at("task").get<std::string>()] = task;
  }
  tasks["all tasks"] = result.data.at("all");
  return tasks;
}

}  // namespace

void draw_longbench(Page* page, std::span<const Result> results) {
  page->add(Paragraph{
      .text = "Documents are read, then questions on them with the first reference answer. The "
              "perplexity is of the answers' tokens only; nothing is written while answering."});
  std::set<std::string> names;
  Table table{.columns = {{"model"},
                          {"task"},
                          {"documents", "0"},
                          {"questions", "0"},
                          {"answer tokens", "0"},
                          {"perplexity", ".3"},
                          {"nats per token", ".4"},
                          {"tokens read", "0"},
                          {"tokens left out", "0"}}};
  for (const Result& result : results) {
    for (const auto& [name, task] : tasks_of(result)) {
      names.insert(name);
      const auto count = [&task = task](const char* key) { return task.at(key).get<int64_t>(); };
      table.rows.push_back({result.label, name, count("documents"), count("questions"),
                            count("answer_tokens"), task.at("perplexity").get<double>(),
                            task.at("nll").get<double>(), count("context_tokens"),
                            count("cut_tokens")});
    }
  }
  Bars bars{.title = "Perplexity of answers", .group_label = "task", .y = {.label = "perplexity"}};
  for (const std::string& name : names) {
    bars.groups.push_back({name, ""});
  }
  for (const Result& result : results) {
    const auto tasks = tasks_of(result);
    BarSeries& series = bars.series.emplace_back(BarSeries{.name = result.label});
    for (const std::string& name : names) {
      const auto it = tasks.find(name);
      series.values.push_back(it == tasks.end() ? NAN : it->second.at("perplexity").get<double>());
    }
  }
  page->add(std::move(bars));
  page->add(std::move(table));
  for (const Result& result : results) {
    draw_about(page, result);
  }
}

}  // namespace fwpkm::report
