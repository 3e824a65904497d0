// What forward and backward in float share: the sizes of tiles, the gates of a chunk, the solve.
// Names follow README.md.
#pragma once

#include "ops/delta_rule/launch.cuh"

namespace fwpkm {
namespace delta_cuda {

constexpr int kChunk = kDeltaChunk;
static_assert(kChunk == 32);  // a lane for each token
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLd = kChunk + 1;  // rows of [.., C] tiles
constexpr int kTile = 16;        // columns of S that a block walks along the sequence with
constexpr int kTileLd = kTile + 1;

// Rows of [.., dk] and [.., dv] tiles: whole vectors of four, an odd number of them, so that a
// vector from each of eight rows meets all banks. What lies past the width is zero.
__host__ __device__ inline int64_t row_length(int64_t width) {
  const int64_t vectors = (width + 3) / 4;
  return 4 * (vectors + 1 - vectors % 2);
}

// The sizes of a call and how its inputs lie.
struct Sizes : DeltaSizes {
  int64_t ldk, ldv, tiles;
  explicit Sizes(const OpArgs& args)
      : DeltaSizes(args),
        ldk(row_length(dk)),
        ldv(row_length(dv)),
        tiles((dv + kTile - 1) / kTile) {}

  int64_t key_items() const { return batch * key_heads * chunks; }
  bool empty() const { return batch * length * value_heads * dv == 0; }
  // S of a tile, with rows of zeros up to whole vectors of four.
  __host__ __device__ int64_t tile_rows() const { return (dk + 3) / 4 * 4; }
  __device__ int64_t token(int64_t b, int64_t t, int64_t h) const {
    return (b * length + t) * value_heads + h;
  }
  __device__ int64_t saved(int64_t b, int64_t h, int64_t chunk) const {
    return ((b * value_heads + h) * chunks + chunk) * dk * dv;
  }
  // The chunk of a key head, in what `prepare` makes.
  __device__ int64_t key_item(int64_t b, int64_t hk, int64_t chunk) const {
    return (b * key_heads + hk) * chunks + chunk;
  }
  __device__ int tokens_in(int64_t chunk) const {
    return static_cast<int>(min(int64_t{kChunk}, length - chunk * kChunk));
  }
};

using Heads = HeadsOf<float>;

// What `prepare` makes for every chunk of every key head. Rows past the end are zero.
struct Prepared {
  float* qk;     // [items, 2C, ldk]: normalised q above normalised k
  float* dots;   // [items, 2C, C]: <q_i, k_j> above <k_i, k_j>
  float* norms;  // [items, 2C]: 1 / sqrt(|x|^2 + eps)
};
Prepared prepared_parts(const Sizes& n, Parts* parts);
void prepare(const OpArgs& args, const Sizes& n, const Prepared& to);
// Leaves dS1 [B, Hv, chunks, dk, dv] and dR [B, T, Hv, dv] of all chunks; `scratch` has
// walk_back_scratch floats.
void walk_back(const OpArgs& args, const Sizes& n, const Prepared& prepared, float* ds, float* dr,
               float* scratch);
int64_t walk_back_scratch(const Sizes& n);
// What backward's workspace takes.
size_t backward_bytes(const Sizes& n);

// Gates of a chunk. Past its end gamma stays at its last value and beta is 0.
struct Gates {
  double gamma[kChunk];
  float beta[kChunk], e[kChunk], f[kChunk];
};

// exp of a number that has more digits than a float.
__device__ inline float exp_of(double x) {
  const auto high = static_cast<float>(x);
  const float y = expf(high);
  return fmaf(y, static_cast<float>(x - static_cast<double>(high)), y);
}

// For the first warp of a block.
__device__ inline void load_gates(const Sizes& n, const float* g, const float* beta, int64_t b,
                                  int64_t t0, int64_t h, int count, Gates* to) {
  const int i = static_cast<int>(threadIdx.x);
  const bool inside = i < count;
  double gamma = inside ? static_cast<double>(g[n.token(b, t0 + i, h)]) : 0.0;
  for (int step = 1; step < kChunk; step *= 2) {
    const double before = __shfl_up_sync(0xffffffffu, gamma, step);
    gamma += i >= step ? before : 0.0;
  }
  // Past the end the sums are of the same numbers, but not always in the same order.
  const double last = __shfl_sync(0xffffffffu, gamma, count - 1);
  gamma = inside ? gamma : last;
  to->gamma[i] = gamma;
  to->beta[i] = inside ? beta[n.token(b, t0 + i, h)] : 0.0f;
  to->e[i] = exp_of(gamma);
  to->f[i] = exp_of(last - gamma);
}

// P and A of a chunk from its inner products, zero where they are not defined; D too if asked for.
__device__ inline void decay_dots(const Gates& gates, const float* dots, float* p, float* a,
                                  float* decay) {
  for (int index = static_cast<int>(threadIdx.x); index < kChunk * kChunk; index += kThreads) {
    const int i = index / kChunk, j = index % kChunk, at = i * kLd + j;
    const float d = j <= i ? exp_of(gates.gamma[i] - gates.gamma[j]) : 0.0f;
    p[at] = d * dots[i * kChunk + j];
    a[at] = j < i ? gates.beta[i] * d * dots[(kChunk + i) * kChunk + j] : 0.0f;
    if (decay != nullptr) {
      decay[at] = d;
    }
  }
}

// x = (I + A)^-1 x, or (I + A)^-T x, by substitution: a lane for each of the C rows of x, a warp
// for N columns at a time.
template <int N, bool kTransposed>
__device__ inline void solve(const float* a, float* x, int64_t ld, int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t c = threadIdx.x / 32 * int64_t{N}; c < columns; c += kWarps * N) {
    float u[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      u[k] = c + k < columns ? x[lane * ld + c + k] : 0.0f;
    }
#pragma unroll
    for (int step = 0; step + 1 < kChunk; ++step) {
      const int i = kTransposed ? kChunk - 1 - step : step;
      const bool later = kTransposed ? lane < i : lane > i;
      const float factor = later ? (kTransposed ? a[i * kLd + lane] : a[lane * kLd + i]) : 0.0f;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        u[k] -= factor * __shfl_sync(0xffffffffu, u[k], i);
      }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (c + k < columns) {
        x[lane * ld + c + k] = u[k];
      }
    }
  }
}

__device__ inline float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ inline float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

}  // namespace delta_cuda
}  // namespace fwpkm
