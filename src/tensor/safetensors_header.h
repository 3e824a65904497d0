// The header of a safetensors file: its fields, their checks, and the limits we set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace fwpkm {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxFileRank = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in bytes, from the end of the header
  uint64_t end = 0;

  uint64_t count() const { return (end - begin) / dtype_size(dtype); }
};

struct SafeTensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // in the order of their data
  uint64_t data_begin = 0;          // of the file
};

// Parses and checks the header of a whole file's bytes; throws Error, naming `path`, on anything
// that is not as the format demands.
SafeTensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& path);

// Bytes that a tensor takes. False when a dimension is negative, or when the product of the
// non-zero dimensions overflows: that even an empty tensor must not do, so that multiplying the
// dimensions in any order is safe.
bool checked_bytes(std::span<const int64_t> shape, DType type, uint64_t* bytes);

// A name from a file, quoted and fit to be shown: shortened, without control characters.
std::string shown_name(std::string_view name);

}  // namespace fwpkm
