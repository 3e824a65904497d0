// Going through what a call of the memory wrote.
#pragma once

#include "ops/fwpkm/fwpkm.h"

namespace fwpkm {

// Calls put(owner, slot, row, bytes of a row) for each slot that was written.
template <typename Put>
void for_written(const FwpkmResult& r, Put&& put) {
  const int64_t owners = r.counts.dim(0), entries = r.writes.dim(0) / owners;
  const auto* rows = static_cast<const std::byte*>(r.rows.view().data);
  const auto bytes = static_cast<size_t>(r.rows.dim(1)) * dtype_size(r.rows.view().dtype);
  for (int64_t o = 0; o < owners; ++o) {
    const int32_t* write = r.writes.view().ptr<int32_t>() + o * entries * 3;
    for (int32_t i = 0; i < r.counts.view().ptr<int32_t>()[o]; ++i, write += 3) {
      if (write[2] >= 0) {
        put(o, write[1], rows + static_cast<size_t>(write[2]) * bytes, bytes);
      }
    }
  }
}

}  // namespace fwpkm
