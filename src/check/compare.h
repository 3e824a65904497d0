// How far numbers are from what they should be.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace fwpkm {

// max|a-b| / max|b|, or max|a-b| where b is all zero. Anything that is not finite is never right:
// it counts as infinitely far.
inline double relative_error(std::span<const double> a, std::span<const double> b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    if (!std::isfinite(difference)) {
      return std::numeric_limits<double>::infinity();
    }
    worst = std::max(worst, difference);
    largest = std::max(largest, std::fabs(b[i]));
  }
  return largest == 0 ? worst : worst / largest;
}

}  // namespace fwpkm
