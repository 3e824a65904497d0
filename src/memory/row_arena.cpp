#include "memory/row_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "memory/gpu_rows.h"

namespace fwpkm {
namespace {

// Address space for this many times the machine's memory: what is counted twice by nobody.
constexpr size_t kReserve = 4;
constexpr size_t kLeast = size_t{1} << 20;
// Bytes of rows that are copied from a GPU at a time.
constexpr size_t kGathered = size_t{4} << 20;
constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

size_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(size)
                               : size_t{16} << 30;
}

}  // namespace

AddressSpace::~AddressSpace() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

void AddressSpace::reserve(size_t bytes) {
  for (bytes_ = std::max(bytes, kLeast); bytes_ >= kLeast; bytes_ /= 2) {
    void* data = mmap(nullptr, bytes_, kProtection, kFlags, -1, 0);
    if (data != MAP_FAILED) {
      data_ = static_cast<std::byte*>(data);
      return;
    }
  }
  bytes_ = 0;
  fail("memory", "the system gives no address space for rows of memory: {}", std::strerror(errno));
}

void AddressSpace::drop(size_t bytes) {
  // Mapped anew, because parts may be a file's.
  require(mmap(data_, std::min(bytes, bytes_), kProtection, kFlags | MAP_FIXED, -1, 0) == data_,
          "memory", "cannot give memory back: {}", std::strerror(errno));
}

RowArena::RowArena(int64_t n, size_t row_bytes, DeviceKind device)
    : n_(n), row_bytes_(row_bytes), on_gpu_(device == DeviceKind::kCuda) {}

void RowArena::reserve_locked() {
  if (pages_.data() == nullptr) {
    const size_t bytes = kReserve * machine_memory();
    if (!on_gpu_) {
      rows_.reserve(bytes);
    }
    const size_t page_bytes = static_cast<size_t>(n_) * sizeof(int32_t);
    // Every row in a page of its own is the most that can be, and far more than there will be.
    const size_t most = (on_gpu_ ? bytes : rows_.bytes()) / row_bytes_ * page_bytes;
    pages_.reserve(std::min(most, bytes));
  }
}

// Makes room for so many rows in all.
void RowArena::grow_rows_locked(size_t rows) {
  require(rows < INT32_MAX &&
              (on_gpu_ ? gpu_rows_.grow(rows * row_bytes_) : rows * row_bytes_ <= rows_.bytes()),
          "memory", "no room for {} rows of {} bytes{}; forget sessions that are not needed", rows,
          row_bytes_, on_gpu_ ? " on the GPU" : "");
}

int32_t RowArena::add_row_locked() {
  if (!free_rows_.empty()) {
    const int32_t row = free_rows_.back();
    free_rows_.pop_back();
    row_owners_[static_cast<size_t>(row)] = 1;
    ++rows_used_;
    return row;
  }
  reserve_locked();
  const size_t row = row_owners_.size();
  grow_rows_locked(row + 1);
  row_owners_.push_back(1);
  ++rows_used_;
  return static_cast<int32_t>(row);
}

int32_t RowArena::add_page_locked() {
  int32_t number = 0;
  if (!free_pages_.empty()) {
    number = free_pages_.back();
    free_pages_.pop_back();
    page_owners_[static_cast<size_t>(number)] = 1;
  } else {
    reserve_locked();
    const size_t next = page_owners_.size();
    require((next + 1) * static_cast<size_t>(n_) * sizeof(int32_t) <= pages_.bytes() &&
                next < INT32_MAX,
            "memory", "no room for more than {} pages of {} row numbers; forget sessions", next,
            n_);
    page_owners_.push_back(1);
    number = static_cast<int32_t>(next);
  }
  ++pages_used_;
  return number;
}

int32_t RowArena::add_row() {
  const std::lock_guard lock(mutex_);
  return add_row_locked();
}

int32_t RowArena::add_page() {
  const std::lock_guard lock(mutex_);
  const int32_t number = add_page_locked();
  std::fill_n(page(number), n_, -1);
  return number;
}

void RowArena::keep_page(int32_t page) {
  const std::lock_guard lock(mutex_);
  ++page_owners_[static_cast<size_t>(page)];
}

void RowArena::keep_row(int32_t row) {
  const std::lock_guard lock(mutex_);
  ++row_owners_[static_cast<size_t>(row)];
}

void RowArena::drop_row_locked(int32_t row) {
  if (--row_owners_[static_cast<size_t>(row)] > 0) {
    return;
  }
  if (--rows_used_ == 0) {
    if (on_gpu_) {
      gpu_rows_.drop();
    } else {
      rows_.drop(row_owners_.size() * row_bytes_);
    }
    row_owners_.clear();
    free_rows_.clear();
    mapped_.clear();
    return;
  }
  auto at = std::upper_bound(mapped_.begin(), mapped_.end(), row,
                             [](int32_t r, const Mapped& m) { return r < m.begin; });
  if (at == mapped_.begin() || row >= std::prev(at)->end) {
    free_rows_.push_back(row);
    return;
  }
  // Rows of a file serve again when all of them are free: then the file is let go.
  --at;
  if (--at->used == 0) {
    const size_t begin = static_cast<size_t>(at->begin) * row_bytes_;
    const size_t bytes = static_cast<size_t>(at->end - at->begin) * row_bytes_;  // whole pages
    mmap(rows_.data() + begin, bytes, kProtection, kFlags | MAP_FIXED, -1, 0);
    for (int32_t r = at->begin; r < at->end; ++r) {
      free_rows_.push_back(r);
    }
    mapped_.erase(at);
  }
}

void RowArena::drop_row(int32_t row) {
  const std::lock_guard lock(mutex_);
  drop_row_locked(row);
}

void RowArena::drop_page(int32_t number) {
  const std::lock_guard lock(mutex_);
  if (--page_owners_[static_cast<size_t>(number)] > 0) {
    return;
  }
  const int32_t* rows = page(number);
  for (int64_t i = 0; i < n_; ++i) {
    if (rows[i] >= 0) {
      drop_row_locked(rows[i]);
    }
  }
  free_pages_.push_back(number);
  if (--pages_used_ == 0) {
    pages_.drop(page_owners_.size() * static_cast<size_t>(n_) * sizeof(int32_t));
    page_owners_.clear();
    free_pages_.clear();
  }
}

int32_t RowArena::own_page(int32_t number) {
  const std::lock_guard lock(mutex_);
  if (page_owners_[static_cast<size_t>(number)] == 1) {
    return number;
  }
  const int32_t copy = add_page_locked();
  --page_owners_[static_cast<size_t>(number)];
  const int32_t* from = page(number);
  int32_t* to = page(copy);
  for (int64_t i = 0; i < n_; ++i) {
    to[i] = from[i];
    if (to[i] >= 0) {
      ++row_owners_[static_cast<size_t>(to[i])];
    }
  }
  return copy;
}

int32_t RowArena::own_row(int32_t row) {
  const std::lock_guard lock(mutex_);
  if (row_owners_[static_cast<size_t>(row)] == 1) {
    return row;
  }
  const int32_t other = add_row_locked();
  --row_owners_[static_cast<size_t>(row)];
  return other;
}

int32_t RowArena::map_rows(int file, size_t offset, int64_t count) {
  const std::lock_guard lock(mutex_);
  reserve_locked();
  if (on_gpu_) {
    return copy_rows_locked(file, offset, count);
  }
  // The first row has to begin where a page of the system's does, and so has the next after them.
  const auto unit = static_cast<int64_t>(kMapAlign / std::gcd(kMapAlign, row_bytes_));
  const auto here = static_cast<int64_t>(row_owners_.size());
  const int64_t begin = (here + unit - 1) / unit * unit,
                end = begin + (count + unit - 1) / unit * unit;
  grow_rows_locked(static_cast<size_t>(end));
  std::byte* to = rows_.data() + static_cast<size_t>(begin) * row_bytes_;
  const size_t bytes =
      (static_cast<size_t>(count) * row_bytes_ + kMapAlign - 1) / kMapAlign * kMapAlign;
  require(
      mmap(to, bytes, kProtection, MAP_PRIVATE | MAP_FIXED, file, static_cast<off_t>(offset)) == to,
      "memory", "cannot map {} bytes of a file: {}", bytes, std::strerror(errno));
  for (int64_t r = here; r < begin; ++r) {
    free_rows_.push_back(static_cast<int32_t>(r));
  }
  row_owners_.resize(static_cast<size_t>(end), 0);
  std::fill_n(row_owners_.begin() + begin, count, 1);
  mapped_.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end), count});
  rows_used_ += count;
  return static_cast<int32_t>(begin);
}

int32_t RowArena::copy_rows_locked(int file, size_t offset, int64_t count) {
  const size_t begin = row_owners_.size(), bytes = static_cast<size_t>(count) * row_bytes_;
  grow_rows_locked(begin + static_cast<size_t>(count));
  void* from = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset));
  require(from != MAP_FAILED, "memory", "cannot map {} bytes of a file: {}", bytes,
          std::strerror(errno));
  cuda::copy_in(gpu_rows_.data() + begin * row_bytes_, from, bytes);
  munmap(from, bytes);
  row_owners_.resize(begin + static_cast<size_t>(count), 1);
  rows_used_ += count;
  return static_cast<int32_t>(begin);
}

int32_t* RowArena::gpu_pages() {
  const std::lock_guard lock(mutex_);
  const size_t bytes = page_owners_.size() * static_cast<size_t>(n_) * sizeof(int32_t);
  require(gpu_pages_.grow(bytes), "memory",
          "the GPU has no memory left for {} bytes of an index; forget sessions", bytes);
  return reinterpret_cast<int32_t*>(gpu_pages_.data());
}

void RowArena::fetch(std::span<const int32_t> numbers, std::byte* to) const {
  if (!on_gpu_) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      std::memcpy(to + i * row_bytes_, row(numbers[i]), row_bytes_);
    }
    return;
  }
  // Gathered on the GPU, so that one copy brings many.
  const size_t most = std::max<size_t>(1, kGathered / row_bytes_);
  const size_t room = std::min(most, numbers.size()) * row_bytes_;
  void* gathered = room > 0 ? cuda::allocate(room) : nullptr;
  require(gathered != nullptr || room == 0, "memory",
          "the GPU has no memory left to gather {} bytes of rows", room);
  std::vector<gpu_rows::Move> moves;
  for (size_t first = 0; first < numbers.size(); first += most) {
    const size_t count = std::min(most, numbers.size() - first);
    moves.clear();
    for (size_t i = 0; i < count; ++i) {
      moves.push_back({numbers[first + i], static_cast<int32_t>(i)});
    }
    gpu_rows::copy(gpu_rows_.data(), gathered, row_bytes_, moves);
    cuda::copy_out(to + first * row_bytes_, gathered, count * row_bytes_);
  }
  cuda::release(gathered, room);
}

void RowArena::for_rows(std::span<const int32_t> numbers,
                        const std::function<void(size_t i, const std::byte* row)>& fn) const {
  const size_t most = on_gpu_ ? std::max<size_t>(1, kGathered / row_bytes_) : numbers.size();
  std::vector<std::byte> copies;
  for (size_t first = 0; first < numbers.size(); first += most) {
    const auto some = numbers.subspan(first, std::min(most, numbers.size() - first));
    if (on_gpu_) {
      copies.resize(some.size() * row_bytes_);
      fetch(some, copies.data());
    }
    for (size_t i = 0; i < some.size(); ++i) {
      fn(first + i, on_gpu_ ? copies.data() + i * row_bytes_ : row(some[i]));
    }
  }
}

void RowArena::fill(int32_t number, const void* from) const {
  if (on_gpu_) {
    gpu_rows::send(row(number), from, row_bytes_);
  } else {
    std::memcpy(row(number), from, row_bytes_);
  }
}

int64_t RowArena::rows_used() const {
  const std::lock_guard lock(mutex_);
  return rows_used_;
}

int64_t RowArena::pages_used() const {
  const std::lock_guard lock(mutex_);
  return pages_used_;
}

int64_t RowArena::row_limit() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(row_owners_.size());
}

int64_t RowArena::page_limit() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(page_owners_.size());
}

}  // namespace fwpkm
