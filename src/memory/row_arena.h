// Rows of one size, and pages of numbers of such rows, counted by reference: what many overlays can
// share. A row and a page stay where they are as long as somebody counts on them, whatever is added
// meanwhile, so that kernels may read while others write elsewhere.
//
// Both lie in address space that is reserved once and filled from the front; memory is taken from
// the system when it is first touched. Freed rows and pages serve again; when the last row is gone
// all memory goes back.
//
// On a GPU rows lie in its memory, and so does a copy of the pages: the host keeps the books.
//
// Threads: every call may come from any thread. Contents are another matter: a row or page with one
// owner is the owner's to change, one with several must not be changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "tensor/cuda.h"

namespace fwpkm {

// A part of the address space, none of it in memory until touched.
class AddressSpace {
 public:
  AddressSpace() = default;
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Takes `bytes` of it, or the half, the quarter.. of that where the system gives no more.
  void reserve(size_t bytes);
  // Gives the memory of the first `bytes` back; they read as zeros.
  void drop(size_t bytes);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

class RowArena {
 public:
  // Pages of n row numbers, rows of row_bytes bytes.
  RowArena(int64_t n, size_t row_bytes, DeviceKind device = DeviceKind::kCpu);

  int64_t n() const { return n_; }
  size_t row_bytes() const { return row_bytes_; }
  bool on_gpu() const { return on_gpu_; }
  // Where a row is: on the arena's device.
  std::byte* row(int32_t number) const {
    return (on_gpu_ ? gpu_rows_.data() : rows_.data()) + static_cast<size_t>(number) * row_bytes_;
  }
  // Copies rows to the host, one after the other.
  void fetch(std::span<const int32_t> numbers, std::byte* to) const;
  // Calls fn(i, row) for each of these rows, on the host: where it lies, or, from a GPU, a copy.
  void for_rows(std::span<const int32_t> numbers,
                const std::function<void(size_t i, const std::byte* row)>& fn) const;
  // Copies a row from the host, or makes it so before the calling thread's next kernels.
  void fill(int32_t number, const void* from) const;
  int32_t* page(int32_t number) const {
    return reinterpret_cast<int32_t*>(pages_.data()) + number * n_;
  }

  // The GPU's copy of the pages, with room for all that there are.
  int32_t* gpu_pages();

  // A row of one owner; contents undefined.
  int32_t add_row();
  // A page of one owner, all numbers -1.
  int32_t add_page();
  // One owner more, one less.
  void keep_page(int32_t page);
  void keep_row(int32_t row);
  void drop_page(int32_t page);  // the last owner's rows lose an owner each
  void drop_row(int32_t row);
  // A page with the same rows that has one owner, in place of one that may have several.
  int32_t own_page(int32_t page);
  // A row that has one owner, in place of one that may have several; contents undefined.
  int32_t own_row(int32_t row);

  // Rows that are a part of an open file, mapped, not read (but on a GPU, copied): `count` rows
  // from `offset` on, which is a multiple of kMapAlign. Changing them never changes the file. Each
  // has one owner, the caller. -> the number of the first; the others follow.
  static constexpr size_t kMapAlign = 4096;
  int32_t map_rows(int file, size_t offset, int64_t count);

  // Rows and pages that somebody owns.
  int64_t rows_used() const;
  int64_t pages_used() const;
  // Rows and pages that there ever were at a time: where numbers end.
  int64_t row_limit() const;
  int64_t page_limit() const;

 private:
  struct Mapped {
    int32_t begin, end;  // rows
    int64_t used;
  };

  void reserve_locked();
  void drop_row_locked(int32_t row);
  int32_t add_row_locked();
  int32_t copy_rows_locked(int file, size_t offset, int64_t count);
  void grow_rows_locked(size_t rows);
  int32_t add_page_locked();

  int64_t n_;
  size_t row_bytes_;
  bool on_gpu_;
  mutable std::mutex mutex_;
  AddressSpace rows_, pages_;  // rows_ stays empty on a GPU
  cuda::AddressSpace gpu_rows_, gpu_pages_;
  std::vector<int32_t> row_owners_, page_owners_;
  std::vector<int32_t> free_rows_, free_pages_;
  std::vector<Mapped> mapped_;  // by begin
  int64_t rows_used_ = 0, pages_used_ = 0;
};

}  // namespace fwpkm
