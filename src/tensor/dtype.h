// Element types of tensors and of tensors in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fwpkm {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of one element.
size_t dtype_size(DType type);
// The name used in safetensors files: "F64", "BF16", "I64", ...
std::string_view dtype_name(DType type);
// Inverse of dtype_name. False when the name is unknown.
bool parse_dtype(std::string_view name, DType* type);
bool is_float(DType type);

// Conversions between float and the 16-bit formats, rounding to nearest even.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

// A bf16 in memory of the host, where it is only converted.
struct Bf16 {
  uint16_t bits = 0;

  Bf16() = default;
  explicit Bf16(double value) : bits(float_to_bf16(static_cast<float>(value))) {}
  explicit operator double() const { return static_cast<double>(bf16_to_float(bits)); }
};

}  // namespace fwpkm
