// What the walks along the sequence share, in bf16. A warp has 16 columns of S of one value head,
// as S^T [16, dk] in accumulators. Rounded they are operands as they are: A of S^T X^T and B of
// X S (mma.cuh), so nothing but the chunks' tiles goes through shared memory, and warps meet only
// to load those.
#pragma once

#include <type_traits>

#include "ops/delta_rule/tensor.cuh"

namespace fwpkm {
namespace delta_tensor {

// The tiles of a chunk in shared memory, and how many chunks are there at a time.
template <int kDk, int kWarps>
struct Stage {
  static constexpr int kWorkers = 32 * kWarps, kColumns = 16 * kWarps;
  static constexpr int kLdk = row_length(kDk), kLdv = row_length(kColumns);
  static constexpr int kKeys = kChunk * kLdk, kQueries = 2 * kKeys, kScores = 3 * kKeys,
                       kValues = kScores + kChunk * kLdc, kSize = kValues + kChunk * kLdv;
  static constexpr int kCount = kDk == 64 ? 3 : 2;
  static constexpr size_t kBytes = kCount * kSize * sizeof(bf16);

  bf16 *minus_w, *keys, *queries, *scores, *values;

  __device__ Stage(void* base, int index) {
    minus_w = static_cast<bf16*>(base) + index * kSize;
    keys = minus_w + kKeys;
    queries = minus_w + kQueries;
    scores = minus_w + kScores;
    values = minus_w + kValues;
  }
  // All but `values`, which is another thing on the way back.
  __device__ void load(const Tiles& from, int64_t item) const {
    load_tile<kChunk, kDk, kWorkers>(from.minus_w + item * kChunk * kDk, kDk, minus_w);
    load_tile<kChunk, kDk, kWorkers>(from.keys + item * kChunk * kDk, kDk, keys);
    load_tile<kChunk, kDk, kWorkers>(from.queries + item * kChunk * kDk, kDk, queries);
    load_tile<kChunk, kChunk, kWorkers, true>(from.scores + item * kChunk * kChunk, kChunk, scores);
  }
};

// Which columns of S a warp has.
template <int kWarps>
struct Columns {
  int64_t head, b, h;
  int first;  // of the block
  int own;    // of the warp
  __device__ explicit Columns(const Sizes& n) {
    const int64_t slices = n.dvp / (16 * kWarps);
    head = blockIdx.x / slices;
    b = head / n.value_heads;
    h = head % n.value_heads;
    first = static_cast<int>(blockIdx.x % slices) * 16 * kWarps;
    own = first + static_cast<int>(threadIdx.x) / 32 * 16;
  }
};

// 16 rows of S^T, or of another matrix, from accumulators: two rows of every 8 are `stride` apart.
template <int kTiles>
__device__ void store_packed(const uint32_t (&packed)[kTiles][2], bf16* to, int stride,
                             const Lane& at) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(to + (at.line + 8 * half) * stride + 8 * t + at.pair) =
          packed[t][half];
    }
  }
}

template <int kTiles>
__device__ void scale_all(float (&x)[kTiles][4], float factor) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[t][i] *= factor;
    }
  }
}

// Calls fn with the sizes of a walk's kernel as types: kDk and kWarps.
template <typename Fn>
void with_walk(const Sizes& n, Fn&& fn) {
  const int warps = walk_warps(n);
  const auto with_dk = [&](auto dk) {
    if (warps == 1) {
      fn(dk, std::integral_constant<int, 1>());
    } else if (warps == 2) {
      fn(dk, std::integral_constant<int, 2>());
    } else {
      fn(dk, std::integral_constant<int, 4>());
    }
  };
  if (n.dkp == 64) {
    with_dk(std::integral_constant<int, 64>());
  } else {
    with_dk(std::integral_constant<int, 128>());
  }
}

}  // namespace delta_tensor
}  // namespace fwpkm
