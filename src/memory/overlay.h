// Rows that lie over a read-only table of slots: what somebody wrote, and nothing else.
//
// The index has two levels: for each owner a directory of n page numbers, and pages of n row
// numbers, made when a slot of theirs is first written. So an owner costs its directory, the pages
// it touched and the rows it wrote, and a row is found by two loads, on every device alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace fwpkm {

// The arrays as kernels take them. A number of -1 stands for "none": the table's own row counts.
struct OverlayViews {
  Tensor directory;  // [owners, n] int32
  Tensor pages;      // [pages, n] int32
  Tensor rows;       // [rows, width]
  explicit operator bool() const { return static_cast<bool>(directory); }
};

class Overlay {
 public:
  Overlay() = default;
  // For tables of n*n slots of `width` numbers of the device's type.
  Overlay(int64_t owners, int64_t n, int64_t width, Device device);

  int64_t owners() const { return owners_; }
  int64_t n() const { return n_; }
  int64_t width() const { return width_; }
  int64_t rows() const { return used_; }
  // Bytes of index and rows in use.
  size_t bytes() const;

  // The row of a slot, or null.
  const std::byte* find(int64_t owner, int32_t slot) const;
  // Copies `row` in place of what the slot has.
  void put(int64_t owner, int32_t slot, const void* row);
  // Forgets what an owner wrote. Costs what that was.
  void clear(int64_t owner);

  // Calls fn(slot, row) for each row of an owner, by slot.
  template <typename Fn>
  void for_each(int64_t owner, Fn&& fn) const {
    for (int64_t p = 0; p < n_; ++p) {
      const int32_t page = directory_[static_cast<size_t>(owner * n_ + p)];
      for (int64_t i = 0; i < n_ && page >= 0; ++i) {
        const int32_t row = pages_[static_cast<size_t>(page * n_ + i)];
        if (row >= 0) {
          fn(static_cast<int32_t>(p * n_ + i), row_at(row));
        }
      }
    }
  }

  // Valid until the next change; empty handles if nothing was written.
  OverlayViews views() const;

 private:
  const std::byte* row_at(int32_t row) const {
    return rows_.data() + static_cast<size_t>(row) * row_bytes_;
  }

  int64_t owners_ = 0, n_ = 0, width_ = 0, used_ = 0;
  Device device_;
  size_t row_bytes_ = 0;
  std::vector<int32_t> directory_, pages_;
  std::vector<std::byte> rows_;
  std::vector<int32_t> free_rows_, free_pages_;
};

}  // namespace fwpkm
