// Going through what a call of the memory wrote.
#pragma once

#include "ops/fwpkm/fwpkm.h"

namespace fwpkm {

// Calls fn(owner, slot, number of its newest row) for each slot that was written.
template <typename Fn>
void for_writes(const FwpkmResult& r, Fn&& fn) {
  const int64_t owners = r.counts.dim(0), entries = r.writes.dim(0) / owners;
  const std::vector<int32_t> counts = ints_to_host(r.counts.view());
  read_on_host(r.writes.view(), [&](const View& writes) {
    for (int64_t o = 0; o < owners; ++o) {
      const int32_t* write = writes.ptr<int32_t>() + o * entries * 3;
      for (int32_t i = 0; i < counts[static_cast<size_t>(o)]; ++i, write += 3) {
        if (write[2] >= 0) {
          fn(o, write[1], write[2]);
        }
      }
    }
  });
}

// Calls put(owner, slot, row, bytes of a row) for each slot that was written. Rows of a GPU are
// copied to the host for it.
template <typename Put>
void for_written(const FwpkmResult& r, Put&& put) {
  const auto bytes = static_cast<size_t>(r.rows.dim(1)) * dtype_size(r.rows.view().dtype);
  read_on_host(r.rows.view(), [&](const View& rows) {
    for_writes(r, [&](int64_t owner, int32_t slot, int32_t row) {
      put(owner, slot, static_cast<const std::byte*>(rows.data) + static_cast<size_t>(row) * bytes,
          bytes);
    });
  });
}

// Puts all rows that were written into a table [slots, dv] of the same device.
void put_written(const FwpkmResult& r, const View& values);
// On a GPU, without waiting for it.
void put_written_cuda(const FwpkmResult& r, const View& values);

}  // namespace fwpkm
