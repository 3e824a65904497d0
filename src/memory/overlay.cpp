#include "memory/overlay.h"

#include <algorithm>
#include <cstring>

namespace fwpkm {

Overlay::Overlay(int64_t owners, int64_t n, int64_t width, Device device)
    : owners_(owners),
      n_(n),
      width_(width),
      device_(device),
      row_bytes_(static_cast<size_t>(width) * dtype_size(device.real)),
      directory_(static_cast<size_t>(owners * n), -1) {}

size_t Overlay::bytes() const {
  return (directory_.size() + pages_.size()) * sizeof(int32_t) +
         static_cast<size_t>(used_) * row_bytes_;
}

const std::byte* Overlay::find(int64_t owner, int32_t slot) const {
  const int32_t page = directory_[static_cast<size_t>(owner * n_ + slot / n_)];
  const int32_t row = page < 0 ? -1 : pages_[static_cast<size_t>(page * n_ + slot % n_)];
  return row < 0 ? nullptr : row_at(row);
}

void Overlay::put(int64_t owner, int32_t slot, const void* from) {
  int32_t& page = directory_[static_cast<size_t>(owner * n_ + slot / n_)];
  if (page < 0) {
    if (free_pages_.empty()) {
      page = static_cast<int32_t>(pages_.size() / static_cast<size_t>(n_));
      pages_.resize(pages_.size() + static_cast<size_t>(n_), -1);
    } else {
      page = free_pages_.back();
      free_pages_.pop_back();
    }
  }
  int32_t& row = pages_[static_cast<size_t>(page * n_ + slot % n_)];
  if (row < 0) {
    if (free_rows_.empty()) {
      row = static_cast<int32_t>(rows_.size() / row_bytes_);
      rows_.resize(rows_.size() + row_bytes_);
    } else {
      row = free_rows_.back();
      free_rows_.pop_back();
    }
    ++used_;
  }
  std::memcpy(rows_.data() + static_cast<size_t>(row) * row_bytes_, from, row_bytes_);
}

void Overlay::clear(int64_t owner) {
  for (int64_t p = 0; p < n_; ++p) {
    int32_t& page = directory_[static_cast<size_t>(owner * n_ + p)];
    if (page < 0) {
      continue;
    }
    for (int64_t i = 0; i < n_; ++i) {
      int32_t& row = pages_[static_cast<size_t>(page * n_ + i)];
      if (row >= 0) {
        free_rows_.push_back(row);
        row = -1;
        --used_;
      }
    }
    free_pages_.push_back(page);
    page = -1;
  }
}

OverlayViews Overlay::views() const {
  if (used_ == 0) {
    return {};
  }
  const auto constant = [&](const char* name, const void* data, DType dtype, const Shape& shape) {
    return Tensor::constant(View(name, const_cast<void*>(data), dtype, device_.kind, shape));
  };
  OverlayViews views;
  views.directory = constant("overlay.directory", directory_.data(), DType::kI32, {owners_, n_});
  views.pages = constant("overlay.pages", pages_.data(), DType::kI32,
                         {static_cast<int64_t>(pages_.size()) / n_, n_});
  views.rows = constant("overlay.rows", rows_.data(), device_.real,
                        {static_cast<int64_t>(rows_.size() / row_bytes_), width_});
  return views;
}

}  // namespace fwpkm
