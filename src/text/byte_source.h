// The bytes of a file, decompressed where its name ends in .gz or .zst, without ever holding more
// than a window of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace fwpkm {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `out` and returns how much; 0 only at the end of the file. A compressed
  // file that is damaged or cut short is an error.
  virtual size_t read(std::span<char> out) = 0;
  // Bytes taken from the file itself so far.
  virtual uint64_t consumed() const = 0;
};

// The window of a zstd frame may be up to 2^28 bytes (--long=28), the decoder's largest block of
// memory.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

}  // namespace fwpkm
