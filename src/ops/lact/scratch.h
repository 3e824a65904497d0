// What the CPU kernels work in. The same constructors lay it out and count it.
#pragma once

#include <algorithm>

#include "ops/lact/lact.h"

namespace fwpkm {

// Tokens that are worked on at once: sums over a chunk go block by block, so that the tiles stay in
// the cache whatever the chunk is.
inline constexpr int64_t kLactRows = 256;

// Hands out pieces of a block, each aligned to 64 bytes; with a null base it only counts.
class LactPieces {
 public:
  explicit LactPieces(float* base) : base_(base) {}
  float* take(int64_t count) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count + 15) / 16 * 16;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

inline int64_t lact_rows(const LactSizes& n) {
  return std::min(kLactRows, n.keeps ? n.chunk : std::min(n.chunk, n.length));
}

// Of one thread. Weights, M and norms stand here only where there is no state.
struct LactForwardScratch {
  float *weights, *momentum, *norms;
  float* tiles[3];  // [rows, D]
  int64_t size;

  LactForwardScratch(const LactSizes& n, float* base) {
    LactPieces pieces(base);
    weights = pieces.take(n.keeps ? 0 : n.matrices());
    momentum = pieces.take(n.keeps ? 0 : n.matrices());
    norms = pieces.take(n.keeps ? 0 : 3 * n.width);
    for (float*& tile : tiles) {
      tile = pieces.take(lact_rows(n) * n.width);
    }
    size = pieces.used();
  }
};

struct LactBackwardScratch {
  float* chain;  // [updates + 1, 3, D, D]: the weights of every chunk
  float *dm, *step;
  float *norms, *dnorms;
  float* row;       // [D]
  float* tiles[6];  // [rows, D]
  int64_t size;

  LactBackwardScratch(const LactSizes& n, float* base) {
    LactPieces pieces(base);
    chain = pieces.take((n.updates + 1) * n.matrices());
    dm = pieces.take(n.matrices());
    step = pieces.take(n.matrices());
    norms = pieces.take(3 * n.width);
    dnorms = pieces.take(3 * n.width);
    row = pieces.take(n.width);
    for (float*& tile : tiles) {
      tile = pieces.take(lact_rows(n) * n.width);
    }
    size = pieces.used();
  }
};

}  // namespace fwpkm
