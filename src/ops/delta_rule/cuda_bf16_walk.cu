// Forward along the sequence: w = T V - W S, O = diag(e) Q S + P diag(beta) w,
// S = E S + (diag(f beta) K)^T w.
#include "ops/delta_rule/walk.cuh"

namespace fwpkm {
namespace delta_tensor {
namespace {

struct WalkArgs {
  Tiles tiles;
  HeadsOf<bf16> o;
  bool pairs;    // whether o can be written two numbers at a time
  float* state;  // or null
  bf16* saved;   // or null: [items, dvp, dkp], S^T
};

// Calls fn(s, place) for this lane's numbers of S and their places in `state`.
template <int kTiles, typename Fn>
__device__ void each_of_state(const Sizes& n, int64_t head, int column, const Lane& at,
                              float (&s)[kTiles][4], Fn&& fn) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t d = 8 * t + at.pair + i % 2, c = column + at.line + i / 2 * 8;
      if (d < n.dk && c < n.dv) {
        fn(s[t][i], (head * n.dk + d) * n.dv + c);
      }
    }
  }
}

// w^T [16, C] of a warp's columns.
template <typename Tile, int kTiles>
__device__ void errors(const Tile& tile, const uint32_t (&s)[kTiles][2], const Lane& at,
                       uint32_t (&w)[kChunk / 8][2]) {
  float d[kChunk / 8][4];
#pragma unroll
  for (int t = 0; t < kChunk / 8; t += 2) {
    uint32_t two[4];
    load_a_of_transpose(two, tile.values + 8 * t * Tile::kLdv + 16 * at.warp, Tile::kLdv);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = unpack_two(two[i]);
      d[t + i / 2][i % 2 * 2] = both.x;
      d[t + i / 2][i % 2 * 2 + 1] = both.y;
    }
  }
#pragma unroll
  for (int step = 0; step < kTiles / 2; ++step) {
    uint32_t a[4];
    a_of(a, s, step);
    add_product_of_transpose(d, a, tile.minus_w + 16 * step, Tile::kLdk);
  }
  pack_tiles(d, w);
}

// O of a warp's columns, for 16 tokens.
template <typename Tile, int kTiles>
__device__ void outputs(const Tile& tile, const uint32_t (&s)[kTiles][2],
                        const uint32_t (&w)[kChunk / 8][2], int strip, float (&d)[2][4]) {
#pragma unroll
  for (int step = 0; step < kTiles / 2; ++step) {
    uint32_t a[4];
    load_a(a, tile.queries + 16 * strip * Tile::kLdk + 16 * step, Tile::kLdk);
    mma(d[0], a, s[2 * step][0], s[2 * step + 1][0]);
    mma(d[1], a, s[2 * step][1], s[2 * step + 1][1]);
  }
#pragma unroll
  for (int step = 0; step <= strip; ++step) {
    uint32_t a[4];
    load_a(a, tile.scores + 16 * strip * kLdc + 16 * step, kLdc);
    mma(d[0], a, w[2 * step][0], w[2 * step + 1][0]);
    mma(d[1], a, w[2 * step][1], w[2 * step + 1][1]);
  }
}

// Where a lane's outputs of a chunk go.
struct Outputs {
  bf16* to;        // of its first token and column
  int64_t stride;  // from token to token
  int tokens;      // from that one to the end of the chunk
  int columns;     // from that one to the end of the head
  bool pairs;

  __device__ void store(int strip, const float (&d)[2][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = 16 * strip + 8 * half;
      if (token >= tokens) {
        continue;
      }
      bf16* row = to + token * stride;
#pragma unroll
      for (int column = 0; column < 16; column += 8) {
        const float first = d[column / 8][2 * half], second = d[column / 8][2 * half + 1];
        if (pairs) {
          if (column < columns) {
            put_two(row + column, first, second);
          }
        } else {
          if (column < columns) {
            row[column] = from_float<bf16>(first);
          }
          if (column + 1 < columns) {
            row[column + 1] = from_float<bf16>(second);
          }
        }
      }
    }
  }
};

template <int kDk, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) walk_kernel(WalkArgs x, Sizes n) {
  extern __shared__ uint4 shared_memory[];
  using Tile = Stage<kDk, kWarps>;
  constexpr int kTiles = kDk / 8, kAhead = Tile::kCount - 1;
  const Columns<kWarps> columns(n);
  const Lane at;
  float s[kTiles][4] = {};
  if (x.state != nullptr) {
    each_of_state(n, columns.head, columns.own, at, s,
                  [&](float& number, int64_t place) { number = x.state[place]; });
  }
  const int64_t first_item = columns.head * n.chunks;
  const float* whole = x.tiles.whole + first_item;
  const auto load = [&](int64_t chunk) {
    if (chunk < n.chunks) {
      const Tile tile(shared_memory, static_cast<int>(chunk % Tile::kCount));
      const int64_t item = first_item + chunk;
      tile.load(x.tiles, item);
      load_tile<kChunk, Tile::kColumns, Tile::kWorkers>(
          x.tiles.values + item * kChunk * n.dvp + columns.first, n.dvp, tile.values);
    }
    commit_copies();
  };
#pragma unroll
  for (int chunk = 0; chunk < kAhead; ++chunk) {
    load(chunk);
  }
  Outputs out = {x.o(columns.b, at.line, columns.h) + columns.own + at.pair, x.o.strides[1], 0,
                 static_cast<int>(n.dv) - columns.own - at.pair, x.pairs};
  float next_whole = whole[0];
  for (int64_t chunk = 0; chunk < n.chunks; ++chunk) {
    wait_copies<kAhead - 1>();
    __syncthreads();  // this chunk is there, and the one before is done with
    load(chunk + kAhead);
    const float all = next_whole;
    next_whole = chunk + 1 < n.chunks ? whole[chunk + 1] : 0.0f;
    const Tile tile(shared_memory, static_cast<int>(chunk % Tile::kCount));
    uint32_t before[kTiles][2], w[kChunk / 8][2];
    pack_tiles(s, before);
    if (x.saved != nullptr) {
      store_packed(before, x.saved + ((first_item + chunk) * n.dvp + columns.own) * kDk, kDk, at);
    }
    errors(tile, before, at, w);
    scale_all(s, all);
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
      uint32_t a[4];
      a_of(a, w, step);
      add_product(s, a, tile.keys + 16 * step * Tile::kLdk, Tile::kLdk);
    }
    out.tokens = n.tokens_in(chunk) - at.line;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      float d[2][4] = {};
      outputs(tile, before, w, strip, d);
      out.store(strip, d);
    }
    out.to += kChunk * out.stride;
  }
  if (x.state != nullptr) {
    each_of_state(n, columns.head, columns.own, at, s,
                  [&](float& number, int64_t place) { x.state[place] = number; });
  }
}

}  // namespace

int walk_warps(const Sizes& n) {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "delta_rule");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "delta_rule");
  int warps = 1;
  while (warps < 4 && n.heads() * (n.dvp / (16 * warps)) > processors) {
    warps *= 2;
  }
  return warps;
}

void walk(const OpArgs& args, const Sizes& n, const Tiles& tiles) {
  const WalkArgs x = {tiles, HeadsOf<bf16>(args.out[0]), in_runs_of(2, {args.out[0]}),
                      args.state[0].ptr<float>(), args.saved[0].ptr<bf16>()};
  with_walk(n, [&](auto dk, auto warps) {
    using Tile = Stage<dk(), warps()>;
    launch("delta_rule walk", &walk_kernel<dk(), warps()>, n.heads() * (n.dvp / Tile::kColumns),
           Tile::kWorkers, Tile::kBytes, x, n);
  });
}

}  // namespace delta_tensor
}  // namespace fwpkm
