// Pages of needles and of long documents in a browser.
#include <gtest/gtest.h>

#include "browser.h"
#include "report/draw.h"
#include "temp_dir.h"

namespace fwpkm::report {
namespace {

using Json = nlohmann::json;

constexpr const char* kHostile = "<img src=x onerror=alert(1)>";

Json needles(double exact) {
  Json groups = Json::array();
  for (const int64_t readings : {1, 2}) {
    for (const Json& bin : {Json(nullptr), Json(3)}) {
      groups.push_back({{"length", 4096},
                        {"readings", readings},
                        {"depth_bin", bin},
                        {"samples", 8},
                        {"exact", exact},
                        {"digit", 0.5},
                        {"candidate", 0.75}});
    }
  }
  return {{"kind", "niah"},
          {"groups", groups},
          {"guess", {{"exact", 1e-6}, {"digit", 0.1}, {"candidate", 0.2}}},
          {"settings", {{"chunk", "haystack"}, {"readings", {1, 2}}}},
          {"data", {{"file", kHostile}}}};
}

Json answers(double perplexity) {
  const Json all = {{"documents", 2},  {"questions", 3},           {"answer_tokens", 9},
                    {"nll", 1.5},      {"perplexity", perplexity}, {"context_tokens", 1000},
                    {"cut_tokens", 77}};
  Json task = all;
  task["task"] = kHostile;
  return {{"kind", "longbench"},
          {"tasks", {task}},
          {"all", all},
          {"settings", {{"template", "{question}"}}}};
}

TEST(ReportReading, PagesHaveTheirPlots) {
  if (!Browser::wanted()) {
    GTEST_SKIP() << "FWPKM_BROWSER=off";
  }
  const TempDir dir;
  Browser& browser = Browser::shared();
  browser.set_size(1100, 800);
  browser.set_media("light");
  const auto texts = [&](const std::string& selector) {
    return browser
        .evaluate("[...document.querySelectorAll('" + selector + "')].map(n => n.textContent)")
        .get<std::vector<std::string>>();
  };
  Page page("Reading");
  const Result found[] = {{"plain", needles(0.125), {}}, {"memory", needles(0.625), {}}};
  const Result answered[] = {{"plain", answers(23.5), {}}, {"memory", answers(12.25), {}}};
  draw_results(&page, "niah", found);
  draw_results(&page, "longbench", answered);
  page.write(dir / "page.html");
  browser.open(dir / "page.html");
  // Three measures as bars, each of them by depth for two models; perplexities.
  EXPECT_EQ(texts("figure.plot .canvas > svg[role=img]").size(), 3u + 2 * 3 + 1);
  EXPECT_EQ(texts("figure.heatmap").size(), 6u);
  const std::string all = browser.evaluate("document.body.textContent");
  for (const char* text : {"0.125", "0.625", "23.500", "12.250", "30-40%", kHostile, "77"}) {
    EXPECT_NE(all.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('img').length"), 0);
  EXPECT_EQ(browser.complaints(), std::vector<std::string>());

  const Result broken[] = {{"plain", {{"kind", "niah"}}, "some/folder"}};
  expect_error([&] { draw_results(&page, "niah", broken); }, "some/folder", "niah");
}

}  // namespace
}  // namespace fwpkm::report
