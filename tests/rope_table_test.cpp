// Rotary tables against angles derived another way, and against fixed numbers.
#include "ops/norm_rope/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace fwpkm {
namespace {

struct Table {
  std::vector<double> cos, sin;
  int64_t half;

  Table(const RopeSettings& settings, int64_t first, int64_t count)
      : half(rotary_dims(settings) / 2) {
    rope_table(settings, first, count, &cos, &sin);
  }
};

TEST(RopeTable, PlainAngles) {
  const RopeSettings settings{.head_dim = 40, .rotary_fraction = 0.5, .theta = 500.0};
  const Table table(settings, 3, 5);
  ASSERT_EQ(table.half, 10);
  ASSERT_EQ(table.cos.size(), 50u);
  // Each pair is slower than the one before by the same ratio.
  const double ratio = std::exp(-std::log(500.0) / 10);
  for (int64_t t = 0; t < 5; ++t) {
    double angle = static_cast<double>(t + 3);
    for (int64_t i = 0; i < 10; ++i, angle *= ratio) {
      EXPECT_NEAR(table.cos[t * 10 + i], std::cos(angle), 1e-13);
      EXPECT_NEAR(table.sin[t * 10 + i], std::sin(angle), 1e-13);
    }
  }
}

TEST(RopeTable, StartsAnywhere) {
  const RopeSettings settings{.head_dim = 16, .yarn_factor = 2.0, .yarn_original_length = 512};
  const Table all(settings, 0, 100), end(settings, 90, 10);
  EXPECT_TRUE(std::equal(end.cos.begin(), end.cos.end(), all.cos.begin() + 90 * 8));
  EXPECT_TRUE(std::equal(end.sin.begin(), end.sin.end(), all.sin.begin() + 90 * 8));
}

// The ramp's ends found by counting turns over the original context, pair by pair, instead of by
// logarithms: the last pair with at least 32 turns and the first with at most one.
TEST(RopeTable, YarnSlowsSlowPairsDown) {
  for (const RopeSettings& settings :
       {RopeSettings{64, 1.0, 10000.0, 4.0, 2048}, RopeSettings{128, 0.25, 1e6, 8.0, 4096},
        RopeSettings{64, 0.25, 10000.0, 32.0, 8192}, RopeSettings{96, 0.5, 1e7, 2.5, 32768}}) {
    const auto dims = static_cast<double>(rotary_dims(settings));
    const auto turns = [&](double pair) {
      return static_cast<double>(settings.yarn_original_length) *
             std::pow(settings.theta, -2 * pair / dims) / (2 * std::numbers::pi);
    };
    double first = 0, last = 0;
    while (turns(first + 1) >= 32) {
      ++first;
    }
    while (turns(last) > 1) {
      ++last;
    }
    const double gain = 1.0 + std::log(settings.yarn_factor) / 10;
    const Table table(settings, 1, 1);
    for (int64_t i = 0; i < table.half; ++i) {
      const double trained = std::pow(settings.theta, -2.0 * static_cast<double>(i) / dims);
      const double stretched = trained / settings.yarn_factor;
      const auto pair = static_cast<double>(i);
      const double angle = pair <= first ? trained
                           : pair >= last
                               ? stretched
                               : trained + (stretched - trained) * (pair - first) / (last - first);
      EXPECT_NEAR(table.cos[i], gain * std::cos(angle), 1e-13) << "pair " << i;
      EXPECT_NEAR(table.sin[i], gain * std::sin(angle), 1e-13) << "pair " << i;
    }
  }
}

// Numbers worked out outside of this program, by the formulas of the YaRN paper.
TEST(RopeTable, YarnNumbers) {
  struct Number {
    int64_t position, pair;
    double cos, sin;
  };
  const auto expect = [](const RopeSettings& settings, std::initializer_list<Number> numbers) {
    for (const Number& n : numbers) {
      const Table table(settings, n.position, 1);
      EXPECT_NEAR(table.cos[n.pair], n.cos, 1e-10) << n.position << " " << n.pair;
      EXPECT_NEAR(table.sin[n.pair], n.sin, 1e-10) << n.position << " " << n.pair;
    }
  };
  expect({64, 1.0, 10000.0, 4.0, 2048}, {{1, 0, 0.6152041098606474, 0.9581236329364153},
                                         {1000, 9, 0.025874855637075873, 1.1383354007613338},
                                         {1000, 14, 0.6723229960992969, -0.9189443844416108},
                                         {12345, 21, 0.5808427720747301, 0.9793358294830479},
                                         {12345, 31, 1.043552347695945, 0.4554947753805614}});
  expect({128, 0.25, 1e6, 8.0, 4096}, {{1000, 5, -0.8781463773663252, 0.8294504322182278},
                                       {12345, 8, 0.03342115194995838, 1.2074817208516835},
                                       {12345, 15, 1.2079360665879642, 0.0044202516447123565}});
}

TEST(RopeTable, RefusesWhatCannotBe) {
  std::vector<double> cos, sin;
  EXPECT_THROW(rope_table({.head_dim = 10, .rotary_fraction = 0.5}, 0, 1, &cos, &sin), Error);
  EXPECT_THROW(rope_table({.head_dim = 8, .yarn_factor = 2.0}, 0, 1, &cos, &sin), Error);
  rope_table({.head_dim = 8, .rotary_fraction = 0.0}, 0, 3, &cos, &sin);
  EXPECT_TRUE(cos.empty());
}

}  // namespace
}  // namespace fwpkm
