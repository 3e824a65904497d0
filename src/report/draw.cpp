#include "report/draw.h"

#include <algorithm>

#include "base/error.h"
#include "report/kinds.h"

namespace fwpkm::report {
namespace {

struct Drawing {
  std::string_view kind;
  std::string_view title;
  Draw draw;
};

// One line for each kind.
constexpr Drawing kDrawings[] = {
    {"ablate", "Models side by side", draw_ablate},
    {"recall", "Recall of facts", draw_recall},
    {"ppl", "Perplexity", draw_ppl},
    {"continual", "Continual learning", draw_continual},
    {"niah", "Needles in haystacks", draw_niah},
    {"longbench", "Questions on long documents", draw_longbench},
};

// Single values as settings, and the whole as a tree.
void draw_unknown(Page* page, const std::string& kind, std::span<const Result> results) {
  page->add(Paragraph{
      .text = fmt::format("This version has no drawing for results of kind '{}': they are shown as "
                          "they are.",
                          kind),
      .note = true});
  for (const Result& result : results) {
    Settings values{.caption = result.label};
    for (const auto& [key, value] : result.data.items()) {
      if (value.is_string()) {
        values.entries.emplace_back(key, value.get<std::string>());
      } else if (value.is_number_integer()) {
        values.entries.emplace_back(key, value.get<int64_t>());
      } else if (value.is_number()) {
        values.entries.emplace_back(key, value.get<double>());
      } else if (value.is_boolean()) {
        values.entries.emplace_back(key, value.get<bool>());
      }
    }
    page->add(std::move(values));
    page->add(Tree{.title = "result.json", .value = result.data});
  }
}

}  // namespace

size_t drawing_rank(std::string_view kind) {
  const auto* found = std::find_if(std::begin(kDrawings), std::end(kDrawings),
                                   [&](const Drawing& drawing) { return drawing.kind == kind; });
  return static_cast<size_t>(found - std::begin(kDrawings));
}

void draw_results(Page* page, const std::string& kind, std::span<const Result> results) {
  for (const Drawing& drawing : kDrawings) {
    if (drawing.kind != kind) {
      continue;
    }
    page->add(Section{.title = std::string(drawing.title)});
    try {
      drawing.draw(page, results);
    } catch (const nlohmann::json::exception& error) {
      std::string folders;
      for (const Result& result : results) {
        folders += (folders.empty() ? "" : ", ") + result.folder.string();
      }
      fail("report", "a result.json of {} is not what kind '{}' needs: {}", folders, kind,
           error.what());
    }
    return;
  }
  page->add(Section{.title = kind});
  draw_unknown(page, kind, results);
}

}  // namespace fwpkm::report
