// Time, and the middle of several times.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace fwpkm {

inline double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// The middle value, or the mean of the two middle ones.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace fwpkm
