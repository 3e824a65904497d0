#include "browser.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/timer.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 60;  // seconds for any answer, on a machine with other work to do

std::string find_program() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium-headless-shell", "chromium", "chromium-browser",
                           "google-chrome", "google-chrome-stable"}) {
    std::string_view rest = path == nullptr ? "" : path;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(':'), rest.size());
      const std::string file = std::string(rest.substr(0, end)) + "/" + name;
      if (::access(file.c_str(), X_OK) == 0) {
        return file;
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  fail("browser",
       "no headless browser was found; `scripts/deps.sh test` installs chromium-headless-shell, "
       "and FWPKM_BROWSER=off goes without these tests");
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    require(::pipe2(ends, O_CLOEXEC) == 0, "browser", "no pipe: {}", std::strerror(errno));
    // Above the numbers that the browser expects its own ends at.
    for (int* end : {&ends[0], &ends[1]}) {
      const int high = ::fcntl(*end, F_DUPFD_CLOEXEC, 10);
      require(high >= 0, "browser", "no pipe: {}", std::strerror(errno));
      ::close(*end);
      *end = high;
    }
    read = ends[0];
    write = ends[1];
  }
};

std::string decode_base64(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    static const std::string kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t value = kAlphabet.find(c);
    if (value == std::string::npos) {
      break;
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    have += 6;
    if (have >= 8) {
      have -= 8;
      out += static_cast<char>(bits >> have & 0xff);
    }
  }
  return out;
}

}  // namespace

bool Browser::wanted() {
  const char* choice = std::getenv("FWPKM_BROWSER");
  return choice == nullptr || std::string_view(choice) != "off";
}

Browser& Browser::shared() {
  static Browser browser;
  return browser;
}

Browser::Browser() : folder_(std::make_unique<TempDir>()) {
  const std::string program = find_program();
  const std::string data = "--user-data-dir=" + folder_->path().string();
  std::vector<const char*> arguments = {program.c_str(),
                                        data.c_str(),
                                        "--headless",
                                        "--remote-debugging-pipe",
                                        "--no-first-run",
                                        "--disable-gpu",
                                        "--disable-dev-shm-usage",
                                        "--disable-background-networking",
                                        "--disable-component-update",
                                        "--hide-scrollbars",
                                        "--force-color-profile=srgb"};
  if (::geteuid() == 0) {
    arguments.push_back("--no-sandbox");  // which root cannot have
  }
  arguments.push_back("about:blank");
  arguments.push_back(nullptr);
  const std::string log = (*folder_ / "log").string();
  const Pipe commands, answers;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  require(pid_ >= 0, "browser", "cannot fork: {}", std::strerror(errno));
  if (pid_ == 0) {
    // A group of its own, to end all its processes at once; and none stays if the test dies.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The log goes to its places first: it may have been opened as 3 or 4, which the pipes take.
    const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (::getppid() == parent && ::dup2(output, 1) == 1 && ::dup2(output, 2) == 2 &&
        ::dup2(commands.read, 3) == 3 && ::dup2(answers.write, 4) == 4) {
      ::execv(program.c_str(), const_cast<char* const*>(arguments.data()));
    }
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  ::close(commands.read);
  ::close(answers.write);
  to_ = commands.write;
  from_ = answers.read;
  try {
    const Json target = call("Target.createTarget", {{"url", "about:blank"}}, false);
    session_ = call("Target.attachToTarget",
                    {{"targetId", target.at("targetId")}, {"flatten", true}}, false)
                   .at("sessionId");
    for (const char* domain : {"Page", "Runtime", "Log", "Network"}) {
      call(std::string(domain) + ".enable");
    }
    set_size(1100, 800);
    set_media("light");
  } catch (...) {
    stop();
    throw;
  }
}

Browser::~Browser() {
  stop();
}

void Browser::stop() {
  if (pid_ <= 0) {
    return;
  }
  ::kill(-pid_, SIGKILL);
  ::close(to_);
  ::close(from_);
  ::waitpid(pid_, nullptr, 0);
  // Its children are not ours to wait for; they end before their folder can be removed.
  for (int i = 0; i < 500 && ::kill(-pid_, 0) == 0; ++i) {
    ::usleep(10'000);
  }
  pid_ = -1;
}

Json Browser::receive(double deadline, const std::string& what) {
  while (true) {
    const size_t end = buffer_.find('\0');
    if (end != std::string::npos) {
      Json message = Json::parse(buffer_.substr(0, end));
      buffer_.erase(0, end + 1);
      return message;
    }
    const double left = deadline - now_seconds();
    pollfd ready = {from_, POLLIN, 0};
    const int got = left > 0 ? ::poll(&ready, 1, static_cast<int>(left * 1000) + 1) : 0;
    require(got > 0 || (got < 0 && errno == EINTR), "browser",
            "nothing came within {} s while waiting for {}", kPatience, what);
    std::array<char, 1 << 16> part;
    const ssize_t size = ::read(from_, part.data(), part.size());
    if (size <= 0) {
      const std::string log = read_text(*folder_ / "log");
      fail("browser", "it ended while the test waited for {}; it said:\n{}", what, log);
    }
    buffer_.append(part.data(), static_cast<size_t>(size));
  }
}

Json Browser::call(const std::string& method, const Json& params, bool to_page) {
  const int id = ++last_id_;
  Json message = {{"id", id}, {"method", method}};
  message["params"] = params.is_null() ? Json::object() : params;
  if (to_page) {
    message["sessionId"] = session_;
  }
  const std::string text = message.dump() + '\0';
  // A browser that died is an Error with a message, not a signal.
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  size_t sent = 0;
  ssize_t size = 1;
  while (sent < text.size() && size > 0) {
    size = ::write(to_, text.data() + sent, text.size() - sent);
    sent += static_cast<size_t>(std::max<ssize_t>(size, 0));
  }
  const int error = errno;
  ::signal(SIGPIPE, before);
  require(size > 0, "browser", "it takes no command ({}): {}", method, std::strerror(error));
  const double deadline = now_seconds() + kPatience;
  while (true) {
    const Json answer = receive(deadline, method);
    if (answer.contains("method")) {
      note(answer);
    } else if (answer.value("id", 0) == id) {
      require(!answer.contains("error"), "browser", "{}: {}", method, answer.dump());
      return answer.at("result");
    }
  }
}

void Browser::note(const Json& event) {
  if (event.value("sessionId", std::string()) != session_) {
    return;
  }
  const std::string method = event.at("method");
  const Json& params = event.at("params");
  if (method == "Page.loadEventFired") {
    loaded_ = true;
  } else if (method == "Runtime.exceptionThrown") {
    complaints_.push_back("exception: " + params.at("exceptionDetails").dump());
  } else if (method == "Runtime.consoleAPICalled") {
    const std::string type = params.at("type");
    if (type == "error" || type == "warning" || type == "assert") {
      complaints_.push_back("console: " + params.at("args").dump());
    }
  } else if (method == "Log.entryAdded") {
    const std::string level = params.at("entry").at("level");
    if (level == "error" || level == "warning") {
      complaints_.push_back("log: " + params.at("entry").dump());
    }
  } else if (method == "Network.requestWillBeSent") {
    const std::string url = params.at("request").at("url");
    if (url != url_) {
      requests_.push_back(url);
    }
  }
}

void Browser::open(const std::filesystem::path& file) {
  loaded_ = false;
  complaints_.clear();
  requests_.clear();
  url_ = "file://" + std::filesystem::absolute(file).string();
  const Json answer = call("Page.navigate", {{"url", url_}});
  require(!answer.contains("errorText"), "browser", "cannot open {}: {}", url_, answer.dump());
  const double deadline = now_seconds() + kPatience;
  while (!loaded_) {
    const Json message = receive(deadline, url_ + " to be loaded");
    if (message.contains("method")) {
      note(message);
    }
  }
  // Plots are drawn when the page knows their width.
  evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
}

Json Browser::evaluate(const std::string& expression) {
  const Json answer =
      call("Runtime.evaluate",
           {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  require(!answer.contains("exceptionDetails"), "browser", "{} throws: {}", expression,
          answer.value("exceptionDetails", Json()).dump());
  return answer.at("result").value("value", Json());
}

void Browser::wait_for(const std::string& expression, const std::string& what) {
  const double deadline = now_seconds() + kPatience;
  while (evaluate("Boolean(" + expression + ")") != true) {
    require(now_seconds() < deadline, "browser", "{} did not happen within {} s", what, kPatience);
    ::usleep(20'000);
  }
}

std::pair<double, double> Browser::middle(const std::string& selector) {
  const Json box = evaluate(
      "(() => { const node = document.querySelector(" + Json(selector).dump() +
      "); if (!node) return null; node.scrollIntoView({block: 'center', behavior: 'instant'});"
      "const box = node.getClientRects()[0]; return box ? [box.left + box.width / 2, "
      "box.top + box.height / 2] : null; })()");
  require(box.is_array(), "browser", "nothing on the page can be seen as '{}'", selector);
  return {box[0], box[1]};
}

void Browser::mouse(const char* type, double x, double y, bool pressed) {
  Json params = {{"type", type}, {"x", x}, {"y", y}};
  if (pressed) {
    params["button"] = "left";
    params["clickCount"] = 1;
  }
  call("Input.dispatchMouseEvent", params);
}

void Browser::click(const std::string& selector) {
  const auto [x, y] = middle(selector);
  mouse("mouseMoved", x, y, false);
  mouse("mousePressed", x, y, true);
  mouse("mouseReleased", x, y, true);
}

void Browser::hover(const std::string& selector) {
  const auto [x, y] = middle(selector);
  hover_at(x, y);
}

void Browser::hover_at(double x, double y) {
  mouse("mouseMoved", x, y, false);
}

void Browser::press(const std::string& key) {
  static const std::map<std::string, int> kCodes = {
      {"Tab", 9},        {"Enter", 13},   {"Escape", 27},     {"End", 35},      {"Home", 36},
      {"ArrowLeft", 37}, {"ArrowUp", 38}, {"ArrowRight", 39}, {"ArrowDown", 40}};
  const auto code = kCodes.find(key);
  require(code != kCodes.end(), "browser", "the key '{}' is not in the list", key);
  for (const char* type : {"keyDown", "keyUp"}) {
    call("Input.dispatchKeyEvent",
         {{"type", type}, {"key", key}, {"code", key}, {"windowsVirtualKeyCode", code->second}});
  }
}

void Browser::set_size(int width, int height) {
  call("Emulation.setDeviceMetricsOverride",
       {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", width < 600}});
  evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
}

void Browser::set_media(const std::string& scheme, const std::string& medium) {
  call("Emulation.setEmulatedMedia",
       {{"media", medium},
        {"features", Json::array({{{"name", "prefers-color-scheme"}, {"value", scheme}}})}});
}

void Browser::screenshot(const std::filesystem::path& file, bool whole) {
  Json params = {{"format", "png"}, {"captureBeyondViewport", whole}};
  if (whole) {
    const Json size = call("Page.getLayoutMetrics").at("cssContentSize");
    params["clip"] = {{"x", 0},
                      {"y", 0},
                      {"width", size.at("width")},
                      {"height", size.at("height")},
                      {"scale", 1}};
  }
  const Json picture = call("Page.captureScreenshot", params);
  write_text_atomic(file, decode_base64(picture.at("data")));
}

}  // namespace fwpkm
