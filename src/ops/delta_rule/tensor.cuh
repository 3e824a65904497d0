// What the kernels in bf16 share. Names follow README.md, "On a GPU, in bf16".
//
// Tiles in shared memory have rows of 16 bytes more than they hold, so that no bank is met twice
// (mma.cuh). In kernels that work on one chunk, a warp has a strip of 16 tokens.
#pragma once

#include "ops/common/mma.cuh"
#include "ops/delta_rule/launch.cuh"

namespace fwpkm {
namespace delta_tensor {

using delta_cuda::HeadsOf;
using delta_cuda::launch;
using delta_cuda::Parts;

constexpr int kChunk = kDeltaTensorChunk;
static_assert(kChunk == 32 || kChunk == 64);
constexpr int kStrips = kChunk / 16;
constexpr int kThreads = 32 * kStrips;                       // of a block that works on one chunk
constexpr int kBlock = static_cast<int>(kDeltaTensorWidth);  // columns that are worked on at once
constexpr int kBlockTiles = kBlock / 8;

constexpr int row_length(int width) {
  return width + 8;
}
constexpr int kLdc = row_length(kChunk);

struct Sizes : DeltaSizes {
  int64_t dkp, dvp;  // dk and dv with what they are filled up with
  explicit Sizes(const OpArgs& args)
      : DeltaSizes(args), dkp(delta_padded(dk)), dvp(delta_padded(dv)) {
    require(dk <= 128 && dv <= 128, "delta_rule",
            "heads of up to 128 numbers in bf16, not dk={} and dv={}; use float32", dk, dv);
  }
  bool empty() const { return batch * length * value_heads * dv == 0; }
  int64_t heads() const { return batch * value_heads; }
  int64_t items() const { return heads() * chunks; }
  __device__ int64_t token(int64_t b, int64_t t, int64_t h) const {
    return (b * length + t) * value_heads + h;
  }
  // A chunk of a value head, in tiles that kernels leave for each other and in the saved states.
  __device__ int64_t item(int64_t b, int64_t h, int64_t chunk) const {
    return (b * value_heads + h) * chunks + chunk;
  }
  __device__ int tokens_in(int64_t chunk) const {
    return static_cast<int>(min(int64_t{kChunk}, length - chunk * kChunk));
  }
};

// What `prepare` leaves for the walks, for every item. Of a lower triangle only the 16 x 16 blocks
// that meet it are there.
struct Tiles {
  bf16* minus_w;  // [C, dkp]: -W, in backward -diag(beta) W
  bf16* keys;     // [C, dkp]: diag(f) K, in forward with diag(beta)
  bf16* queries;  // [C, dkp]: diag(e) Q
  bf16* scores;   // [C, C]: P, in forward P diag(beta)
  bf16* values;   // [C, dvp]: forward only, T V
  bf16* tau;      // [C, C]: backward only
  float* whole;   // E
};
Tiles tiles_of(const Sizes& n, bool backward, Parts* parts);
void prepare(const OpArgs& args, const Sizes& n, bool backward, const Tiles& to);
void walk(const OpArgs& args, const Sizes& n, const Tiles& tiles);
// Leaves dU^T [dvp, C] and dS1^T [dvp, dkp] of all items.
void walk_back(const OpArgs& args, const Sizes& n, const Tiles& tiles, bf16* du, bf16* ds);
void chunks_back(const OpArgs& args, const Sizes& n, const Tiles& tiles, const bf16* du,
                 const bf16* ds);
// Warps of a block of a walk, 16 columns of S each: as few as still find room side by side.
int walk_warps(const Sizes& n);

// An input of the op: rows of `width` numbers.
struct Rows : HeadsOf<bf16> {
  int width;
  bool runs;  // of 16 bytes, aligned
  explicit Rows(const View& view)
      : HeadsOf<bf16>(view), width(static_cast<int>(view.dim(-1))), runs(in_runs_of(8, {view})) {}
};

// How kWorkers threads go through the runs of 8 numbers of a tile.
template <int kRows, int kWidth, int kWorkers>
struct Runs {
  static constexpr int kRuns = kWidth / 8, kLd = row_length(kWidth);
  static constexpr int kSteps = kRows * kRuns / kWorkers;
  static_assert(kSteps * kWorkers == kRows * kRuns && kWorkers % kRuns == 0);
  int row, column;  // of the first step
  __device__ explicit Runs(int worker) : row(worker / kRuns), column(worker % kRuns * 8) {}
  __device__ int row_at(int step) const { return row + step * (kWorkers / kRuns); }
};

// kWidth columns, from `first` on, of a chunk's `count` tokens, with zeros around them. Done after
// the copies that the thread commits next, and a barrier.
template <int kWidth, int kWorkers>
__device__ void load_tokens(const Rows& x, int64_t b, int64_t t0, int64_t h, int count, int first,
                            bf16* to) {
  using Of = Runs<kChunk, kWidth, kWorkers>;
  const Of runs(static_cast<int>(threadIdx.x));
  const int column = first + runs.column;
  const bf16* from = x(b, t0, h);
  if (x.runs) {
#pragma unroll
    for (int step = 0; step < Of::kSteps; ++step) {
      const int row = runs.row_at(step);
      const bool there = row < count && column < x.width;
      copy_async(to + row * Of::kLd + runs.column,
                 there ? from + row * x.strides[1] + column : from, there);
    }
    return;
  }
#pragma unroll 1
  for (int step = 0; step < Of::kSteps; ++step) {
    const int row = runs.row_at(step);
    for (int k = 0; k < 8; ++k) {
      to[row * Of::kLd + runs.column + k] = row < count && column + k < x.width
                                                ? from[row * x.strides[1] + column + k]
                                                : from_float<bf16>(0.0f);
    }
  }
}

// A tile that lies in global memory row by row, `stride` apart. With kLower, the blocks of a lower
// triangle alone.
template <int kRows, int kWidth, int kWorkers, bool kLower = false>
__device__ void load_tile(const bf16* from, int64_t stride, bf16* to) {
  using Of = Runs<kRows, kWidth, kWorkers>;
  const Of runs(static_cast<int>(threadIdx.x));
  from += runs.row * stride + runs.column;
  to += runs.row * Of::kLd + runs.column;
#pragma unroll
  for (int step = 0; step < Of::kSteps; ++step) {
    const int below = step * (kWorkers / Of::kRuns);
    if (!kLower || runs.column / 16 <= (runs.row + below) / 16) {
      copy_async(to + below * Of::kLd, from + below * stride);
    }
  }
}

// What a chunk's tokens come with. gamma log2(e) is held as two floats: a document's start adds
// -100 to it, and the weak decays around it must not drown. Past the end beta is 0 and gamma stays.
struct Gates {
  float high[kChunk], low[kChunk];
  float beta[kChunk], e[kChunk], f[kChunk];
  float rq[kChunk], rk[kChunk];  // factors that normalise q (and scale it) and k

  __device__ float whole() const { return e[kChunk - 1]; }
};

// What a token's products with others are scaled by, in registers.
struct Token {
  float high, low, beta, rq, rk;
  __device__ Token(const Gates& gates, int i)
      : high(gates.high[i]),
        low(gates.low[i]),
        beta(gates.beta[i]),
        rq(gates.rq[i]),
        rk(gates.rk[i]) {}
  // D, for a token that is not later.
  __device__ float decay_since(const Token& other) const {
    return exp2f((high - other.high) + (low - other.low));
  }
};

// For the first warp of a block.
__device__ inline void load_gates(const Sizes& n, const float* g, const float* beta, int64_t b,
                                  int64_t t0, int64_t h, int count, Gates* to) {
  constexpr double kLog2e = 1.4426950408889634;
  const int lane = static_cast<int>(threadIdx.x);
  double sums[kChunk / 32], last = 0;
#pragma unroll
  for (int part = 0; part < kChunk / 32; ++part) {
    const int i = 32 * part + lane;
    const int64_t at = n.token(b, t0 + i, h);
    double sum = i < count ? static_cast<double>(g[at]) : 0.0;
    to->beta[i] = i < count ? beta[at] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
      const double before = __shfl_up_sync(0xffffffffu, sum, step);
      sum += lane >= step ? before : 0.0;
    }
    sums[part] = last + sum;
    last = __shfl_sync(0xffffffffu, sums[part], 31);
  }
#pragma unroll
  for (int part = 0; part < kChunk / 32; ++part) {
    const int i = 32 * part + lane;
    const double gamma = sums[part] * kLog2e;
    to->high[i] = static_cast<float>(gamma);
    to->low[i] = static_cast<float>(gamma - static_cast<double>(static_cast<float>(gamma)));
    to->e[i] = exp2f(static_cast<float>(gamma));
    to->f[i] = exp2f(static_cast<float>((last - sums[part]) * kLog2e));
  }
}

// The factors of all rows of q and k, a thread for each: 2 C of them.
template <int kDk>
__device__ void load_norms(const bf16* q, const bf16* k, float scale, Gates* to) {
  static_assert(kThreads == 2 * kChunk);
  const int row = static_cast<int>(threadIdx.x) % kChunk;
  const bool is_key = static_cast<int>(threadIdx.x) >= kChunk;
  const bf16* from = (is_key ? k : q) + row * row_length(kDk);
  float squares = 0;
  for (int d = 0; d < kDk; d += 8) {
    float x[8];
    load_run(from + d, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      squares = fmaf(x[i], x[i], squares);
    }
  }
  const float r = 1.0f / sqrtf(squares + static_cast<float>(kDeltaEps));
  (is_key ? to->rk : to->rq)[row] = is_key ? r : scale * r;
}

// Where a lane is: its accumulators lie in the rows `line` and `line + 8` of its warp's strip,
// columns `pair` and `pair + 1` of every 8.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int line = lane / 4;
  int pair = lane % 4 * 2;
  __device__ int row(int half) const { return 16 * warp + line + 8 * half; }
};

// Two numbers of a row, side by side in memory.
__device__ inline float2 two_of(const bf16* from) {
  return unpack_two(*reinterpret_cast<const uint32_t*>(from));
}
__device__ inline float2 two_of(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ inline void put_two(bf16* to, float first, float second) {
  *reinterpret_cast<uint32_t*>(to) = pack_two(first, second);
}

// Sums over the four lanes that share a row.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Accumulators as operands: columns 16 step and on as an A.
template <int kTiles>
__device__ inline void pack_tiles(const float (&x)[kTiles][4], uint32_t (&to)[kTiles][2]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    to[t][0] = pack_two(x[t][0], x[t][1]);
    to[t][1] = pack_two(x[t][2], x[t][3]);
  }
}
template <int kTiles>
__device__ inline void a_of(uint32_t (&a)[4], const uint32_t (&packed)[kTiles][2], int step) {
  a[0] = packed[2 * step][0];
  a[1] = packed[2 * step][1];
  a[2] = packed[2 * step + 1][0];
  a[3] = packed[2 * step + 1][1];
}

// d += A B with 16 rows `tile` as B, or with the transpose of 16 columns.
template <int kTiles>
__device__ inline void add_product(float (&d)[kTiles][4], const uint32_t (&a)[4], const bf16* tile,
                                   int ld) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    uint32_t b[4];
    load_b(b, tile + 8 * t, ld);
    mma(d[t], a, b[0], b[1]);
    mma(d[t + 1], a, b[2], b[3]);
  }
}
template <int kTiles>
__device__ inline void add_product_of_transpose(float (&d)[kTiles][4], const uint32_t (&a)[4],
                                                const bf16* tile, int ld) {
#pragma unroll
  for (int t = 0; t < kTiles; t += 2) {
    uint32_t b[4];
    load_b_of_transpose(b, tile + 8 * t * ld, ld);
    mma(d[t], a, b[0], b[1]);
    mma(d[t + 1], a, b[2], b[3]);
  }
}

}  // namespace delta_tensor
}  // namespace fwpkm
