// Report pages in a browser, as a reader meets them.
#include <gtest/gtest.h>

#include "browser.h"
#include "report_pages.h"
#include "temp_dir.h"

namespace fwpkm::report {
namespace {

class ReportPage : public testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::wanted()) {
      GTEST_SKIP() << "FWPKM_BROWSER=off";
    }
    browser_ = &Browser::shared();
  }
  void TearDown() override {
    if (browser_ != nullptr) {
      EXPECT_EQ(browser_->complaints(), std::vector<std::string>());
      EXPECT_EQ(browser_->requests(), std::vector<std::string>());
    }
  }

  void open(const Page& page) {
    page.write(dir_ / "page.html");
    browser_->open(dir_ / "page.html");
  }
  nlohmann::json get(const std::string& expression) { return browser_->evaluate(expression); }

  TempDir dir_;
  Browser* browser_ = nullptr;
};

TEST_F(ReportPage, FitsPhoneDarkAndPrint) {
  open(full_page());
  const char* pictures = std::getenv("FWPKM_PICTURES");
  for (const auto& [name, width, scheme, medium] : {std::tuple{"desktop", 1100, "light", "screen"},
                                                    {"phone", 360, "light", "screen"},
                                                    {"dark", 1100, "dark", "screen"},
                                                    {"print", 720, "dark", "print"}}) {
    browser_->set_size(width, 800);
    browser_->set_media(scheme, medium);
    if (pictures != nullptr) {
      browser_->screenshot(std::filesystem::path(pictures) / (std::string(name) + ".png"));
    }
  }
}

}  // namespace
}  // namespace fwpkm::report
