// Backward of a chunk in bf16, its first part: where things lie, and w, dR, dv and dbeta.
#pragma once

#include <algorithm>

#include "ops/delta_rule/tensor.cuh"

namespace fwpkm {
namespace delta_tensor {

struct ChunkArgs {
  Rows q, k, v, d_o;
  const float *g, *beta;
  const bf16 *tau, *du, *ds, *s0;
  HeadsOf<bf16> dq, dk, dv;  // data is null where nobody wants them
  float *dg, *dbeta;
  bool add[5];
  bool runs, pairs;  // whether rows of dq and dk can be taken 8 at a time, and of dv 2
  float scale;       // of q
};

// The tiles of a block, which follow each other in some places. Offsets in elements.
template <int kDk, int kDv>
struct Layout {
  static constexpr int kLdk = row_length(kDk), kLdv = row_length(kDv);
  static constexpr int kLonger = kLdk > kLdc ? kLdk : kLdc;
  static constexpr int kQ = 0;                     // [C, dk]
  static constexpr int kK = kQ + kChunk * kLdk;    // [C, dk]
  static constexpr int kW = kK + kChunk * kLdk;    // [C, dv]: V, then diag(beta) N, then w
  static constexpr int kDo = kW + kChunk * kLdv;   // [C, dv]
  static constexpr int kDr = kDo + kChunk * kLdv;  // tau [C, C], then dR [C, dv]
  static constexpr int kS0 = kDr + kChunk * kLdv;  // S0^T [dv, dk], then H [C, C]
  static constexpr int kDs = kS0 + kDv * kLdk;     // dU^T [dv, C], then dS1^T [dv, dk], then G
  static_assert(kLdv >= kLdc && kDv * kLdk >= kChunk * kLdc && kDv >= kChunk);

  // dq and dk of normalised rows, in float. They take the place of what is done with, unless the
  // value heads of a key head add to them one after the other.
  static constexpr int kLdf = kDk + 8;
  static constexpr int kParked = 2 * kChunk * kLdf;
  static constexpr int kSize = std::max(kDs + kDv * kLonger, kW + 2 * kParked);

  static size_t bytes(int64_t group) {
    return kSize * sizeof(bf16) + (group > 1 ? kParked * sizeof(float) : 0);
  }
  __device__ static float* parked(bf16* tiles, int64_t group) {
    return reinterpret_cast<float*>(tiles + (group > 1 ? kSize : kW));
  }
};

// What rows of a chunk add up: into gamma (by row and, by warp, by column), into f, and <S0, dS1>.
struct Sums {
  float rows[kChunk], through_f[kChunk], columns[kStrips][kChunk], inner[kStrips];
};

struct Place {
  int64_t b, t0, h, item;
  int count;
};

__device__ inline uint32_t scaled(uint32_t two, float2 factor) {
  const float2 x = unpack_two(two);
  return pack_two(x.x * factor.x, x.y * factor.y);
}

// Sets or adds to two numbers of a row, of which some may lie outside.
__device__ inline void put_pair(bf16* to, int64_t column, int64_t width, float first, float second,
                                bool pairs, bool add) {
  if (pairs) {
    if (column < width) {
      const float2 old = add ? two_of(to + column) : float2{0.0f, 0.0f};
      put_two(to + column, old.x + first, old.y + second);
    }
  } else {
    if (column < width) {
      put(to + column, first, add);
    }
    if (column + 1 < width) {
      put(to + column + 1, second, add);
    }
  }
}

// dR = (I + diag(beta) tau)^T dU of a warp's tokens; dv = diag(beta) dR.
template <int kDk, int kDv>
__device__ void solve_back(const ChunkArgs& x, const Sizes& n, const Place& place,
                           const bf16* tiles, const Gates& gates, const Lane& at,
                           float (&dr)[kDv / 8][4]) {
  using L = Layout<kDk, kDv>;
  const bf16* tau = tiles + L::kDr;
  const bf16* du = tiles + L::kDs;
#pragma unroll
  for (int t = 0; t < kDv / 8; t += 2) {
    uint32_t two[4];
    load_a_of_transpose(two, du + 8 * t * kLdc + 16 * at.warp, kLdc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = unpack_two(two[i]);
      dr[t + i / 2][i % 2 * 2] = both.x;
      dr[t + i / 2][i % 2 * 2 + 1] = both.y;
    }
  }
  for (int block = at.warp; block < kStrips; ++block) {
    uint32_t a[4];
    load_a_of_transpose(a, tau + 16 * block * kLdc + 16 * at.warp, kLdc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = scaled(a[i], two_of(gates.beta + 16 * block + at.pair + i / 2 * 8));
    }
    add_product_of_transpose(dr, a, du + 16 * block, kLdc);
  }
  if (x.dv.data == nullptr) {
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = at.row(half);
    if (i < place.count) {
      bf16* to = x.dv(place.b, place.t0 + i, place.h);
      const float beta = gates.beta[i];
#pragma unroll
      for (int t = 0; t < kDv / 8; ++t) {
        put_pair(to, 8 * t + at.pair, n.dv, beta * dr[t][2 * half], beta * dr[t][2 * half + 1],
                 x.pairs, x.add[2]);
      }
    }
  }
}

// N = V - diag(e) K S0 of a warp's tokens, and diag(beta) N in V's place.
template <int kDk, int kDv>
__device__ void misses(bf16* tiles, const Gates& gates, const Lane& at, float (&w)[kDv / 8][4]) {
  using L = Layout<kDk, kDv>;
#pragma unroll
  for (int d = 0; d < kDk; d += 16) {
    uint32_t a[4];
    load_a(a, tiles + L::kK + 16 * at.warp * L::kLdk + d, L::kLdk);
    add_product_of_transpose(w, a, tiles + L::kS0 + d, L::kLdk);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = at.row(half);
    const float factor = gates.e[i] * gates.rk[i], beta = gates.beta[i];
#pragma unroll
    for (int t = 0; t < kDv / 8; ++t) {
      bf16* to = tiles + L::kW + i * L::kLdv + 8 * t + at.pair;
      const float2 v = two_of(to);
      float& first = w[t][2 * half];
      float& second = w[t][2 * half + 1];
      first = v.x - factor * first;
      second = v.y - factor * second;
      put_two(to, beta * first, beta * second);
    }
  }
}

template <int kTiles>
__device__ void put_rows(const float (&d)[kTiles][4], bf16* to, int ld, const Lane& at) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      put_two(to + at.row(half) * ld + 8 * t + at.pair, d[t][2 * half], d[t][2 * half + 1]);
    }
  }
}

// dR and w of a warp's tokens, dbeta = <dR, w>; then they lie in their tiles, and dS1 is on its
// way into its own.
template <int kDk, int kDv>
__device__ void redo_forward(const ChunkArgs& x, const Sizes& n, const Place& place, bf16* tiles,
                             const Gates& gates, const Lane& at) {
  using L = Layout<kDk, kDv>;
  float dr[kDv / 8][4], w[kDv / 8][4] = {};
  solve_back<kDk, kDv>(x, n, place, tiles, gates, at, dr);
  misses<kDk, kDv>(tiles, gates, at, w);
  __syncthreads();  // N is there, dU done with
  load_tile<kDv, kDk, kThreads>(x.ds + place.item * kDv * kDk, kDk, tiles + L::kDs);
  commit_copies();
  for (int block = 0; block <= at.warp; ++block) {
    uint32_t a[4];
    load_a(a, tiles + L::kDr + 16 * at.warp * kLdc + 16 * block, kLdc);
    add_product(w, a, tiles + L::kW + 16 * block * L::kLdv, L::kLdv);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kDv / 8; ++t) {
      sum = fmaf(dr[t][2 * half], w[t][2 * half], sum);
      sum = fmaf(dr[t][2 * half + 1], w[t][2 * half + 1], sum);
    }
    sum = row_sum(sum);
    const int i = at.row(half);
    if (x.dbeta != nullptr && at.pair == 0 && i < place.count) {
      put(x.dbeta + n.token(place.b, place.t0 + i, place.h), sum, x.add[4]);
    }
  }
  __syncthreads();  // N and tau are done with
  put_rows(w, tiles + L::kW, L::kLdv, at);
  put_rows(dr, tiles + L::kDr, L::kLdv, at);
  __syncwarp();
}

}  // namespace delta_tensor
}  // namespace fwpkm
