#include "memory/segments.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/parallel.h"

namespace fwpkm {
namespace {

constexpr int kMaxDigit = 11;  // bits that one pass of the radix sort looks at
constexpr int64_t kChunk = 16384;
constexpr int64_t kMaxChunks = 64;

int64_t chunks_of(int64_t count) {
  return std::clamp<int64_t>((count + kChunk - 1) / kChunk, 1, kMaxChunks);
}

}  // namespace

size_t sort_by_id_scratch(int64_t count) {
  return static_cast<size_t>(2 * count) * sizeof(Placed) +
         (static_cast<size_t>(chunks_of(count)) << kMaxDigit) * sizeof(uint32_t);
}

// From the lowest digit to the highest; each pass is stable: chunks count their digits, a prefix
// sum over (digit, chunk) says where each chunk puts them, and chunks move their elements.
const Placed* sort_by_id(const int32_t* ids, int64_t count, int64_t limit, void* scratch) {
  auto* from = static_cast<Placed*>(scratch);
  Placed* to = from + count;
  auto* counts = reinterpret_cast<uint32_t*>(to + count);
  const int64_t chunks = chunks_of(count);
  const auto chunk_begin = [&](int64_t c) { return count * c / chunks; };
  parallel_items(chunks, [&](int64_t c) {
    for (int64_t i = chunk_begin(c); i < chunk_begin(c + 1); ++i) {
      from[i].bits = static_cast<uint64_t>(static_cast<uint32_t>(ids[i])) << 32 | i;
    }
  });
  const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(limit - 1, 1)));
  const int passes = (bits + kMaxDigit - 1) / kMaxDigit;
  const int digit = (bits + passes - 1) / passes;
  const int64_t digits = int64_t{1} << digit;
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = 32 + pass * digit;
    const auto digit_of = [&](Placed p) { return p.bits >> shift & (digits - 1); };
    parallel_items(chunks, [&](int64_t c) {
      uint32_t* mine = counts + c * digits;
      std::fill_n(mine, digits, 0u);
      for (int64_t i = chunk_begin(c); i < chunk_begin(c + 1); ++i) {
        ++mine[digit_of(from[i])];
      }
    });
    uint32_t total = 0;
    for (int64_t d = 0; d < digits; ++d) {
      for (int64_t c = 0; c < chunks; ++c) {
        total += std::exchange(counts[c * digits + d], total);
      }
    }
    parallel_items(chunks, [&](int64_t c) {
      uint32_t* mine = counts + c * digits;
      for (int64_t i = chunk_begin(c); i < chunk_begin(c + 1); ++i) {
        to[mine[digit_of(from[i])]++] = from[i];
      }
    });
    std::swap(from, to);
  }
  return from;
}

}  // namespace fwpkm
