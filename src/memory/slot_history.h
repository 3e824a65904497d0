// What was written into a slot: the last few writes, with the text around them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fwpkm {

// One write. A token's query found the slot, and the slot was moved towards the value of the token
// that came `lookahead` later.
struct SlotWrite {
  static constexpr int kBefore = 4, kAfter = 5;

  int64_t position = -1;  // of the query's token, counted from the session's first; -1: no write
  // The part of the error that the write put onto the slot: step * gate * weight / writes of the
  // slot in this update.
  float strength = 0;
  // The query's token at [kBefore], with the tokens before and after it; -1: there was none, or it
  // had not been read yet.
  std::array<int32_t, kBefore + 1 + kAfter> tokens{};
  int32_t unused = 0;  // so that no byte is left undefined

  int32_t query() const { return tokens[kBefore]; }
  // -1 also where it is further away than the tokens kept.
  int32_t target(int64_t lookahead) const {
    return lookahead <= kAfter ? tokens[static_cast<size_t>(kBefore + lookahead)] : -1;
  }
  // Whether the tokens here are those of `text` wherever the two meet, with the query in the text,
  // and meet in at least `least` tokens or in all of the text.
  bool stands_in(std::span<const int32_t> text, int least) const;
};

// The newest first. Of fixed size, so that it can be a row of an overlay.
struct SlotHistory {
  static constexpr int kWrites = 4;

  int64_t count = 0;  // of all writes that the slot has seen
  std::array<SlotWrite, kWrites> writes;

  // From a row; null is nobody's.
  static SlotHistory at(const std::byte* row) {
    SlotHistory history;
    if (row != nullptr) {
      std::memcpy(&history, row, sizeof(history));
    }
    return history;
  }

  void push(const SlotWrite& write) {
    for (size_t i = kWrites - 1; i > 0; --i) {
      writes[i] = writes[i - 1];
    }
    writes[0] = write;
    ++count;
  }
  // Those that there are.
  std::span<const SlotWrite> kept() const {
    size_t n = 0;
    while (n < writes.size() && writes[n].position >= 0) {
      ++n;
    }
    return {writes.data(), n};
  }
};
static_assert(sizeof(SlotWrite) == 56 && sizeof(SlotHistory) == 232);

}  // namespace fwpkm
