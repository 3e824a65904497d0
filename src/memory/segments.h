// Grouping reads by slot, so that sums over the reads of a slot have one owner and one order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fwpkm {

// An element of a list, together with its place there; sorts by id, then by place.
struct Placed {
  uint64_t bits;

  int32_t id() const { return static_cast<int32_t>(bits >> 32); }
  int32_t place() const { return static_cast<int32_t>(bits & 0xffffffffu); }
};

// Sorts ids[0..count), each in 0..limit-1, keeping the places of equal ids in order. Costs
// O(count + count / 16384 * 2048) on all threads: nothing of the order of `limit`. The result lies
// in `scratch`, which is sort_by_id_scratch(count) bytes, aligned to 64.
const Placed* sort_by_id(const int32_t* ids, int64_t count, int64_t limit, void* scratch);
size_t sort_by_id_scratch(int64_t count);

// Calls fn(begin, end) for each run of equal ids that starts in sorted[first..last); runs may end
// past `last`. Cutting 0..count into ranges and giving each to a thread visits every run once.
template <typename Fn>
void for_segments(const Placed* sorted, int64_t count, int64_t first, int64_t last, Fn&& fn) {
  int64_t begin = first;
  while (begin > 0 && begin < last && sorted[begin].id() == sorted[begin - 1].id()) {
    ++begin;
  }
  while (begin < last) {
    int64_t end = begin + 1;
    while (end < count && sorted[end].id() == sorted[begin].id()) {
      ++end;
    }
    fn(begin, end);
    begin = end;
  }
}

}  // namespace fwpkm
