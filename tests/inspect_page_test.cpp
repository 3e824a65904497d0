// Commands that write pages, and the pages as a reader meets them.
#include <gtest/gtest.h>

#include "base/file.h"
#include "browser.h"
#include "model/checkpoint.h"
#include "process.h"
#include "session_models.h"
#include "text/tokenizer.h"

namespace fwpkm {
namespace {

using nlohmann::json;

class InspectPage : public testing::Test {
 protected:
  InspectPage() {
    json config = memory_model({{"name", "small"},
                                {"vocab_size", 257},
                                {"layout", "gdn+swa"},
                                {"fwpkm", {{"chunk", 16}, {"n_subkeys", 24}, {"value_dim", 16}}}});
    for (const std::string name : {"model", "other"}) {
      Model model(parse_config(config, "test"), Device::cpu(), false);
      randomize(&model.parameters(), name == "model" ? 7 : 8);
      save_model(model, dir_ / name);
      write_text_atomic(
          dir_ / name / "tokenizer.json",
          json({{"kind", "bytes"}, {"fingerprint", load_tokenizer("bytes")->fingerprint()}})
              .dump());
    }
    std::string text = "A door </script><img src=x onerror=document.title='run'> & \"quotes\".\n";
    for (int i = 0; i < 6; ++i) {
      text += "Nobody knows who painted the red bridge last winter.\n<|endoftext|>\n";
    }
    write_text_atomic(path("a.txt"), text);
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  // What an expression says of a page that has no complaints.
  json on_page(const std::string& page, const std::string& click, const std::string& expression) {
    Browser& browser = Browser::shared();
    browser.set_size(1100, 800);
    browser.set_media("light");
    browser.open(page);
    if (!click.empty()) {
      browser.click(click);
    }
    const json value = browser.evaluate(expression);
    EXPECT_EQ(browser.complaints(), std::vector<std::string>());
    EXPECT_EQ(browser.requests(), std::vector<std::string>());
    EXPECT_NE(browser.evaluate("document.title"), "run");
    return value;
  }

  TempDir dir_;
};

TEST_F(InspectPage, Gates) {
  const json made = ok("inspect gates --model " + path("model") + " " + path("a.txt") +
                       " --chunk 32 --page " + path("gates.html"));
  const auto count = made.at("tokens").size();
  EXPECT_EQ(count, read_text(path("a.txt")).size());
  EXPECT_EQ(made.at("gates").at("1").size(), count);
  ASSERT_GT(made.at("updates").size(), 2u);
  EXPECT_EQ(made.at("updates").at(1), 65);
  fails("inspect gates --model " + path("model") + " " + path("nothing"), "nothing");
  if (!Browser::wanted()) {
    GTEST_SKIP() << "FWPKM_BROWSER=off";
  }
  EXPECT_EQ(on_page(path("gates.html"), "", "document.querySelectorAll('.token').length"), count);
  EXPECT_EQ(on_page(path("gates.html"), "", "document.querySelectorAll('img').length"), 0);
}

TEST_F(InspectPage, SlotsLeadBackToTheText) {
  const std::string m = " --model " + path("model");
  const json made =
      ok("inspect slots" + m + " --read " + path("a.txt") +
         " --readings 2 --prompt 'painted the ' --expect 'red' --page " + path("slots.html"));
  ASSERT_EQ(made.at("tokens").size(), 3u);
  const json& token = made.at("tokens").at(0);
  EXPECT_EQ(token.at("needs"), 'r');
  ASSERT_EQ(token.at("reads").size(), 6u);  // three slots of each of two layers
  fails("inspect slots --prompt x", "give --session");
  fails("inspect slots --prompt x" + m, "--read");
  fails("inspect slots --prompt x --slot 1:1" + m, "cannot be together");
  if (!Browser::wanted()) {
    GTEST_SKIP() << "FWPKM_BROWSER=off";
  }
  const json seen =
      on_page(path("slots.html"), ".token",
              "[document.querySelectorAll('.slot').length, "
              "document.querySelectorAll('.write .jump').length, document.body.textContent]");
  EXPECT_EQ(seen.at(0), 6);
  EXPECT_GT(seen.at(1), 0);
  EXPECT_NE(seen.at(2).get<std::string>().find("onerror"), std::string::npos);
}

TEST_F(InspectPage, Perplexity) {
  const std::string out = path("ppl"), command = "eval ppl --model " + path("model") +
                                                 " --against " + path("other") + " --data " +
                                                 path("a.txt") + " --window 128 --every 16 --out ";
  const json made = ok(command + out);
  EXPECT_EQ(made.at("kind"), "ppl");
  EXPECT_EQ(made.at("documents").size(), 6u);
  EXPECT_EQ(made.at("models").at(1).at("folder"), path("other"));
  EXPECT_EQ(json::parse(read_text(out + "/result.json")), made);
  EXPECT_EQ(ok(command + out), made);  // all is there already
  fails(command + out + " --freeze", "settings.freeze was false, now it is true");
  const json frozen = ok(command + path("frozen") + " --freeze");
  EXPECT_NE(frozen.at("models").at(0).at("ppl"), made.at("models").at(0).at("ppl"));
  ok("report " + out + " " + path("frozen") + " --out " + path("both.html"));
  if (!Browser::wanted()) {
    GTEST_SKIP() << "FWPKM_BROWSER=off";
  }
  for (const std::string& page : {out + "/report.html", path("both.html")}) {
    const json figures = on_page(page, "", "[...document.querySelectorAll('figure svg')].length");
    EXPECT_GE(figures, 5) << page;  // curves, gates, and three of slots
  }
}

TEST_F(InspectPage, Continual) {
  for (const std::string domain : {"law", "sea"}) {
    std::filesystem::create_directories(dir_ / "domains" / domain);
    write_text_atomic(dir_ / "domains" / domain / "adapt.txt", std::string(90, domain[0]));
    write_text_atomic(dir_ / "domains" / domain / "eval.txt", std::string(50, domain[1]));
  }
  const json made = ok("eval continual --model " + path("model") + " --domains " + path("domains") +
                       " --order sea,law --out " + path("out"));
  EXPECT_EQ(made.at("domains"), json({"sea", "law"}));
  EXPECT_EQ(made.at("loss").size(), 3u);
  fails("eval continual --model " + path("model") + " --domains " + path("domains") +
            " --order sea,sky",
        "no domain 'sky'");
  if (!Browser::wanted()) {
    GTEST_SKIP() << "FWPKM_BROWSER=off";
  }
  EXPECT_EQ(on_page(path("out/report.html"), "", "document.querySelectorAll('figure').length"), 2);
}

}  // namespace
}  // namespace fwpkm
