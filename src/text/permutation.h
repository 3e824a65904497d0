// A seeded permutation of 0..n-1 that is computed, not stored: no memory however large n is.
#pragma once

#include <bit>
#include <cstdint>

#include "base/random.h"

namespace fwpkm {

// A Feistel network on the smallest even number of bits that holds n (so on fewer than 4n
// numbers); results outside 0..n-1 are sent through again until one falls inside.
class Permutation {
 public:
  // n > 0.
  Permutation(uint64_t n, uint64_t seed, uint64_t stream) : n_(n), random_(seed, stream) {
    half_ = (std::bit_width(n - 1) + 1) / 2;
  }

  // i < n.
  uint64_t operator()(uint64_t i) const {
    if (half_ == 0) {
      return 0;
    }
    do {
      i = shuffle(i);
    } while (i >= n_);
    return i;
  }

 private:
  uint64_t shuffle(uint64_t x) const {
    const uint64_t mask = (1ull << half_) - 1;
    uint64_t left = x >> half_, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (random_.bits_at(round << 32 | right) >> 16 & mask);
      left = right;
      right = mixed;
    }
    return left << half_ | right;
  }

  uint64_t n_;
  int half_;
  Random random_;
};

}  // namespace fwpkm
