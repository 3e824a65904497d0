// Safetensors files whose lengths agree again after a mutation.
#pragma once

#include <algorithm>
#include <string>

#include "fuzz.h"

namespace fwpkm::fuzz {

// The largest number after the comma of a `"data_offsets":[a,b]`: where the data should end.
inline size_t end_of_data(const std::string& header) {
  constexpr std::string_view kKey = "\"data_offsets\":[";
  size_t end = 0;
  for (size_t at = header.find(kKey); at != header.npos; at = header.find(kKey, at + 1)) {
    const size_t comma = header.find(',', at);
    if (comma != header.npos) {
      end = std::max<size_t>(end, std::strtoull(header.c_str() + comma + 1, nullptr, 10));
    }
  }
  return end;
}

// Makes the length in front tell where the JSON object closes, and cuts or fills the data to the
// end that the header names: most mutations break one of the two, and the reader would look no
// further.
inline std::string repair_lengths(std::string bytes) {
  constexpr size_t kLength = 8, kMostData = 64u << 10;
  if (bytes.size() < kLength) {
    return bytes;
  }
  int depth = 0;
  bool quoted = false;
  size_t at = kLength;
  for (; at < bytes.size(); ++at) {
    const char c = bytes[at];
    if (quoted) {
      at += c == '\\' ? 1 : 0;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      break;
    }
  }
  const size_t header_end = std::min(at + 1, bytes.size());
  store<uint64_t>(bytes, 0, header_end - kLength);
  const size_t data = end_of_data(bytes.substr(kLength, header_end - kLength));
  bytes.resize(header_end + std::min(data, kMostData));
  return bytes;
}

}  // namespace fwpkm::fuzz
