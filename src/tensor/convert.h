// Conversion of runs of elements between the types of files and those of the host.
//
// The typed side is an aligned array; the other side is raw bytes of any alignment, little-endian.
// All rounding is to nearest, ties to even, done once: a double goes to F16 or BF16 directly, not
// by way of a rounded float. What is too large becomes infinity; a NaN stays a NaN of its sign.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace fwpkm {

// Any type to floating point. Integers beyond 2^24 (float) or 2^53 (double) are rounded.
void load_elements(DType type, const std::byte* from, size_t count, float* to);
void load_elements(DType type, const std::byte* from, size_t count, double* to);
// Integer types and BOOL only.
void load_elements(DType type, const std::byte* from, size_t count, int64_t* to);

// To floating-point types only.
void store_elements(DType type, const float* from, size_t count, std::byte* to);
void store_elements(DType type, const double* from, size_t count, std::byte* to);
// To integer types and BOOL only. Returns the index of the first value out of range, where it
// stops, or `count`.
size_t store_elements(DType type, const int64_t* from, size_t count, std::byte* to);

}  // namespace fwpkm
