// Rows that lie over a read-only table of slots: what somebody wrote, and nothing else.
//
// The index has two levels: for each owner a directory of n page numbers, and pages of n row
// numbers, made when a slot of theirs is first written. So an owner costs its directory, the pages
// it touched and the rows it wrote, and a row is found by two loads, on every device alike.
//
// Pages and rows lie in an arena and are counted there. A copy of an overlay is a fork: it shares
// all pages and rows, and whoever writes first makes copies of what it touches. Overlays of one
// arena may be used from different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/row_arena.h"
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
  // For tables of n*n slots of `width` numbers of the device's type; with an arena of its own.
  Overlay(int64_t owners, int64_t n, int64_t width, Device device);
  // The same in an arena that others use too.
  Overlay(int64_t owners, std::shared_ptr<RowArena> arena, Device device);
  ~Overlay();
  Overlay(const Overlay& other);
  Overlay(Overlay&& other) noexcept;
  Overlay& operator=(Overlay other) noexcept;

  int64_t owners() const { return owners_; }
  int64_t n() const { return n_; }
  int64_t width() const { return width_; }
  int64_t rows() const { return used_; }
  const std::shared_ptr<RowArena>& arena() const { return arena_; }
  size_t row_bytes() const { return arena_ ? arena_->row_bytes() : 0; }
  // Bytes of index and rows in use, shared ones included.
  size_t bytes() const;

  // The number of a slot's row in the arena, or -1.
  int32_t number(int64_t owner, int32_t slot) const {
    const int32_t page = directory_[static_cast<size_t>(owner * n_ + slot / n_)];
    return page < 0 ? -1 : arena_->page(page)[slot % n_];
  }
  // The row of a slot, or null; on the arena's device.
  const std::byte* find(int64_t owner, int32_t slot) const {
    const int32_t row = number(owner, slot);
    return row < 0 ? nullptr : arena_->row(row);
  }
  // Copies `row`, which is the host's, in place of what the slot has. It must not be this overlay's
  // own.
  void put(int64_t owner, int32_t slot, const void* row);
  // The number of a row for the slot that this overlay alone has; contents undefined.
  int32_t renew(int64_t owner, int32_t slot);
  // Makes row `number` of the arena the slot's, which has none yet; it gets one owner more.
  void adopt(int64_t owner, int32_t slot, int32_t number);
  // Forgets one slot: true if there was something. The page stays.
  bool erase(int64_t owner, int32_t slot);
  // Forgets what an owner wrote. Costs what that was.
  void clear(int64_t owner);

  // Calls fn(slot, row) for each row of an owner, by slot. Rows of a GPU are copied for it.
  template <typename Fn>
  void for_each(int64_t owner, Fn&& fn) const {
    std::vector<int32_t> slots, numbers;
    for_numbers(owner, [&](int32_t slot, int32_t number) {
      slots.push_back(slot);
      numbers.push_back(number);
    });
    if (!numbers.empty()) {
      arena_->for_rows(numbers, [&](size_t i, const std::byte* row) { fn(slots[i], row); });
    }
  }
  // The same with the row's number in the arena.
  template <typename Fn>
  void for_numbers(int64_t owner, Fn&& fn) const {
    for (int64_t p = 0; p < n_; ++p) {
      const int32_t page = directory_[static_cast<size_t>(owner * n_ + p)];
      for (int64_t i = 0; i < n_ && page >= 0; ++i) {
        const int32_t row = arena_->page(page)[i];
        if (row >= 0) {
          fn(static_cast<int32_t>(p * n_ + i), row);
        }
      }
    }
  }

  // Valid until the next change of this overlay; empty handles if nothing was written.
  OverlayViews views() const;
  // Tells the GPU what changed since the last time; does nothing elsewhere. views() does it too.
  void send() const;

 private:
  // Of an overlay on a GPU: its directory there, and what the GPU does not know yet. Pages are
  // changed only by whoever has them alone, and before a fork all is sent.
  struct Gpu {
    std::mutex mutex;
    int32_t* directory = nullptr;
    size_t bytes = 0;
    bool sent = false;                                // the directory
    std::vector<int32_t> fresh, copied;               // pages
    std::vector<std::pair<int32_t, int32_t>> places;  // page, place in it

    ~Gpu();
  };

  void swap(Overlay& other) noexcept;
  // The place of a slot's row number, in a page that is this overlay's alone.
  int32_t* place(int64_t owner, int32_t slot);

  int64_t owners_ = 0, n_ = 0, width_ = 0, used_ = 0, pages_ = 0;
  Device device_;
  std::shared_ptr<RowArena> arena_;
  std::vector<int32_t> directory_;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace fwpkm
