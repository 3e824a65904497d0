#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/timer.h"

namespace fwpkm {
namespace {

constexpr int kBarWidth = 24;
constexpr double kTerminalInterval = 0.1, kPlainInterval = 10.0;

}  // namespace

std::string human_duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) {
    return fmt::format("{}h {:02}m", s / 3600, s / 60 % 60);
  }
  return s >= 60 ? fmt::format("{}m {:02}s", s / 60, s % 60) : fmt::format("{}s", s);
}

Progress::Progress(std::string title)
    : title_(std::move(title)), start_(now_seconds()), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  finish();
}

void Progress::update(double done, const std::string& note) {
  const double time = now_seconds();
  if (time - last_draw_ < (terminal_ ? kTerminalInterval : kPlainInterval)) {
    return;
  }
  last_draw_ = time;
  draw(std::clamp(done, 0.0, 1.0), note, time - start_);
}

void Progress::draw(double done, const std::string& note, double elapsed) {
  std::string left;
  if (done > 0.01 && elapsed > 1) {
    left = fmt::format(", {} left", human_duration(elapsed * (1 - done) / done));
  }
  if (!terminal_) {
    fmt::print(stderr, "{}: {:3.0f}%, {}{}\n", title_, done * 100, note, left);
    std::fflush(stderr);
    return;
  }
  const int filled = static_cast<int>(done * kBarWidth);
  fmt::print(stderr, "\r\x1b[K{} [{:#>{}}{:.>{}}] {:3.0f}% {}{}", title_, "", filled, "",
             kBarWidth - filled, done * 100, note, left);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::finish() {
  if (drawn_) {
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    drawn_ = false;
  }
}

}  // namespace fwpkm
