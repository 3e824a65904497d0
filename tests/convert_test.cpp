#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"

namespace fwpkm {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of a 16-bit float, from the definition.
double value_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

struct Half {
  DType type;
  int exponent_bits;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);

  uint16_t quiet_bit() const { return static_cast<uint16_t>(1 << (14 - exponent_bits)); }
  uint16_t infinity() const {
    return static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  }
  uint16_t store(double value) const {
    uint16_t bits = 0;
    store_elements(type, &value, 1, reinterpret_cast<std::byte*>(&bits));
    return bits;
  }
};

void PrintTo(const Half& half, std::ostream* out) {
  *out << dtype_name(half.type);
}

constexpr Half kF16{DType::kF16, 5, f16_to_float, float_to_f16};
constexpr Half kBF16{DType::kBF16, 8, bf16_to_float, float_to_bf16};

class Halves : public testing::TestWithParam<Half> {};
INSTANTIATE_TEST_SUITE_P(Types, Halves, testing::Values(kF16, kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param.type)); });

TEST_P(Halves, AllPatternsHaveTheirValueAndRoundTrip) {
  const Half& half = GetParam();
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double expected = value_of(bits, half.exponent_bits);
    const float value = half.to_float(bits);
    ASSERT_EQ(std::isnan(value), std::isnan(expected)) << i;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << i;
    if (std::isnan(expected)) {
      // As in hardware: the payload stays, a signalling NaN becomes quiet.
      ASSERT_EQ(half.from_float(value), bits | half.quiet_bit()) << i;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << i;
      ASSERT_EQ(half.from_float(value), bits) << i;
      ASSERT_EQ(half.store(value), bits) << i;
    }
  }
}

TEST_P(Halves, RoundsToNearestEvenBetweenAllNeighbours) {
  const Half& half = GetParam();
  for (uint16_t low = 0; low < half.infinity(); ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double a = value_of(low, half.exponent_bits);
    // Infinity stands where the next power of two would be.
    const double b = high == half.infinity()
                         ? 2 * value_of(low, half.exponent_bits) -
                               value_of(static_cast<uint16_t>(low - 1), half.exponent_bits)
                         : value_of(high, half.exponent_bits);
    const double middle = a + (b - a) / 2;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const double sign : {1.0, -1.0}) {
      const uint16_t bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(half.store(sign * middle), even | bit) << low;
      // A hair off the middle, which a float in between would lose.
      ASSERT_EQ(half.store(sign * std::nextafter(middle, 0)), low | bit) << low;
      ASSERT_EQ(half.store(sign * std::nextafter(middle, HUGE_VAL)), high | bit) << low;
      const auto narrow = static_cast<float>(middle);
      if (narrow == middle) {
        const auto signed_middle = static_cast<float>(sign * middle);
        ASSERT_EQ(half.from_float(signed_middle), even | bit) << low;
        ASSERT_EQ(half.from_float(std::nextafter(signed_middle, 0.0f)), low | bit) << low;
        ASSERT_EQ(half.from_float(std::nextafter(signed_middle, static_cast<float>(sign) * kInf)),
                  high | bit)
            << low;
      }
    }
  }
}

TEST_P(Halves, ExtremesOfFloatAndDouble) {
  const Half& half = GetParam();
  const uint16_t inf = half.infinity();
  EXPECT_EQ(half.from_float(kInf), inf);
  EXPECT_EQ(half.from_float(-kInf), inf | 0x8000);
  EXPECT_EQ(half.from_float(std::numeric_limits<float>::max()), inf);
  EXPECT_EQ(half.from_float(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(half.from_float(0.0f), 0);
  EXPECT_EQ(half.from_float(-0.0f), 0x8000);
  EXPECT_EQ(half.store(1e300), inf);
  EXPECT_EQ(half.store(-1e300), inf | 0x8000);
  EXPECT_EQ(half.store(1e-300), 0);
  EXPECT_EQ(half.store(-1e-300), 0x8000);
  const uint16_t nan = half.store(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(value_of(nan, half.exponent_bits)));
  // A NaN with its payload in the last bits only must not turn into infinity.
  const float faint = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(value_of(half.from_float(faint), half.exponent_bits)));
}

template <typename T>
void expect_integers(DType type) {
  const std::vector<int64_t> values = {std::numeric_limits<T>::min(), 0, 1, 77,
                                       std::numeric_limits<T>::max()};
  std::vector<std::byte> bytes(values.size() * sizeof(T) + 1);
  ASSERT_EQ(store_elements(type, values.data(), values.size(), bytes.data() + 1), values.size());
  std::vector<int64_t> integers(values.size());
  load_elements(type, bytes.data() + 1, values.size(), integers.data());
  EXPECT_EQ(integers, values);
  std::vector<double> doubles(values.size());
  load_elements(type, bytes.data() + 1, values.size(), doubles.data());
  std::vector<float> floats(values.size());
  load_elements(type, bytes.data() + 1, values.size(), floats.data());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(doubles[i], static_cast<double>(values[i]));
    EXPECT_EQ(floats[i], static_cast<float>(values[i]));
  }
  if constexpr (sizeof(T) < 8) {
    const std::array<int64_t, 3> large = {
        1, static_cast<int64_t>(std::numeric_limits<T>::max()) + 1, 2};
    EXPECT_EQ(store_elements(type, large.data(), 3, bytes.data()), 1u);
    const std::array<int64_t, 2> small = {1,
                                          static_cast<int64_t>(std::numeric_limits<T>::min()) - 1};
    EXPECT_EQ(store_elements(type, small.data(), 2, bytes.data()), 1u);
  }
}

TEST(Convert, IntegersKeepTheirRange) {
  expect_integers<int64_t>(DType::kI64);
  expect_integers<int32_t>(DType::kI32);
  expect_integers<int16_t>(DType::kI16);
  expect_integers<int8_t>(DType::kI8);
  expect_integers<uint8_t>(DType::kU8);
  const std::array<int64_t, 3> flags = {0, 1, 2};
  std::array<std::byte, 3> bytes{};
  EXPECT_EQ(store_elements(DType::kBool, flags.data(), 3, bytes.data()), 2u);
}

TEST(Convert, FloatAndDoubleNarrowOnce) {
  const std::array<double, 4> values = {0.1, 1e300, -1e-300, 16777217.0};
  std::array<std::byte, 16> bytes{};
  store_elements(DType::kF32, values.data(), 4, bytes.data());
  std::array<float, 4> floats{};
  load_elements(DType::kF32, bytes.data(), 4, floats.data());
  EXPECT_EQ(floats[0], 0.1f);
  EXPECT_EQ(floats[1], kInf);
  EXPECT_TRUE(floats[2] == 0 && std::signbit(floats[2]));
  EXPECT_EQ(floats[3], 16777216.0f);
}

TEST(Convert, RefusesToMixFloatsAndIntegers) {
  std::array<std::byte, 8> bytes{};
  const float number = 1;
  const int64_t integer = 1;
  int64_t out = 0;
  EXPECT_THROW(store_elements(DType::kI32, &number, 1, bytes.data()), Error);
  EXPECT_THROW(store_elements(DType::kF32, &integer, 1, bytes.data()), Error);
  EXPECT_THROW(load_elements(DType::kBF16, bytes.data(), 1, &out), Error);
}

}  // namespace
}  // namespace fwpkm
