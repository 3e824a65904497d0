// Where the CPU kernels keep their intermediate results in the workspace.
#pragma once

#include "base/parallel.h"
#include "memory/segments.h"
#include "memory/topk.h"
#include "ops/common/carver.h"
#include "ops/pkm_read/pkm_read.h"

namespace fwpkm {

// Tokens whose scores are computed by one product, and that a thread takes at a time.
inline constexpr int64_t kPkmBlock = 64;
inline int64_t pkm_blocks(int64_t tokens) {
  return (tokens + kPkmBlock - 1) / kPkmBlock;
}

struct PkmForwardPlan {
  float* best;      // [M, H, 2, k], the best sub-scores
  int32_t* ids;     // [M, H, 2, k], and their sub-keys
  float* scores;    // [threads, block, n]
  std::byte* topk;  // [threads, topk_bytes]
  size_t topk_bytes;
  size_t bytes;

  PkmForwardPlan(const PkmSizes& s, void* workspace) {
    Carver carver(workspace);
    best = carver.take<float>(s.tokens * s.reads * 2);
    ids = carver.take<int32_t>(s.tokens * s.reads * 2);
    scores = carver.take<float>(threads() * std::min(kPkmBlock, s.tokens) * s.n);
    topk_bytes = (std::max(top_k_scratch(s.n), product_top_k_scratch(s.k)) + 63) / 64 * 64;
    topk = carver.take<std::byte>(threads() * static_cast<int64_t>(topk_bytes));
    bytes = carver.used();
  }
};

// Score gradients of sub-keys lie in lists, one of up to k entries for each head, codebook and
// token.
struct PkmBackwardPlan {
  std::byte* sort;  // for sort_by_id of all reads
  float* dw;        // [M, H, k]
  int32_t* counts;  // [H, 2, M], entries in each list
  int32_t* ids;     // [H, 2, M, k], sub-keys
  float* ds;        // [H, 2, M, k], their score gradients
  int32_t* starts;  // [H, 2, n + 1], where the entries of a sub-key start in the two below
  int32_t* tokens;  // [H, 2, M * k], by sub-key, then token
  float* weights;   // [H, 2, M * k], ds in that order
  int32_t* places;  // [threads, n], where a sub-key is in the list being made, or -1
  float* slot_ds;   // [threads, k]
  size_t bytes;

  PkmBackwardPlan(const PkmSizes& s, void* workspace) {
    const int64_t reads = s.tokens * s.reads;
    Carver carver(workspace);
    sort = carver.take<std::byte>(static_cast<int64_t>(sort_by_id_scratch(reads)));
    dw = carver.take<float>(reads);
    counts = carver.take<int32_t>(s.heads * 2 * s.tokens);
    ids = carver.take<int32_t>(2 * reads);
    ds = carver.take<float>(2 * reads);
    starts = carver.take<int32_t>(s.heads * 2 * (s.n + 1));
    tokens = carver.take<int32_t>(2 * reads);
    weights = carver.take<float>(2 * reads);
    places = carver.take<int32_t>(threads() * s.n);
    slot_ds = carver.take<float>(threads() * s.k);
    bytes = carver.used();
  }
};

}  // namespace fwpkm
