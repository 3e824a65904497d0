#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "base/parallel.h"

namespace fwpkm {
namespace {

constexpr size_t kBlock = 256u << 10;

std::vector<unsigned char> random_bytes(size_t count, uint64_t seed) {
  const Random random(seed);
  std::vector<unsigned char> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<unsigned char>(random.bits_at(i));
  }
  return bytes;
}

uint64_t hash(const std::vector<unsigned char>& bytes) {
  return hash_wide(bytes.data(), bytes.size());
}

// Every input bit flips about half of the output's.
TEST(WideHash, EveryBitMatters) {
  for (const size_t size : {1, 7, 8, 63, 64, 65, 128, 1000}) {
    std::vector<unsigned char> bytes = random_bytes(size, size);
    const uint64_t whole = hash(bytes);
    double flipped = 0;
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      const int changed = std::popcount(hash(bytes) ^ whole);
      EXPECT_GE(changed, 8) << "bit " << bit << " of " << size << " bytes";
      flipped += changed;
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
    // The mean of n numbers with mean 32 and standard deviation 4.
    EXPECT_NEAR(flipped / static_cast<double>(8 * size), 32,
                5 * 4 / std::sqrt(static_cast<double>(8 * size)));
  }
  // In each block of several, near borders and inside.
  std::vector<unsigned char> large = random_bytes(3 * kBlock + 77, 2);
  const uint64_t whole = hash(large);
  for (const size_t at : {size_t{0}, kBlock / 2 + 3, kBlock - 1, kBlock, 2 * kBlock + 64,
                          3 * kBlock - 1, 3 * kBlock, 3 * kBlock + 76}) {
    for (int bit = 0; bit < 8; ++bit) {
      large[at] ^= static_cast<unsigned char>(1 << bit);
      EXPECT_NE(hash(large), whole) << at;
      large[at] ^= static_cast<unsigned char>(1 << bit);
    }
  }
  EXPECT_EQ(hash(large), whole);
}

// Two changed bits never cancel, also in words that the same lane takes.
TEST(WideHash, PairsOfBitsDoNotCancel) {
  for (const unsigned char fill : {0x00, 0xff, 0x3f}) {
    std::vector<unsigned char> bytes(128, fill);
    std::vector<uint64_t> seen = {hash(bytes)};
    const auto flip = [&](size_t bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    };
    for (size_t a = 0; a < 1024; ++a) {
      flip(a);
      seen.push_back(hash(bytes));
      for (size_t b = a + 1; b < 1024; ++b) {
        flip(b);
        seen.push_back(hash(bytes));
        flip(b);
      }
      flip(a);
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }
}

TEST(WideHash, OrderMatters) {
  // Words: any two that differ, in one lane or in two.
  std::vector<unsigned char> words = random_bytes(256, 3);
  std::set<uint64_t> seen = {hash(words)};
  for (size_t a = 0; a < 32; ++a) {
    for (size_t b = a + 1; b < 32; ++b) {
      std::swap_ranges(&words[8 * a], &words[8 * a] + 8, &words[8 * b]);
      EXPECT_TRUE(seen.insert(hash(words)).second) << a << " and " << b;
      std::swap_ranges(&words[8 * a], &words[8 * a] + 8, &words[8 * b]);
    }
  }
  // Blocks, whole ones and the last.
  const std::vector<unsigned char> large = random_bytes(3 * kBlock, 4);
  const uint64_t whole = hash(large);
  std::vector<unsigned char> moved = large;
  std::rotate(moved.begin(), moved.begin() + kBlock, moved.end());
  EXPECT_NE(hash(moved), whole);
  moved = large;
  std::swap_ranges(&moved[0], &moved[0] + kBlock, &moved[kBlock]);
  EXPECT_NE(hash(moved), whole);
}

// Of equal bytes, also zeros, each length has a hash of its own; so has each seed.
TEST(WideHash, LengthAndSeedMatter) {
  for (const unsigned char fill : {0x00, 0xff}) {
    const std::vector<unsigned char> bytes(2 * kBlock + 200, fill);
    std::set<uint64_t> seen;
    size_t count = 0;
    const auto add = [&](size_t size, uint64_t seed) {
      EXPECT_TRUE(seen.insert(hash_wide(bytes.data(), size, seed)).second) << size;
      ++count;
    };
    for (size_t size = 0; size <= 300; ++size) {
      add(size, 0);
    }
    for (size_t near : {kBlock, 2 * kBlock}) {
      for (size_t size = near - 70; size <= near + 70; ++size) {
        add(size, 0);
      }
    }
    for (uint64_t seed = 1; seed < 100; ++seed) {
      add(100, seed);
    }
    EXPECT_EQ(seen.size(), count);
  }
  EXPECT_EQ(hash_wide(nullptr, 0), hash_wide("x", 0));
}

TEST(WideHash, DoesNotDependOnThreadsOrAlignment) {
  const std::vector<unsigned char> bytes = random_bytes(7 * kBlock + 12345, 5);
  std::vector<uint64_t> seen;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    seen.push_back(hash(bytes));
  }
  set_threads(0);
  for (size_t shift = 1; shift < 9; ++shift) {
    std::vector<unsigned char> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    seen.push_back(hash_wide(moved.data() + shift, bytes.size()));
  }
  EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), 1u);
}

// Files hold these values: they must never change.
TEST(WideHash, IsTheSameForever) {
  std::vector<unsigned char> bytes(kBlock + 1001);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * 31 + i / 256);
  }
  EXPECT_EQ(hash_wide(nullptr, 0), 0xaa6869d28864bd66ull);
  EXPECT_EQ(hash_wide("memory", 6), 0x9c812934cf8d41cdull);
  EXPECT_EQ(hash_wide(bytes.data(), 1000), 0x74bd6ce12e72b08aull);
  EXPECT_EQ(hash_wide(bytes.data(), bytes.size()), 0x61a3446563dc7e2eull);
  EXPECT_EQ(hash_wide(bytes.data(), bytes.size(), 9), 0xf9d6efbcf4f346b8ull);
  EXPECT_EQ(hash_bytes("memory", 6), 0xc06c83026cd74194ull);
}

}  // namespace
}  // namespace fwpkm
