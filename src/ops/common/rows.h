// Walking the rows (last dimension) of strided views.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace fwpkm {

// Turns a row number into an element offset. Dimensions that follow each other in memory are
// merged first, so that the common case costs one multiplication.
class Rows {
 public:
  explicit Rows(const View& view) {
    count_ = view.rows();
    for (int i = 0; i + 1 < view.rank(); ++i) {
      const int64_t extent = view.shape.dims[i];
      const int64_t stride = view.strides[i];
      if (extent == 1) {
        continue;
      }
      if (levels_ > 0 && strides_[levels_ - 1] == extent * stride) {
        extents_[levels_ - 1] *= extent;
        strides_[levels_ - 1] = stride;
      } else {
        extents_[levels_] = extent;
        strides_[levels_] = stride;
        ++levels_;
      }
    }
  }

  int64_t count() const { return count_; }

  int64_t operator[](int64_t row) const {
    if (levels_ == 1) {
      return row * strides_[0];
    }
    int64_t offset = 0;
    for (int i = levels_ - 1; i >= 0; --i) {
      offset += row % extents_[i] * strides_[i];
      row /= extents_[i];
    }
    return offset;
  }

 private:
  int levels_ = 0;
  int64_t count_ = 0;
  int64_t extents_[kMaxRank] = {};
  int64_t strides_[kMaxRank] = {};
};

// Rows that kernels hand to a thread at a time, and over which sums across rows are grouped: sums
// inside a group first, then group by group. Fixed, so that results do not depend on threads.
inline constexpr int64_t kRowGroup = 64;
inline int64_t row_groups(int64_t rows) {
  return (rows + kRowGroup - 1) / kRowGroup;
}

}  // namespace fwpkm
