// Rows and pages of a RowArena that lie on a GPU. Lists are given by the host and taken at once;
// all else is in order with the kernels of the calling thread. Only builds with CUDA have these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fwpkm::gpu_rows {

struct Move {
  int32_t from, to;  // numbers of rows
};
// Copies rows of row_bytes bytes, a multiple of 4, from one block to another. No row is written
// twice.
void copy(const void* from, void* to, size_t row_bytes, std::span<const Move> moves);

// Makes all numbers of pages -1.
void clear_pages(int32_t* pages, int64_t n, std::span<const int32_t> numbers);

struct Change {
  int32_t page, place, row;
};
// Equal places have equal rows.
void change_pages(int32_t* pages, int64_t n, std::span<const Change> changes);

// Copies to the GPU without waiting for it; `host` may change at once.
void send(void* to, const void* host, size_t bytes);

}  // namespace fwpkm::gpu_rows
