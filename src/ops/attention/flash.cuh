// What the attention kernels on tensor cores are made of. As in tile.cuh, heads that share a key
// head are stacked: row r of a (batch, key head) pair is query r / group, head r % group.
//
// A warp has 16 kM rows of a product's result (rows of queries, or keys where the scores lie
// transposed). Its left factors are fragments in registers, its right factors tiles of 64 rows in
// shared memory; while one tile is worked on, the next is copied. Scores stay in registers: as
// accumulators of one product they have the layout of the next one's left factor.
//
// Tiles [rows][kD] of bf16, features beyond D zero. Eight numbers (16 bytes, a chunk) stay
// together; chunk c of row r lies in place c ^ (r % 8), so that neither copies nor load_matrices
// meet in a bank.
#pragma once

#include "ops/attention/mma.cuh"
#include "ops/attention/tile.cuh"

namespace fwpkm::attention_gpu {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kFlashWarps = 4;  // of a block, but in decoding
// Blocks that keep a GPU busy, two on each multiprocessor at a time.
inline constexpr int64_t kFlashBlocks = 528;

// Bytes of `rows` rows of a tile.
template <int kD>
constexpr uint32_t tile_bytes(int rows) {
  return static_cast<uint32_t>(rows * kD * 2);
}

struct FlashSizes : Sizes {
  float exponent;          // scores to exponents of two
  uint32_t group_inverse;  // 2^32 / group, rounded up
  int chunks;              // of a row

  explicit FlashSizes(const OpArgs& args)
      : Sizes(args),
        exponent(scale * kLog2e),
        group_inverse(static_cast<uint32_t>(((uint64_t{1} << 32) + group - 1) / group)),
        chunks(width / 8) {}

  // n / group where n group < 2^32.
  __device__ int queries_in(int n) const {
    return group == 1 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), group_inverse));
  }
  // Columns of the tiles that hold these heads.
  int padded() const { return width <= 64 ? 64 : 128; }
};

// threadIdx.x, in a way that keeps the compiler from carrying what follows from it through a loop:
// registers are short, and it is cheap to compute again.
__device__ inline uint32_t fresh_thread() {
  uint32_t thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

// Where the stacked rows of a tile are: one division for all of them.
struct RowPlaces {
  int query0, rest;

  __device__ RowPlaces(const FlashSizes& z, int row0)
      : query0(row0 / z.group), rest(row0 - query0 * z.group) {}
  // Query and head in the group of the tile's row r.
  __device__ int2 operator()(const FlashSizes& z, int r) const {
    const int query = z.queries_in(rest + r);
    return make_int2(query0 + query, rest + r - query * z.group);
  }
};

// The rows that a pair's heads have in a tensor of queries.
struct StackedRows {
  const bf16* base;
  int token, head;  // strides

  __device__ StackedRows(const Heads<bf16>& from, const FlashSizes& z, int b, int kv)
      : base(from.data + from.at(b, 0, int64_t{kv} * z.group)),
        token(static_cast<int>(from.token)),
        head(static_cast<int>(from.head)) {}
  __device__ const bf16* at(int query, int head_in_group) const {
    return base + int64_t{query} * token + int64_t{head_in_group} * head;
  }
};

// Starts copying the first rows of a tile, of which `count` are there; zeros from there on.
template <int kD, int kRows, int kThreads>
__device__ inline void fetch_stacked(const StackedRows& from, const FlashSizes& z,
                                     const RowPlaces& places, int count, uint32_t to) {
  constexpr int kChunks = kD / 8, kPass = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kPass == 0);
  const int chunk = threadIdx.x % kChunks;
#pragma unroll
  for (int n = 0; n < kRows / kPass; ++n) {
    const int row = static_cast<int>(threadIdx.x) / kChunks + n * kPass;
    const int2 place = places(z, row);
    copy_async(to + tile_bytes<kD>(row) + ((chunk ^ row % 8) << 4),
               from.at(place.x, place.y) + chunk * 8, row < count && chunk < z.chunks);
  }
}

// Starts copying `count` rows, `stride` apart, and zeros to fill the tile.
template <int kD, int kRows, int kThreads>
__device__ inline void fetch_rows(const bf16* from, int64_t stride, int count, int chunks,
                                  uint32_t to) {
  constexpr int kChunks = kD / 8, kPass = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kPass == 0);
  const uint32_t thread = fresh_thread();
  const int chunk = thread % kChunks, row0 = thread / kChunks;
  from += row0 * stride + chunk * 8;
#pragma unroll
  for (int n = 0; n < kRows / kPass; ++n) {
    const int row = row0 + n * kPass;
    copy_async(to + tile_bytes<kD>(row) + ((chunk ^ row % 8) << 4), from,
               row < count && chunk < chunks);
    from += kPass * stride;
  }
}

// A lane's address for 16 x 16 numbers of a tile, by load_matrices or load_columns. Matrices go
// down first (a left factor; a right factor by columns) or along the row first (a right factor).
// Tiles are aligned to 256 bytes, so that block() may move along a row by flipping bits. Tiles that
// follow one another are one: the second begins kTile / 16 blocks down.
template <int kD>
__device__ inline uint32_t lanes_down(uint32_t tile) {
  const uint32_t lane = fresh_thread() % 32;
  return tile + lane % 16 * (2 * kD) + ((lane / 16 ^ lane % 8) << 4);
}
template <int kD>
__device__ inline uint32_t lanes_along(uint32_t tile) {
  const uint32_t lane = fresh_thread() % 32;
  return tile + (lane / 16 * 8 + lane % 8) * (2 * kD) + ((lane / 8 % 2 ^ lane % 8) << 4);
}
// The same for the 16 x 16 numbers `down` and `along` times 16 on.
template <int kD>
__device__ inline uint32_t block(uint32_t lanes, int down, int along) {
  return (lanes ^ static_cast<uint32_t>(along << 5)) + tile_bytes<kD>(16 * down);
}
inline constexpr int kTileBlocks = kTile / 16;

template <int kD, int kM>
using Fragments = uint32_t[kM][kD / 16][4];

// A warp's left factor: 16 kM rows of a tile, from row `row0` (a multiple of 16) on.
template <int kD, int kM>
__device__ inline void load_fragments(uint32_t tile, int row0, Fragments<kD, kM>& to) {
  const uint32_t lanes = lanes_down<kD>(tile);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int c = 0; c < kD / 16; ++c) {
      load_matrices(block<kD>(lanes, row0 / 16 + m, c), to[m][c]);
    }
  }
}

// products = left . row for 8 kTiles rows of a tile, from its 16-row block `down` on. Sums run over
// the features in one order everywhere.
template <int kD, int kM, int kTiles>
__device__ inline void dot_rows(const Fragments<kD, kM>& left, uint32_t along, int down,
                                float (&products)[kM][kTiles][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        products[m][t][e] = 0;
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kD / 16; ++c) {
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      uint32_t right[4];
      load_matrices(block<kD>(along, down + t / 2, c), right);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(products[m][t], left[m][c], right[0], right[1]);
        mma(products[m][t + 1], left[m][c], right[2], right[3]);
      }
    }
  }
}

// sums += factors (rounded to bf16) times 8 kTiles rows of a tile, from its 16-row block `down` on.
template <int kD, int kM, int kTiles>
__device__ inline void add_weighted(const float (&factors)[kM][kTiles][4], uint32_t lanes, int down,
                                    float (&sums)[kM][kD / 8][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = &factors[m][t + i / 2][i % 2 * 2];
        left[m][i] = pack_two(two[0], two[1]);
      }
    }
#pragma unroll
    for (int c = 0; c < kD / 16; ++c) {
      uint32_t right[4];
      load_columns(block<kD>(lanes, down + t / 2, c), right);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(sums[m][2 * c], left[m], right[0], right[1]);
        mma(sums[m][2 * c + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// Calls fn(row, m, half) for the rows that a lane has numbers of in a warp's result [kM][..][4]:
// they are elements 2 half and one more of each tile of 8 columns, from column 2(lane % 4) on.
template <int kM, typename Fn>
__device__ inline void for_each_row(Fn&& fn) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      fn(m * 16 + half * 8 + static_cast<int>(threadIdx.x % 32) / 4, m, half);
    }
  }
}

// What a warp's rows see: each one the keys inside.x..inside.y-1, and none a key that is not in
// outside.x..outside.y-1. Lanes without a row take no part.
struct alignas(16) WarpView {
  int2 inside, outside;

  WarpView() = default;
  __device__ WarpView(int2 seen, bool has_row) {
    inside.x = __reduce_max_sync(kAllLanes, has_row ? seen.x : 0);
    inside.y = __reduce_min_sync(kAllLanes, has_row ? seen.y : INT_MAX);
    outside.x = __reduce_min_sync(kAllLanes, has_row ? seen.x : INT_MAX);
    outside.y = __reduce_max_sync(kAllLanes, has_row ? seen.y : 0);
  }
  // With the rows of another one.
  __device__ void add(const WarpView& other) {
    inside.x = max(inside.x, other.inside.x);
    inside.y = min(inside.y, other.inside.y);
    outside.x = min(outside.x, other.outside.x);
    outside.y = max(outside.y, other.outside.y);
  }
  __device__ bool sees(int key0, int keys) const {
    return key0 < outside.y && key0 + keys > outside.x;
  }
  __device__ bool sees_all(int key0, int keys) const {
    return key0 >= inside.x && key0 + keys <= inside.y;
  }
};

// Sets the scores of hidden keys to `value`; `seen` of the warp's rows in shared memory.
template <int kM, int kTiles>
__device__ inline void hide(const int2* seen, int key0, float value, float (&tile)[kM][kTiles][4]) {
  for_each_row<kM>([&](int row, int m, int half) {
    const int2 range = seen[row];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int key = key0 + i / 2 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + i % 2;
      float& score = tile[m][i / 2][2 * half + i % 2];
      score = key >= range.x && key < range.y ? score : value;
    }
  });
}

// Leaves what each warp's rows see in `views`, in shared memory, and returns what the block's see.
template <int kWarps>
__device__ inline int2 block_range(int2 seen, bool has_row, WarpView* views) {
  const WarpView view(seen, has_row);
  if (threadIdx.x % 32 == 0) {
    views[threadIdx.x / 32] = view;
  }
  __syncthreads();
  int2 all = views[0].outside;
  for (int i = 1; i < kWarps; ++i) {
    all.x = min(all.x, views[i].outside.x);
    all.y = max(all.y, views[i].outside.y);
  }
  return all;
}

__device__ inline void put_pair(bf16* to, float x, float y, bool accumulate) {
  auto* two = reinterpret_cast<__nv_bfloat162*>(to);
  if (accumulate) {
    x += __low2float(*two);
    y += __high2float(*two);
  }
  *two = __floats2bfloat162_rn(x, y);
}
__device__ inline void put_pair(float* to, float x, float y, bool) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
// Stores a lane's numbers of a row (for_each_row), times a factor.
template <int kM, int kTiles, typename T>
__device__ inline void put_row(const float (&tile)[kM][kTiles][4], int m, int half, float factor,
                               T* to, int width, bool accumulate) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int column = t * 8 + static_cast<int>(threadIdx.x % 4) * 2;
    if (column < width) {
      put_pair(to + column, factor * tile[m][t][2 * half], factor * tile[m][t][2 * half + 1],
               accumulate);
    }
  }
}

// Gives a kernel as much shared memory as it asks for.
template <typename Kernel>
void allow_shared(Kernel kernel, uint32_t bytes) {
  check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "attention");
}

}  // namespace fwpkm::attention_gpu
