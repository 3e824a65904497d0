// Safetensors files from a header text and data, well formed or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace fwpkm {

inline std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(length >> (8 * i));
  }
  return bytes;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return length_bytes(header.size()) + header + data;
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void write_safetensors(const std::filesystem::path& path, const std::string& header,
                              const std::string& data) {
  write_bytes(path, safetensors_bytes(header, data));
}

}  // namespace fwpkm
