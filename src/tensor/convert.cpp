#include "tensor/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace fwpkm {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold little-endian numbers");

template <typename From, typename To, typename F>
void load_each(const std::byte* from, size_t count, To* to, F convert) {
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(convert(value));
  }
}

template <typename To, typename From, typename F>
void store_each(const From* from, size_t count, std::byte* to, F convert) {
  for (size_t i = 0; i < count; ++i) {
    const To value = convert(from[i]);
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
  }
}

constexpr auto kSame = [](auto value) { return value; };

// Narrows a double so that rounding the result once more, to a shorter format, gives what rounding
// the double itself would: truncated, and the last bit set if anything was lost (round to odd).
float narrow_to_odd(double value) {
  const auto rounded = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(rounded) == value) {
    return rounded;
  }
  auto bits = std::bit_cast<uint32_t>(rounded);
  if (std::fabs(static_cast<double>(rounded)) > std::fabs(value)) {
    bits -= 1;
  }
  return std::bit_cast<float>(bits | 1u);
}

float narrow_to_odd(float value) {
  return value;
}

[[noreturn]] void refuse(DType type, const char* what) {
  fail("tensor", "{} cannot be converted {}", dtype_name(type), what);
}

template <typename To>
void load_floating(DType type, const std::byte* from, size_t count, To* to) {
  switch (type) {
    case DType::kF64:
      return load_each<double>(from, count, to, kSame);
    case DType::kF32:
      return load_each<float>(from, count, to, kSame);
    case DType::kF16:
      return load_each<uint16_t>(from, count, to, f16_to_float);
    case DType::kBF16:
      return load_each<uint16_t>(from, count, to, bf16_to_float);
    case DType::kI64:
      return load_each<int64_t>(from, count, to, kSame);
    case DType::kI32:
      return load_each<int32_t>(from, count, to, kSame);
    case DType::kI16:
      return load_each<int16_t>(from, count, to, kSame);
    case DType::kI8:
      return load_each<int8_t>(from, count, to, kSame);
    case DType::kU8:
    case DType::kBool:
      return load_each<uint8_t>(from, count, to, kSame);
  }
}

template <typename From>
void store_floating(DType type, const From* from, size_t count, std::byte* to) {
  switch (type) {
    case DType::kF64:
      return store_each<double>(from, count, to, [](From v) { return static_cast<double>(v); });
    case DType::kF32:
      return store_each<float>(from, count, to, [](From v) { return static_cast<float>(v); });
    case DType::kF16:
      return store_each<uint16_t>(from, count, to,
                                  [](From v) { return float_to_f16(narrow_to_odd(v)); });
    case DType::kBF16:
      return store_each<uint16_t>(from, count, to,
                                  [](From v) { return float_to_bf16(narrow_to_odd(v)); });
    default:
      refuse(type, "from floating-point numbers; give integers");
  }
}

template <typename To>
size_t store_integers(const int64_t* from, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    if (!std::in_range<To>(from[i])) {
      return i;
    }
    const auto value = static_cast<To>(from[i]);
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
  }
  return count;
}

}  // namespace

void load_elements(DType type, const std::byte* from, size_t count, float* to) {
  load_floating(type, from, count, to);
}

void load_elements(DType type, const std::byte* from, size_t count, double* to) {
  load_floating(type, from, count, to);
}

void load_elements(DType type, const std::byte* from, size_t count, int64_t* to) {
  switch (type) {
    case DType::kI64:
      return load_each<int64_t>(from, count, to, kSame);
    case DType::kI32:
      return load_each<int32_t>(from, count, to, kSame);
    case DType::kI16:
      return load_each<int16_t>(from, count, to, kSame);
    case DType::kI8:
      return load_each<int8_t>(from, count, to, kSame);
    case DType::kU8:
    case DType::kBool:
      return load_each<uint8_t>(from, count, to, kSame);
    default:
      refuse(type, "to integers; read it as floating-point numbers");
  }
}

void store_elements(DType type, const float* from, size_t count, std::byte* to) {
  store_floating(type, from, count, to);
}

void store_elements(DType type, const double* from, size_t count, std::byte* to) {
  store_floating(type, from, count, to);
}

size_t store_elements(DType type, const int64_t* from, size_t count, std::byte* to) {
  switch (type) {
    case DType::kI64:
      return store_integers<int64_t>(from, count, to);
    case DType::kI32:
      return store_integers<int32_t>(from, count, to);
    case DType::kI16:
      return store_integers<int16_t>(from, count, to);
    case DType::kI8:
      return store_integers<int8_t>(from, count, to);
    case DType::kU8:
      return store_integers<uint8_t>(from, count, to);
    case DType::kBool:
      for (size_t i = 0; i < count; ++i) {
        if (from[i] != 0 && from[i] != 1) {
          return i;
        }
        to[i] = static_cast<std::byte>(from[i]);
      }
      return count;
    default:
      refuse(type, "from integers; give floating-point numbers");
  }
}

}  // namespace fwpkm
