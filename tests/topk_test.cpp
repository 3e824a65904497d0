// The fast selection against sorting everything: exactly equal, ties included.
#include "memory/topk.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace fwpkm {
namespace {

// Scratch as kernels get it: exactly as large as asked for, aligned, not initialised.
struct Scratch {
  explicit Scratch(size_t bytes) : data(std::aligned_alloc(64, (bytes + 63) / 64 * 64)) {}
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  void* data;
};

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

// How the scores of a case are drawn: from continuous to nothing but ties.
float draw(Random& random, int kind) {
  switch (kind) {
    case 0:
      return static_cast<float>(random.normal());
    case 1:
      return static_cast<float>(random.below(5)) - 2.0f;  // many duplicates
    case 2:
      return 1.5f;
    case 3:
      return random.below(2) == 0 ? 0.0f : -0.0f;  // equal, though their bits differ
    case 4:
      // Large with small differences: sums of different pairs become equal by rounding.
      return 1e7f + static_cast<float>(random.below(8)) * 0.5f;
    default:
      return static_cast<float>(random.below(40)) * 0.125f + (random.below(3) == 0 ? 4096.0f : 0);
  }
}
constexpr int kKinds = 6;

void expect_top_k(const Floats& scores, int64_t k, const std::string& what) {
  const auto n = static_cast<int64_t>(scores.size());
  Floats best(k), expected_best(k);
  Ids ids(k), expected_ids(k);
  const Scratch scratch(top_k_scratch(n));
  top_k(scores.data(), n, k, best.data(), ids.data(), scratch.data);
  top_k_reference(scores.data(), n, k, expected_best.data(), expected_ids.data());
  ASSERT_EQ(ids, expected_ids) << what;
  ASSERT_EQ(best, expected_best) << what;
}

TEST(TopK, EqualsSorting) {
  for (const int64_t n : {1, 2, 8, 17, 63, 128, 512}) {
    for (const int64_t k :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8}, int64_t{32}, n / 2, n}) {
      if (k < 1 || k > n) {
        continue;
      }
      for (int kind = 0; kind < kKinds; ++kind) {
        for (uint64_t seed = 0; seed < 40; ++seed) {
          Random random(seed, n * 1000 + k * 10 + kind);
          Floats scores(n);
          for (float& s : scores) {
            s = draw(random, kind);
          }
          expect_top_k(scores, k, fmt::format("n={} k={} kind={} seed={}", n, k, kind, seed));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST(TopK, LongRowsAndLargeK) {
  for (const auto& [n, k] : {std::pair{5000, 300}, {5000, 8}, {3001, 1000}, {1000, 257}}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      Random random(kind, n + k);
      Floats scores(n);
      for (float& s : scores) {
        s = draw(random, kind);
      }
      expect_top_k(scores, k, fmt::format("n={} k={} kind={}", n, k, kind));
    }
  }
}

TEST(TopK, SortedRows) {
  for (const int64_t n : {17, 512, 513}) {
    Floats up(n), down(n);
    for (int64_t i = 0; i < n; ++i) {
      up[i] = static_cast<float>(i / 3);
      down[i] = static_cast<float>(-i / 3);
    }
    expect_top_k(up, std::min<int64_t>(n, 32), "up");
    expect_top_k(down, std::min<int64_t>(n, 32), "down");
  }
}

TEST(TopK, Infinities) {
  const float inf = std::numeric_limits<float>::infinity();
  Floats scores(512, -inf);
  scores[40] = inf;
  scores[300] = 1;
  expect_top_k(scores, 8, "mostly -inf");
  expect_top_k(Floats(512, -inf), 32, "all -inf");
  expect_top_k(Floats(100, inf), 32, "all inf");
}

// A model that diverges must not make a kernel read outside the table.
TEST(TopK, NotANumberComesLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t n : {2, 17, 512}) {
    for (const int64_t numbers : {int64_t{0}, int64_t{1}, n / 2, n - 1}) {
      const int64_t k = std::min<int64_t>(n, 32);
      Floats scores(n, nan), best(k);
      Ids ids(k);
      for (int64_t i = 0; i < numbers; ++i) {
        scores[i * n / std::max<int64_t>(numbers, 1)] = static_cast<float>(i);
      }
      const Scratch scratch(top_k_scratch(n)), pair_scratch(product_top_k_scratch(k));
      top_k(scores.data(), n, k, best.data(), ids.data(), scratch.data);
      const std::set<int32_t> different(ids.begin(), ids.end());
      EXPECT_EQ(static_cast<int64_t>(different.size()), k);
      EXPECT_TRUE(*different.begin() >= 0 && *different.rbegin() < n);
      if (numbers > 0) {
        EXPECT_EQ(best[0], static_cast<float>(numbers - 1));
      }
      Floats sums(k);
      Ids slots(k);
      product_top_k(best.data(), ids.data(), best.data(), ids.data(), k, n, sums.data(),
                    slots.data(), pair_scratch.data);
      const std::set<int32_t> chosen(slots.begin(), slots.end());
      EXPECT_EQ(static_cast<int64_t>(chosen.size()), k);
      EXPECT_TRUE(*chosen.begin() >= 0 && *chosen.rbegin() < n * n);
    }
  }
}

TEST(ProductTopK, EqualsSorting) {
  for (const int64_t n : {1, 2, 8, 17, 512}) {
    for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8}, int64_t{17},
                            int64_t{32}, int64_t{33}, std::min<int64_t>(n, 150)}) {
      if (k > n) {
        continue;
      }
      for (int kind = 0; kind < kKinds; ++kind) {
        for (uint64_t seed = 0; seed < (k > 100 ? 4 : 60); ++seed) {
          Random random(seed, n * 1000 + k * 10 + kind);
          Floats row(n), scores[2] = {Floats(k), Floats(k)}, best(k), expected_best(k);
          Ids ids[2] = {Ids(k), Ids(k)}, slots(k), expected_slots(k);
          for (int m = 0; m < 2; ++m) {
            for (float& s : row) {
              // Codebooks of different size: the sums round.
              s = draw(random, kind) * (m == 0 || seed % 2 == 0 ? 1.0f : 0.001f);
            }
            top_k_reference(row.data(), n, k, scores[m].data(), ids[m].data());
          }
          const Scratch scratch(product_top_k_scratch(k));
          product_top_k(scores[0].data(), ids[0].data(), scores[1].data(), ids[1].data(), k, n,
                        best.data(), slots.data(), scratch.data);
          product_top_k_reference(scores[0].data(), ids[0].data(), scores[1].data(), ids[1].data(),
                                  k, n, expected_best.data(), expected_slots.data());
          ASSERT_EQ(slots, expected_slots)
              << fmt::format("n={} k={} kind={} seed={}", n, k, kind, seed);
          ASSERT_EQ(best, expected_best);
        }
      }
    }
  }
}

// Both lists hold the same scores, and the sub-keys fall along them: the pair that wins a tie is
// far down the lists, where (i+1)(j+1) > k.
TEST(ProductTopK, TiesBeyondThePrunedPairs) {
  const int64_t k = 8, n = 100;
  Floats a(k, 1.0f), b(k, 2.0f), best(k), expected_best(k);
  Ids ids(k), slots(k), expected(k);
  for (int64_t i = 0; i < k; ++i) {
    ids[i] = static_cast<int32_t>(n - 1 - i);
  }
  const Scratch scratch(product_top_k_scratch(k));
  product_top_k(a.data(), ids.data(), b.data(), ids.data(), k, n, best.data(), slots.data(),
                scratch.data);
  product_top_k_reference(a.data(), ids.data(), b.data(), ids.data(), k, n, expected_best.data(),
                          expected.data());
  EXPECT_EQ(slots, expected);
  EXPECT_EQ(slots[0], 92 * 100 + 92);
}

}  // namespace
}  // namespace fwpkm
