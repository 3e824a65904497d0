// Blocks of report pages as JSON, and what finds things to draw. How pages look: report_page_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "process.h"
#include "report/gather.h"
#include "report_pages.h"
#include "temp_dir.h"

namespace fwpkm::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST(ReportBlocks, CellsTellTextsFromNumbers) {
  EXPECT_EQ(Cell().json(), Json(nullptr));
  EXPECT_EQ(Cell("NaN").json(), Json("NaN"));
  EXPECT_EQ(Cell(true).json(), Json("yes"));
  EXPECT_EQ(Cell(size_t{7}).json(), Json({{"n", 7}}));
  EXPECT_EQ(Cell(0.5f).json(), Json({{"n", 0.5}}));
  EXPECT_EQ(Cell(kNan).json(), Json({{"n", "NaN"}}));
  EXPECT_EQ(Cell(-INFINITY).json(), Json({{"n", "-inf"}}));
  EXPECT_EQ(Cell(std::optional<double>()).json(), Json(nullptr));
  EXPECT_EQ(Cell(std::optional<double>(2)).json(), Json({{"n", 2.0}}));
}

TEST(ReportBlocks, RefuseWhatDoesNotFit) {
  for (const char* good : {"", "0", ".3", ".1%"}) {
    EXPECT_NO_THROW(check_format(good));
  }
  for (const char* bad : {".", "3", ".x", ".12", ".1%%", "%"}) {
    expect_error([&] { check_format(bad); }, std::string("'") + bad + "'");
  }
  expect_error(
      [] {
        to_json(Table{.caption = "t", .columns = {{"a"}, {"b"}}, .rows = {{1}}});
      },
      "row 0 of table 't' has 1 cells", "2 columns");
  expect_error(
      [] {
        to_json(Curves{.title = "c", .series = {{"s", {1, 2}, {1}}}});
      },
      "2 x and 1 y");
  expect_error(
      [] {
        to_json(Curves{.title = "c", .series = {{"s", {2, 1}, {1, 1}}}});
      },
      "x must ascend", "x[1] is 1");
  expect_error([] { to_json(HeatMap{.title = "h", .rows = {"r"}, .columns = {"c"}}); },
               "0 values for 1 rows of 1 columns");
  Bars bars = some_bars();
  bars.series[0].values[1] = -1;
  expect_error([&] { to_json(bars); }, "negative");
  bars.series[0].values.pop_back();
  expect_error([&] { to_json(bars); }, "3 values for 4 groups");
  Tokens text = source_text();
  text.tokens[3].strength.pop_back();
  expect_error([&] { to_json(text); }, "token 3", "1 strengths for 2 layers");
  text = source_text();
  text.updates = {{14, 1}};
  expect_error([&] { to_json(text); }, "before token 14", "there are 13");
  expect_error([] { to_json(Section{.title = "s", .level = 3}); }, "level 3");
}

TEST(ReportBlocks, ThinningKeepsExtremesGapsAndEnds) {
  std::vector<double> y(100'000);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = std::sin(static_cast<double>(i));
  }
  y[12'345] = 50;
  y[54'321] = -50;
  y[77'777] = kNan;
  const std::vector<size_t> kept = thin(y, kCurvePoints);
  EXPECT_LE(kept.size(), kCurvePoints);
  EXPECT_GE(kept.size(), kCurvePoints / 2);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), std::less_equal<>()));
  for (const size_t must :
       {size_t{0}, size_t{12'345}, size_t{54'321}, size_t{77'777}, y.size() - 1}) {
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), must)) << must;
  }
  EXPECT_EQ(thin({1, 2, 3}, 3), (std::vector<size_t>{0, 1, 2}));
  // The highest value of every stretch of a series that begins with a gap.
  std::vector<double> late(1000, kNan);
  late[999] = 1;
  late[998] = 3;
  const std::vector<size_t> ends = thin(late, 10);
  EXPECT_TRUE(std::binary_search(ends.begin(), ends.end(), size_t{998}));
}

TEST(ReportBlocks, NumbersOfTokensAreShort) {
  Tokens text{.layers = {"a"}};
  text.tokens.push_back({.text = "x", .strength = {0.1f}, .reads = {{"s", 1.0 / 3}}});
  text.tokens.push_back({.text = "y", .strength = {123456.0}, .reads = {{"t", 1e-9}, {"s", 0}}});
  const Json json = to_json(text);
  EXPECT_EQ(json.at("keys"), Json({"s", "t"}));
  EXPECT_EQ(json.at("tokens")[0].at("s").dump(), "[0.1]");
  EXPECT_EQ(json.at("tokens")[0].at("r").dump(), "[0,0.3333]");
  EXPECT_EQ(json.at("tokens")[1].at("s")[0].get<double>(), 123500);
  EXPECT_EQ(json.at("tokens")[1].at("r").dump(), "[1,1e-09,0,0.0]");
}

TEST(ReportHtml, HoldsNoTextThatCouldEndItsScript) {
  Page page("</title><b>&amp;", "\xff");
  page.add(Paragraph{.text = "</script><!--\u2028\u2029 \xc3"});
  const std::string html = page.html();
  EXPECT_NE(html.find("<title>&lt;/title&gt;&lt;b&gt;&amp;amp;</title>"), std::string::npos);
  EXPECT_NE(html.find("\\u003c/script>\\u003c!--\\u2028\\u2029 \ufffd"), std::string::npos);
  EXPECT_EQ(html.find("<!--"), std::string::npos);
  // Two scripts, the data and the code.
  size_t ends = 0;
  for (size_t at = 0; (at = html.find("</script", at)) != std::string::npos; ++at) {
    ++ends;
  }
  EXPECT_EQ(ends, 2u);
}

// Folders of two runs and three results, made by hand.
class ReportCommand : public testing::Test {
 protected:
  void SetUp() override {
    put("runs/a/metrics.jsonl",
        R"({"step":1,"loss":4.0,"lr":0.1,"grad_norm":2.0,"tokens_per_second":100,)"
        R"("memory":{"1":{"gate":0.5,"gate_histogram":[0.25,0.75],"memory_loss":1.5}}})"
        "\n"
        R"({"step":2,"loss":3.0,"lr":0.2,"grad_norm":1.0,"tokens_per_second":300,"valid_loss":3.5,)"
        R"("memory":{"1":{"gate":0.75,"gate_histogram":[0.5,0.5],"memory_loss":0.5}}})"
        "\n"
        R"({"step":3,"lo)");
    put("runs/a/checkpoints/step-00000002/config.json",
        R"({"name":"m","fwpkm":{"topk":8,"heads":1}})");
    put("runs/a/checkpoints/step-00000002/run.json",
        R"({"version":"9.8.7","data":{"sources":[{"data":"builtin","weight":1.0}]}})");
    put("runs/b/metrics.jsonl", "{\"step\":1,\"loss\":5.0,\"valid_loss\":4.5}\n");
    put("runs/b/checkpoints/step-00000001/config.json",
        R"({"name":"m","fwpkm":{"topk":4,"heads":1}})");
    put("x/eval/result.json", R"({"kind":"odd","score":0.125})");
    put("y/eval/result.json", R"({"kind":"odd","score":0.25})");
    put("z/result.json", R"({"kind":"other","label":"named"})");
  }
  void put(const std::string& file, const std::string& text) {
    fs::create_directories((dir_ / file).parent_path());
    write_text_atomic(dir_ / file, text);
  }
  std::string at(const std::string& name) { return (dir_ / name).string(); }

  TempDir dir_;
};

TEST_F(ReportCommand, FindsRunsAndResults) {
  const std::vector<std::string> folders = {at("runs") + "/", at("x/eval"), at("y"), at("z"),
                                            at("x")};
  const Gathered found = gather(folders);
  ASSERT_EQ(found.runs.size(), 2u);
  EXPECT_EQ(found.runs[0].label, "a");
  EXPECT_EQ(found.runs[1].label, "b");
  ASSERT_EQ(found.results.size(), 2u);
  ASSERT_EQ(found.results.at("odd").size(), 2u);  // x/eval was met twice
  EXPECT_EQ(found.results.at("odd")[0].label, "x/eval");
  EXPECT_EQ(found.results.at("odd")[1].label, "y/eval");
  EXPECT_EQ(found.results.at("odd")[1].data.at("score"), 0.25);
  EXPECT_EQ(found.results.at("other")[0].label, "named");
}

TEST_F(ReportCommand, ErrorsNameTheFolder) {
  fs::create_directories(dir_ / "empty/deep/deeper");
  put("empty/deep/deeper/result.json", "{}");
  const auto look = [&](const std::string& name) {
    return [this, name] { gather(std::vector<std::string>{at(name)}); };
  };
  expect_error(look("empty"), at("empty"), "metrics.jsonl", "result.json");
  expect_error(look("nowhere"), at("nowhere"), "not a folder");
  expect_error(look("empty/deep"), "deeper/result.json", "kind");
  put("broken/result.json", "{\"kind\":");
  expect_error(look("broken"), "broken/result.json");
}

TEST_F(ReportCommand, WritesAPageAndSaysWhere) {
  const std::string out = at("page.html");
  const ProcessResult result = run_program("report --json - --title 'T < U' --out " + out + " " +
                                           at("runs") + " " + at("x") + " " + at("y"));
  ASSERT_EQ(result.status, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json.at("page"), out);
  EXPECT_EQ(json.at("runs").size(), 2u);
  EXPECT_EQ(json.at("results")[0].at("kind"), "odd");
  EXPECT_NE(result.err.find("2 training runs, 2 evaluations: " + out), std::string::npos)
      << result.err;

  // The blocks of the page, by kind and title.
  const std::string html = read_text(out);
  EXPECT_NE(html.find("<title>T &lt; U</title>"), std::string::npos);
  const std::string begin = "id=\"data\">";
  const size_t from = html.find(begin) + begin.size();
  const Json page = Json::parse(html.substr(from, html.find("</script>", from) - from));
  const auto find = [&](const std::string& kind, const std::string& name) {
    for (const Json& block : page.at("blocks")) {
      if (block.at("kind") == kind &&
          (block.value("title", "") == name || block.value("caption", "") == name)) {
        return block;
      }
    }
    ADD_FAILURE() << "no " << kind << " '" << name << "'";
    return Json();
  };
  const Json loss = find("curves", "Loss");
  ASSERT_EQ(loss.at("series").size(), 2u);
  EXPECT_EQ(loss.at("series")[0].at("y"), Json({4.0, 3.0}));  // the line cut short is not there
  EXPECT_EQ(find("curves", "Validation loss").at("series")[1].at("x"), Json({1.0}));
  EXPECT_EQ(find("curves", "Memory loss").at("series").size(), 1u);
  EXPECT_EQ(find("bars", "Gates of the last step").at("series")[0].at("values"), Json({0.5}));
  const Json different = find("table", "Where the runs differ");
  EXPECT_EQ(different.at("rows"), Json::parse(R"([["fwpkm.topk",{"n":8},{"n":4}]])"));
  const Json rows = find("table", "Runs").at("rows");
  EXPECT_EQ(rows[0].back(), "9.8.7");
  EXPECT_EQ(rows[0][3].at("n"), 3.5);
  EXPECT_EQ(rows[0][6].at("n"), 200.0);  // median
  EXPECT_EQ(find("settings", "y/eval").at("entries")[1], Json::parse(R"(["score",{"n":0.25}])"));

  const ProcessResult bad = run_program("report " + at("nowhere"));
  EXPECT_EQ(bad.status, 1);
  EXPECT_NE(bad.err.find(at("nowhere")), std::string::npos) << bad.err;
}

}  // namespace
}  // namespace fwpkm::report
