// A hash of content, to notice damage and to tell one tokenizer from another. Not for secrets.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "base/random.h"

namespace fwpkm {

// 64 bits over `size` bytes. The same on every machine of our byte order (little-endian).
inline uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = mix_bits(seed ^ (size * 0x9e3779b97f4a7c15ull));
  for (; size >= 8; size -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, 8);
    hash = mix_bits(hash + word) ^ 0xa0761d6478bd642full;
  }
  uint64_t rest = 0;
  if (size > 0) {  // no bytes may be no address either, which memcpy forbids
    std::memcpy(&rest, bytes, size);
  }
  return mix_bits(hash + rest);
}

// 64 bits over large data, on all threads: about as fast as memory is read. Another function than
// hash_bytes. The value depends on every bit, on the order and on the length, not on the number of
// threads; it is the same on every machine of our byte order and may be kept in files.
uint64_t hash_wide(const void* data, size_t size, uint64_t seed = 0);

// 128 bits as 32 hexadecimal digits.
inline std::string hash_hex(std::string_view content) {
  return fmt::format("{:016x}{:016x}", hash_bytes(content.data(), content.size(), 1),
                     hash_bytes(content.data(), content.size(), 2));
}

}  // namespace fwpkm
