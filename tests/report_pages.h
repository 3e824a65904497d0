// Pages for the tests of reports.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "report/page.h"

namespace fwpkm::report {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline Curves some_curves() {
  Curves curves{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats"}};
  curves.series.push_back({"plain", {0, 10, 20, 30}, {4, 3, 2, 1.234567890123}});
  curves.series.push_back({"memory", {0, 10, 20, 30, 40}, {4, 2, kNan, 1, 0}});
  curves.marks = {{5, "document 2"}, {30, "document 3"}};
  return curves;
}

inline Bars some_bars() {
  Bars bars{.title = "Gates", .group_label = "layer", .y = {.label = "share", .format = ".0%"}};
  bars.groups = {{"2", "plain"}, {"6", "plain"}, {"2", "memory"}, {"6", "memory"}};
  bars.series = {{"0 to 0.5", {0.25, 0.5, 0.75, 1}}, {"0.5 to 1", {0.75, 0.5, 0.25, 0}}};
  bars.stacked = bars.ordered = true;
  return bars;
}

inline HeatMap some_heat_map() {
  HeatMap map{.title = "Change of loss",
              .row_label = "after",
              .column_label = "tested on",
              .value_label = "nats",
              .rows = {"books", "wiki"},
              .columns = {"books", "wiki", "code"},
              .values = {-0.5, 0.125, 0, 0.25, -0.25, kNan},
              .format = ".2",
              .diverging = true};
  return map;
}

// A text that wrote into slots, and an answer that read them.
inline Tokens source_text() {
  Tokens text{.title = "The text",
              .name = "text",
              .memory = "m",
              .first = 100,
              .strength_label = "gate",
              .layers = {"layer 1", "layer 3"}};
  const char* words[] = {"The", " secret", " number", " of", " Zürich", " is", " 417",
                         ".",   "\n",      " ",       "And", " so",     " on"};
  for (size_t i = 0; i < std::size(words); ++i) {
    const double share = static_cast<double>(i) / 12;
    text.tokens.push_back(
        {.text = words[i], .id = static_cast<int64_t>(i), .strength = {share, 1 - share}});
  }
  text.updates = {{4, 1}, {8, 2}, {13, 3}};
  return text;
}

inline Tokens answer_text() {
  Tokens text{.title = "The answer", .name = "answer", .memory = "m"};
  text.tokens.push_back(
      {.text = "Zürich", .id = 4, .needs = 6, .reads = {{"1:17", 0.25}, {"1:4711", 0.75}}});
  text.tokens.push_back({.text = " 417", .id = 6, .mark = "HIT", .note = "right"});
  text.slots.push_back({.key = "1:4711",
                        .count = 9,
                        .writes = {{.query = " is",
                                    .target = " 417",
                                    .target_id = 6,
                                    .position = 105,
                                    .strength = 0.5,
                                    .before = " of Zürich",
                                    .after = " 417.",
                                    .text = "text"},
                                   {.query = "nowhere",
                                    .target = "x",
                                    .target_id = 99,
                                    .position = 7,
                                    .strength = 0.1,
                                    .text = "elsewhere"}}});
  text.slots.push_back({.key = "1:17"});
  return text;
}

// Every kind of block.
inline Page full_page() {
  Page page("A report", "of what the tests know");
  page.add(Section{.title = "Numbers"});
  page.add(Paragraph{
      .text = "A paragraph that says what the numbers below are. They were made up for a test, and "
              "they are as round as they can be."});
  page.add(Paragraph{.text = "Something to know about them.", .note = true});
  page.add(Settings{
      .caption = "Settings",
      .entries = {{"fwpkm.topk", 8}, {"train.max_lr", 5e-5}, {"name", "tiny"}, {"carry", true}}});
  page.add(Table{
      .caption = "Perplexity",
      .columns = {{"model"}, {"ppl", ".2"}, {"tokens", "0"}, {"remark", "", false}},
      .rows = {{"b", 12.3456, 1234567, "x"}, {"a", 9.5, 12, nullptr}, {"c", kNan, 300, "y"}}});
  page.add(Section{.title = "Plots"});
  page.add(some_curves());
  page.add(some_bars());
  page.add(some_heat_map());
  page.add(Section{.title = "Text"});
  page.add(source_text());
  page.add(answer_text());
  page.add(Section{.title = "More", .level = 2});
  page.add(Tree{.title = "result", .value = {{"kind", "unknown"}, {"list", {1, 2, 3}}}});
  page.add(Details{.summary = "Folded", .blocks = {Paragraph{.text = "inside"}, some_curves()}});
  return page;
}

}  // namespace fwpkm::report
