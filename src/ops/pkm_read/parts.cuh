// How pkm_read lays out its work on a GPU. Tokens go in blocks, so that the scores of all sub-keys
// are few enough to be kept.
#pragma once

#include "ops/common/row_sums.cuh"
#include "ops/pkm_read/pkm_read.h"

namespace fwpkm {

inline constexpr int kPkmWarps = 4;        // to a block, in kernels with a warp for each item
inline constexpr int kPkmSharedKeys = 64;  // lists of up to this many keys lie in shared memory

// Features that one load takes: 16 bytes of values, which are of q's type.
template <typename T>
inline constexpr int kPkmRun = 16 / static_cast<int>(sizeof(T));

// Up to this many slots and sub-keys, a warp selects in registers.
inline bool pkm_few(const PkmSizes& s) {
  return s.k <= 32 && s.n <= 1024;
}

inline unsigned pkm_warp_blocks(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kPkmWarps));
}

inline int64_t pkm_books(const PkmSizes& s) {
  return s.heads * 2;
}

inline int64_t pkm_tokens_at_once(const PkmSizes& s) {
  constexpr int64_t kScores = int64_t{1} << 24;  // fewer would leave the GPU idle between kernels
  return std::min(s.tokens, std::max<int64_t>(64, kScores / (pkm_books(s) * s.n)));
}

// The same for score gradients, which are of q's type.
inline int64_t pkm_gradient_tokens(const PkmSizes& s, DType type) {
  const auto times = static_cast<int64_t>(sizeof(float) / dtype_size(type));
  return std::min(s.tokens, times * pkm_tokens_at_once(s));
}

// Numbers from the scores of a codebook to the next: whole 16 bytes of either type.
inline int64_t pkm_pitch(const PkmSizes& s) {
  return ceil_div(s.n, 8) * 8;
}

struct PkmForwardParts {
  float* scores;    // [block, H, 2, pitch]
  float* best;      // [block, H, 2, k], the best sub-scores, unless they are few
  int32_t* ids;     // [block, H, 2, k], and their sub-keys
  uint64_t* lists;  // [block, H, 2, k], where k is too large for shared memory
  size_t bytes;

  PkmForwardParts(const PkmSizes& s, void* workspace) {
    const int64_t rows = pkm_tokens_at_once(s) * pkm_books(s);
    Carver carver(workspace);
    scores = carver.take<float>(rows * pkm_pitch(s));
    best = carver.take<float>(pkm_few(s) ? 0 : rows * s.k);
    ids = carver.take<int32_t>(pkm_few(s) ? 0 : rows * s.k);
    lists = carver.take<uint64_t>(s.k > kPkmSharedKeys ? rows * s.k : 0);
    bytes = carver.used();
  }
};

static_assert(1 + 2 * kMostRowWindows <= kPkmSquares);

// The largest size of values whose gradient and those of weights come out of one pass over the
// slots.
inline constexpr int64_t kPkmOnePass = 512;
template <typename T>
using PkmRowShape =
    std::conditional_t<sizeof(T) == 2, RowSumShape<8, 2, 4, 4>, RowSumShape<4, 4, 2, 4>>;
static_assert(PkmRowShape<bf16>::kColumns == kPkmOnePass &&
              PkmRowShape<float>::kColumns == kPkmOnePass);

// Whether one pass over the slots gives dvalues and the gradients of weights.
inline bool pkm_one_pass(const OpArgs& args, const PkmSizes& s) {
  const int run = 16 / static_cast<int>(dtype_size(args.in[2].dtype));
  return args.din[2] && (args.din[0] || args.din[1]) && s.dv > 0 && s.dv <= kPkmOnePass &&
         in_runs_of(run, {args.in[2], args.dout[0], args.din[2]});
}

// All reads, sorted by slot, with their weights: forward leaves them where backward will look.
// `carver` is for what else the sums of dvalues need.
inline RowSumPlan pkm_list(const PkmSizes& s, const OpArgs& args, Carver& carver) {
  Carver list(args.saved[0].data);
  const RowSumPlan plan(args.saved[0] ? s.tokens * s.reads : 0, s.dv, list, carver);
  require(!args.saved[0] || list.used() <= static_cast<size_t>(args.saved[0].bytes()), "pkm_read",
          "the list needs {} bytes, not {}", list.used(), args.saved[0].bytes());
  return plan;
}

struct PkmBackwardParts {
  float* dw;        // [M, H, k], gradients of weights, unless the one pass leaves them in its list
  void* dscores;    // [block, H, 2, pitch] of q's type
  RowSumPlan sums;  // of dvalues
  size_t bytes;

  PkmBackwardParts(const PkmSizes& s, const OpArgs& args, void* workspace)
      : PkmBackwardParts(s, args, Carver(workspace)) {}

 private:
  PkmBackwardParts(const PkmSizes& s, const OpArgs& args, Carver carver)
      : dw(carver.take<float>(through_scores(args) && !pkm_one_pass(args, s) ? s.tokens * s.reads
                                                                             : 0)),
        dscores(carver.take<std::byte>(through_scores(args) ? score_bytes(s, args) : 0)),
        sums(pkm_list(s, args, carver)),
        bytes(carver.used()) {}

  static bool through_scores(const OpArgs& args) { return args.din[0] || args.din[1]; }
  static int64_t score_bytes(const PkmSizes& s, const OpArgs& args) {
    const DType type = args.in[0].dtype;
    return pkm_gradient_tokens(s, type) * pkm_books(s) * pkm_pitch(s) *
           static_cast<int64_t>(dtype_size(type));
  }
};

}  // namespace fwpkm
