#include "tensor/dtype.h"

#include <array>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace fwpkm {
namespace {

struct Row {
  DType type;
  size_t size;
  std::string_view name;
};

constexpr std::array<Row, 10> kTypes = {{
    {DType::kF64, 8, "F64"},
    {DType::kF32, 4, "F32"},
    {DType::kF16, 2, "F16"},
    {DType::kBF16, 2, "BF16"},
    {DType::kI64, 8, "I64"},
    {DType::kI32, 4, "I32"},
    {DType::kI16, 2, "I16"},
    {DType::kI8, 1, "I8"},
    {DType::kU8, 1, "U8"},
    {DType::kBool, 1, "BOOL"},
}};

}  // namespace

size_t dtype_size(DType type) {
  return kTypes[static_cast<size_t>(type)].size;
}

std::string_view dtype_name(DType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

bool parse_dtype(std::string_view name, DType* type) {
  for (const Row& row : kTypes) {
    if (row.name == name) {
      *type = row.type;
      return true;
    }
  }
  return false;
}

bool is_float(DType type) {
  return type <= DType::kBF16;
}

float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const int exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(mantissa | 0x400u), exponent - 25);
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
  }
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) {
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  // Scale so that the half's last place is 1, round to even there, and put the parts together.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const bool subnormal = magnitude == 0.0f || exponent < -13;
  const int shift = subnormal ? 24 : 11 - exponent;
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, shift)));
  if (subnormal) {
    return static_cast<uint16_t>(sign | units);
  }
  const auto biased = static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (biased + (units - 0x400u)));
}

}  // namespace fwpkm
