// A number that stands for a list of tokens, to pin what a seed gives.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace fwpkm {

template <typename List>
uint64_t token_hash(const List& tokens) {
  uint64_t hash = 0;
  for (const auto token : tokens) {
    hash = mix_bits(hash + static_cast<uint64_t>(token) + 1);
  }
  return hash;
}

}  // namespace fwpkm
