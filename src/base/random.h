// Random numbers by counter: the value at (seed, stream, index) never depends on what was drawn
// before, on the number of threads or on the platform.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace fwpkm {

// A bijective mix of 64 bits in which every input bit reaches every output bit.
inline uint64_t mix_bits(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return x;
}

class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0)
      : key_(mix_bits(seed + 0x9e3779b97f4a7c15ull) ^
             mix_bits(stream * 0xa0761d6478bd642full + 1)) {}

  uint64_t bits_at(uint64_t index) const { return mix_bits(key_ + mix_bits(index + 1)); }
  // In [0, 1).
  double uniform_at(uint64_t index) const {
    return static_cast<double>(bits_at(index) >> 11) * 0x1.0p-53;
  }
  // Standard normal.
  double normal_at(uint64_t index) const {
    const double u = 1.0 - uniform_at(2 * index);
    const double v = uniform_at(2 * index + 1);
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }

  uint64_t bits() { return bits_at(next_++); }
  double uniform() { return uniform_at(next_++); }
  double normal() { return normal_at((1ull << 62) + next_++); }
  // How many were drawn; setting it goes on from there.
  uint64_t drawn() const { return next_; }
  void set_drawn(uint64_t count) { next_ = count; }
  // Uniform in 0..n-1.
  int64_t below(int64_t n) { return static_cast<int64_t>(uniform() * static_cast<double>(n)); }

 private:
  uint64_t key_;
  uint64_t next_ = 0;
};

}  // namespace fwpkm
