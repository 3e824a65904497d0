// Which entry a slot has, for the few slots of a table that a sequence touches.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fwpkm {

// A hash table from slots to numbers, in memory that the caller gives. It costs nothing of the
// order of the table of slots, and nothing is ever taken out of it.
class SlotMap {
 public:
  // Bytes for up to `entries` slots, at most half full.
  static size_t bytes(int64_t entries) {
    return std::bit_ceil(static_cast<size_t>(2 * entries + 2)) * sizeof(Entry);
  }

  SlotMap(void* memory, int64_t entries)
      : entries_(static_cast<Entry*>(memory)), mask_(bytes(entries) / sizeof(Entry) - 1) {}

  void clear() { std::memset(entries_, 0xff, (mask_ + 1) * sizeof(Entry)); }

  // The number of a slot; one that is new gets `next`.
  int32_t find_or_add(int32_t slot, int32_t next) {
    size_t at = static_cast<size_t>(static_cast<uint32_t>(slot) * 0x9e3779b97f4a7c15ull >> 32);
    for (;; ++at) {
      Entry& entry = entries_[at & mask_];
      if (entry.slot == slot) {
        return entry.number;
      }
      if (entry.slot < 0) {
        entry = {slot, next};
        return next;
      }
    }
  }

 private:
  struct Entry {
    int32_t slot, number;
  };
  Entry* entries_;
  size_t mask_;
};

}  // namespace fwpkm
