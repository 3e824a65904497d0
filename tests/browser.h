// A headless Chromium for tests, driven by the DevTools protocol over a pair of pipes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fwpkm {

class TempDir;

// One browser with one page. Every call waits for its answer and throws an Error that says what it
// waited for if none comes. The process and its folder are gone when this is.
class Browser {
 public:
  // The browser of this process, started when first asked for. An Error without a browser.
  static Browser& shared();
  // False if FWPKM_BROWSER=off: somebody chose to do without these tests.
  static bool wanted();

  Browser();
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Opens a file and waits until it is loaded and drawn. Forgets what the page before said.
  void open(const std::filesystem::path& file);
  // The value of an expression, as JSON. Promises are waited for. What it throws is an Error.
  nlohmann::json evaluate(const std::string& expression);
  // Evaluates until the expression is true. `what` says in the Error what did not happen.
  void wait_for(const std::string& expression, const std::string& what);

  // A mouse at the middle of the first element that the selector finds, scrolled into view.
  void click(const std::string& selector);
  void hover(const std::string& selector);
  // A mouse at a point of the window, in pixels.
  void hover_at(double x, double y);
  // "Enter", "ArrowRight", "Tab", ...
  void press(const std::string& key);

  void set_size(int width, int height);
  // `scheme`: "light" or "dark"; `medium`: "screen" or "print".
  void set_media(const std::string& scheme, const std::string& medium = "screen");
  // PNG of the whole page, or of the window.
  void screenshot(const std::filesystem::path& file, bool whole = true);

  // What the page wrote to the console at level warning or above, exceptions, and violations of its
  // policy.
  const std::vector<std::string>& complaints() const { return complaints_; }
  void forget() { complaints_.clear(); }  // those that a test has seen to
  // Addresses that the page asked for beside its own file.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  nlohmann::json call(const std::string& method, const nlohmann::json& params = {},
                      bool to_page = true);
  // The next message; an Error past the deadline. `what` is what is waited for.
  nlohmann::json receive(double deadline, const std::string& what);
  void note(const nlohmann::json& event);
  void mouse(const char* type, double x, double y, bool pressed);
  std::pair<double, double> middle(const std::string& selector);
  void stop();

  std::unique_ptr<TempDir> folder_;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  int last_id_ = 0;
  std::string buffer_;
  std::string session_;
  std::string url_;
  bool loaded_ = false;
  std::vector<std::string> complaints_, requests_;
};

}  // namespace fwpkm
