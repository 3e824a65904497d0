// Backward along the sequence, from the last chunk to the first: dU = P^T dO + diag(f) K dS1,
// dS0 = E dS1 + (diag(e) Q)^T dO - (diag(beta) W)^T dU.
#include "ops/delta_rule/walk.cuh"

namespace fwpkm {
namespace delta_tensor {
namespace {

struct WalkArgs {
  Tiles tiles;
  Rows d_o;
  bf16 *du, *ds;  // [items, dvp, C], [items, dvp, dkp]
};

template <int kDk, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1) walk_back_kernel(WalkArgs x, Sizes n) {
  extern __shared__ uint4 shared_memory[];
  using Tile = Stage<kDk, kWarps>;
  constexpr int kTiles = kDk / 8, kAhead = Tile::kCount - 1;
  const Columns<kWarps> columns(n);
  const Lane at;
  float s[kTiles][4] = {};  // dS1^T
  const int64_t first_item = columns.head * n.chunks;
  const float* whole = x.tiles.whole + first_item;
  const auto load = [&](int64_t chunk) {
    if (chunk >= 0) {
      const Tile tile(shared_memory, static_cast<int>(chunk % Tile::kCount));
      tile.load(x.tiles, first_item + chunk);
      load_tokens<Tile::kColumns, Tile::kWorkers>(x.d_o, columns.b, chunk * kChunk, columns.h,
                                                  n.tokens_in(chunk), columns.first, tile.values);
    }
    commit_copies();
  };
  const int64_t last = n.chunks - 1;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    load(last - i);
  }
  float next_whole = whole[last];
  for (int64_t chunk = last; chunk >= 0; --chunk) {
    wait_copies<kAhead - 1>();
    __syncthreads();  // this chunk is there, and the one behind is done with
    load(chunk - kAhead);
    const float all = next_whole;
    next_whole = chunk > 0 ? whole[chunk - 1] : 0.0f;
    const Tile tile(shared_memory, static_cast<int>(chunk % Tile::kCount));
    const int64_t row = (first_item + chunk) * n.dvp + columns.own;
    uint32_t behind[kTiles][2], d_o[kStrips][4], du[kChunk / 8][2];
    pack_tiles(s, behind);
    store_packed(behind, x.ds + row * kDk, kDk, at);
    float d[kChunk / 8][4] = {};  // dU^T
#pragma unroll
    for (int step = 0; step < kTiles / 2; ++step) {
      uint32_t a[4];
      a_of(a, behind, step);
      add_product_of_transpose(d, a, tile.keys + 16 * step, Tile::kLdk);
    }
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
      load_a_of_transpose(d_o[step], tile.values + 16 * step * Tile::kLdv + 16 * at.warp,
                          Tile::kLdv);
#pragma unroll
      for (int block = 0; block <= step; ++block) {
        uint32_t b[4];
        load_b(b, tile.scores + 16 * step * kLdc + 16 * block, kLdc);
        mma(d[2 * block], d_o[step], b[0], b[1]);
        mma(d[2 * block + 1], d_o[step], b[2], b[3]);
      }
    }
    pack_tiles(d, du);
    store_packed(du, x.du + row * kChunk, kChunk, at);
    scale_all(s, all);
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
      uint32_t a[4];
      a_of(a, du, step);
      add_product(s, d_o[step], tile.queries + 16 * step * Tile::kLdk, Tile::kLdk);
      add_product(s, a, tile.minus_w + 16 * step * Tile::kLdk, Tile::kLdk);
    }
  }
}

}  // namespace

void walk_back(const OpArgs& args, const Sizes& n, const Tiles& tiles, bf16* du, bf16* ds) {
  const WalkArgs x = {tiles, Rows(args.dout[0]), du, ds};
  with_walk(n, [&](auto dk, auto warps) {
    using Tile = Stage<dk(), warps()>;
    launch("delta_rule walk back", &walk_back_kernel<dk(), warps()>,
           n.heads() * (n.dvp / Tile::kColumns), Tile::kWorkers, Tile::kBytes, x, n);
  });
}

}  // namespace delta_tensor
}  // namespace fwpkm
