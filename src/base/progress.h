// A progress bar for people: how far, how fast, how long still. On a terminal one line is redrawn;
// elsewhere a plain line is printed now and then. Always on standard error.
#pragma once

#include <cstdint>
#include <string>

namespace fwpkm {

class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` is from 0 to 1; `note` is what is being done or how fast. Cheap enough to be called
  // often: at most ten lines a second are drawn.
  void update(double done, const std::string& note);
  // Clears the bar, so that other output can follow.
  void finish();

 private:
  void draw(double done, const std::string& note, double elapsed);

  std::string title_;
  double start_;
  double last_draw_ = -1e9;
  bool terminal_;
  bool drawn_ = false;
};

// "1h 02m", "3m 05s", "12s".
std::string human_duration(double seconds);

}  // namespace fwpkm
