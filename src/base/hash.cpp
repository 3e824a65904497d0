#include "base/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/parallel.h"

namespace fwpkm {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes in files are of this byte order");

// Blocks are hashed apart, so that threads can share them. Values in files depend on these numbers.
constexpr size_t kBlockBytes = 256u << 10;
constexpr size_t kLanes = 8;
constexpr size_t kStripeBytes = kLanes * sizeof(uint64_t);

// Word i of a block goes to lane i % 8: chains that do not wait for each other. A step is a
// bijection of the lane for each word, and of the word for each lane; so blocks of one length that
// differ in a single word never end in the same lanes.
void take_stripe(const unsigned char* bytes, std::array<uint64_t, kLanes>* lanes) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    uint64_t x = ((*lanes)[i] ^ word) * 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    (*lanes)[i] = x * 0xa0761d6478bd642full;
  }
}

uint64_t hash_block(const unsigned char* bytes, size_t size) {
  std::array<uint64_t, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) {
    lanes[i] = mix_bits(i + 1);
  }
  size_t left = size;
  for (; left >= kStripeBytes; left -= kStripeBytes, bytes += kStripeBytes) {
    take_stripe(bytes, &lanes);
  }
  if (left > 0) {
    std::array<unsigned char, kStripeBytes> last{};
    std::memcpy(last.data(), bytes, left);
    take_stripe(last.data(), &lanes);
  }
  return hash_bytes(lanes.data(), sizeof(lanes), size);
}

}  // namespace

uint64_t hash_wide(const void* data, size_t size, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::vector<uint64_t> blocks(std::max<size_t>(1, (size + kBlockBytes - 1) / kBlockBytes));
  parallel_items(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kBlockBytes;
    blocks[static_cast<size_t>(i)] = hash_block(bytes + begin, std::min(kBlockBytes, size - begin));
  });
  return hash_bytes(blocks.data(), blocks.size() * sizeof(uint64_t), seed);
}

}  // namespace fwpkm
