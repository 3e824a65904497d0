// Backward on tensor cores, in three kernels. The first leaves for each query and head what the
// others need of it: its log-sum-exp, delta = g.o and the keys that it sees. dq then goes by tiles
// of stacked rows over the keys that they see; dk and dv by tiles of keys over the queries that see
// them, head by head, with scores transposed, so that they are left factors there as well. Both
// compute scores and dp again: seven products for five, but no sums that blocks share.
#include <algorithm>

#include "ops/attention/flash.cuh"

namespace fwpkm {
namespace {

using namespace attention_gpu;

constexpr int kBlockThreads = 32 * kFlashWarps;
constexpr int64_t kMostSplits = 16;

// 16-row blocks that a warp has; as many as registers allow.
template <int kD>
constexpr int kBlocks = kD == 64 ? 2 : 1;

// A query of a head, as the kernels for gradients want it; those that fill up a tile see nothing.
struct alignas(16) RowFacts {
  float lse;  // in base 2
  float delta;
  int first, end;  // the keys that it sees
};
// What the queries of a tile see, as in a WarpView.
struct alignas(16) TileFacts {
  int2 inside, outside;
};

struct FlashBackwardPlan {
  int query_tiles, key_tiles, splits = 1;
  RowFacts* rows = nullptr;                        // [B, Hq, query_tiles kTile]
  TileFacts* tiles = nullptr;                      // [B, query_tiles]
  float *dk_parts = nullptr, *dv_parts = nullptr;  // [splits, pairs, Tk, D]
  size_t bytes = 0;

  FlashBackwardPlan(const OpArgs& args, const FlashSizes& z) {
    const int tile_keys = 16 * kFlashWarps * (z.padded() == 64 ? kBlocks<64> : kBlocks<128>);
    query_tiles = static_cast<int>(ceil_div(z.queries, kTile));
    key_tiles = static_cast<int>(ceil_div(z.keys, tile_keys));
    Parts parts(args.workspace);
    constexpr int64_t kRowFloats = sizeof(RowFacts) / sizeof(float),
                      kTileFloats = sizeof(TileFacts) / sizeof(float);
    const int64_t tiles_in_all = int64_t{z.batch} * query_tiles;
    rows = reinterpret_cast<RowFacts*>(parts.take(tiles_in_all * z.heads * kTile * kRowFloats));
    tiles = reinterpret_cast<TileFacts*>(parts.take(tiles_in_all * kTileFloats));
    const int64_t blocks = z.pairs() * key_tiles;
    if (blocks > 0) {
      splits = static_cast<int>(std::clamp<int64_t>(
          std::min<int64_t>(ceil_div(kFlashBlocks, blocks), query_tiles), 1, kMostSplits));
    }
    if (splits > 1) {
      const int64_t floats = splits * z.pairs() * z.keys * z.width;
      dk_parts = args.din[1] ? parts.take(floats) : nullptr;
      dv_parts = args.din[2] ? parts.take(floats) : nullptr;
    }
    bytes = parts.used();
  }
};

// Two features of a row, zero where there are none.
__device__ inline uint32_t read_pair(const bf16* row, int feature, bool there) {
  return there ? *reinterpret_cast<const uint32_t*>(row + feature) : 0;
}

// A warp takes 16 queries of a head. Delta is the diagonal of a product like those that make dp, so
// that both are the same sum: where a query sees one key, they cancel.
__global__ void __launch_bounds__(kBlockThreads)
    facts_kernel(FlashSizes z, Heads<bf16> grad, Heads<bf16> o, const float* lse, RowFacts* rows,
                 TileFacts* tiles, int query_tiles) {
  __shared__ WarpView views[kFlashWarps];
  const int tile = static_cast<int>(blockIdx.x % query_tiles), n = blockIdx.x / query_tiles;
  const int b = n / z.heads, head = n % z.heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int query = tile * kTile + warp * 16 + lane / 4;  // and 8 further

  const bf16* grads = grad.data + grad.at(b, query, head);
  const bf16* outs = o.data + o.at(b, query, head);
  float upper[4] = {}, lower[4] = {};
  for (int first = 0; first < z.width; first += 16) {
    uint32_t left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int feature = first + i / 2 * 8 + lane % 4 * 2, down = i % 2 * 8;
      const bool there = query + down < z.queries && feature < z.width;
      left[i] = read_pair(grads + down * grad.token, feature, there);
      right[i] = read_pair(outs + down * o.token, feature, there);
    }
    mma(upper, left, right[0], right[2]);
    mma(lower, left, right[1], right[3]);
  }
  // Lane 4r + r/2 has the diagonal's elements r and r + 8.
  const bool has_rows = lane / 8 == lane % 4, odd = lane / 4 % 2 != 0;
  const float delta[2] = {odd ? upper[1] : upper[0], odd ? lower[3] : lower[2]};
  RowFacts facts[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = query + 8 * half;
    facts[half] = {0, 0, INT_MAX, 0};
    if (has_rows && at < z.queries) {
      const int2 seen = z.visible(b, at);
      facts[half] = {lse[z.number(b, at, head)] * kLog2e, delta[half], seen.x, seen.y};
    }
    if (has_rows) {
      rows[int64_t{n} * query_tiles * kTile + at] = facts[half];
    }
  }
  if (head != 0) {
    return;
  }
  WarpView view(make_int2(facts[0].first, facts[0].end), has_rows);
  view.add(WarpView(make_int2(facts[1].first, facts[1].end), has_rows));
  if (lane == 0) {
    views[warp] = view;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kFlashWarps; ++i) {
      view.add(views[i]);
    }
    tiles[int64_t{b} * query_tiles + tile] = {view.inside, view.outside};
  }
}

template <int kD>
constexpr uint32_t query_bytes() {
  constexpr int kRows = 16 * kBlocks<kD> * kFlashWarps;
  return tile_bytes<kD>(2 * kRows + 4 * kTile) + kRows * sizeof(int2) +
         kFlashWarps * sizeof(WarpView);
}

// The rows of dq that a warp has, with what it needs of them.
template <int kD, int kM>
struct QueryRows {
  Fragments<kD, kM> q, grad;
  float lse[kM][2], delta[kM][2];
  float sums[kM][kD / 8][4];

  // Adds what a tile of keys and their values gives, which begins with key0; `seen` of the warp's
  // rows in shared memory. The mask is a case of its own: a branch further inside would cost
  // registers.
  template <bool kMasked>
  __device__ void add_keys(uint32_t tile, const int2* seen, int key0, float exponent) {
    constexpr int kStep = 4 / kM;  // blocks of 8 keys at a time
    const uint32_t along = lanes_along<kD>(tile), down = lanes_down<kD>(tile);
#pragma unroll(kMasked ? 1 : 2)
    for (int t = 0; t < kTile / 8; t += kStep) {
      float p[kM][kStep][4], ds[kM][kStep][4];
      dot_rows<kD, kM>(q, along, t / 2, p);
      dot_rows<kD, kM>(grad, along, kTileBlocks + t / 2, ds);
#pragma unroll
      for (int i = 0; i < kM * kStep * 4; ++i) {
        const int m = i / (kStep * 4), n = i / 4 % kStep, e = i % 4;
        p[m][n][e] = power_of_two(fmaf(p[m][n][e], exponent, -lse[m][e / 2]));
      }
      if (kMasked) {
        hide(seen, key0 + t * 8, 0.0f, p);
      }
#pragma unroll
      for (int i = 0; i < kM * kStep * 4; ++i) {
        const int m = i / (kStep * 4), n = i / 4 % kStep, e = i % 4;
        ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - delta[m][e / 2]);
      }
      add_weighted<kD, kM>(ds, down, t / 2, sums);
    }
  }
};

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 2)
    flash_query_kernel(FlashSizes z, Heads<bf16> q, Heads<bf16> k, Heads<bf16> v, Heads<bf16> grad,
                       const RowFacts* facts, Heads<bf16> dq, bool accumulate, int query_tiles) {
  constexpr int kM = kBlocks<kD>, kRows = 16 * kM * kFlashWarps;
  constexpr uint32_t kStage = tile_bytes<kD>(2 * kTile);
  extern __shared__ __align__(256) unsigned char shared[];
  const uint32_t q_tile = shared_address(shared), g_tile = q_tile + tile_bytes<kD>(kRows),
                 stages = g_tile + tile_bytes<kD>(kRows);
  int2* row_seen = reinterpret_cast<int2*>(shared + tile_bytes<kD>(2 * kRows) + 2 * kStage);
  auto* views = reinterpret_cast<WarpView*>(row_seen + kRows);

  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = blockIdx.x % pairs;
  const int tile_count = static_cast<int>(gridDim.x / pairs);
  const int row0 = (tile_count - 1 - static_cast<int>(blockIdx.x / pairs)) * kRows;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * 16 * kM;
  const RowPlaces places(z, row0);
  const int count = z.rows - row0;  // of rows, if the tile is not full
  const auto facts_of = [&](int row) {
    const int2 place = places(z, row);
    const int64_t head = int64_t{b} * z.heads + kv * z.group + place.y;
    return row < count ? facts[head * query_tiles * kTile + place.x] : RowFacts{0, 0, 0, INT_MAX};
  };

  fetch_stacked<kD, kRows, kBlockThreads>(StackedRows(q, z, b, kv), z, places, count, q_tile);
  fetch_stacked<kD, kRows, kBlockThreads>(StackedRows(grad, z, b, kv), z, places, count, g_tile);
  const bool has_row = lane < 16 * kM && warp_row + lane < count;
  // Rows that are not there hide nothing, and are not stored.
  const RowFacts lane_facts = facts_of(warp_row + lane);
  const int2 seen = make_int2(lane_facts.first, lane_facts.end);
  if (lane < 16 * kM) {
    row_seen[warp_row + lane] = seen;
  }
  const int2 range = block_range<kFlashWarps>(seen, has_row, views);

  const int key_tiles = (range.y - range.x + kTile - 1) / kTile;
  const bf16 *k_rows = k.data + k.at(b, range.x, kv), *v_rows = v.data + v.at(b, range.x, kv);
  const auto fetch = [&](int tile) {
    const int key = tile * kTile, left = range.y - range.x - key;
    const uint32_t to = stages + tile % 2 * kStage;
    fetch_rows<kD, kTile, kBlockThreads>(k_rows + key * k.token, k.token, left, z.chunks, to);
    fetch_rows<kD, kTile, kBlockThreads>(v_rows + key * v.token, v.token, left, z.chunks,
                                         to + tile_bytes<kD>(kTile));
  };
  fetch(0);
  QueryRows<kD, kM> rows = {};
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const RowFacts row_facts = facts_of(warp_row + i * 8 + lane / 4);
    rows.lse[i / 2][i % 2] = row_facts.lse;
    rows.delta[i / 2][i % 2] = row_facts.delta;
  }
  wait_copies();
  __syncthreads();
  load_fragments<kD, kM>(q_tile, warp_row, rows.q);
  load_fragments<kD, kM>(g_tile, warp_row, rows.grad);

  for (int tile = 0; tile < key_tiles; ++tile) {
    wait_copies();
    __syncthreads();
    if (tile + 1 < key_tiles) {
      fetch(tile + 1);
    }
    const int key0 = range.x + tile * kTile;
    if (!views[warp].sees(key0, kTile)) {
      continue;
    }
    const uint32_t stage = stages + tile % 2 * kStage;
    if (views[warp].sees_all(key0, kTile)) {
      rows.template add_keys<false>(stage, nullptr, 0, z.exponent);
    } else {
      rows.template add_keys<true>(stage, row_seen + warp_row, key0, z.exponent);
    }
  }
  for_each_row<kM>([&](int down, int m, int half) {
    if (const int row = warp_row + down; row < count) {
      const int2 place = places(z, row);
      bf16* to = dq.data + dq.at(b, place.x, kv * z.group + place.y);
      put_row(rows.sums, m, half, z.scale, to, z.width, accumulate);
    }
  });
}

// Walks over the tiles of queries of which one sees one of a block's keys, and tells of each what
// it is for the calling warp's keys. Documents hide long stretches: 32 tiles are looked at
// together.
template <int kWarpKeys>
class TileWalk {
 public:
  int tile;          // -1 at the end
  bool seen, whole;  // whether a query sees one of the warp's keys; whether all see all of them

  __device__ TileWalk(const TileFacts* facts, int begin, int end, int2 keys)
      : facts_(facts), first_(begin - 32), end_(end), keys_(keys) {
    next();
  }
  __device__ void next() {
    while (left_ == 0) {
      first_ += 32;
      if (first_ >= end_) {
        tile = -1;
        return;
      }
      look();
    }
    const int bit = __ffs(static_cast<int>(left_)) - 1;
    left_ &= left_ - 1;
    tile = first_ + bit;
    seen = (seen_ >> bit & 1) != 0;
    whole = (whole_ >> bit & 1) != 0;
  }

 private:
  __device__ void look() {
    const int at = first_ + static_cast<int>(threadIdx.x % 32);
    TileFacts facts{make_int2(INT_MAX, 0), make_int2(INT_MAX, 0)};
    if (at < end_) {
      facts = facts_[at];
    }
    const int2 in = facts.inside, out = facts.outside;
    const int key = keys_.x + static_cast<int>(threadIdx.x / 32) * kWarpKeys;
    left_ = __ballot_sync(kAllLanes, keys_.x < out.y && keys_.y > out.x);
    seen_ = __ballot_sync(kAllLanes, key < out.y && key + kWarpKeys > out.x);
    whole_ = __ballot_sync(kAllLanes, key >= in.x && key + kWarpKeys <= in.y);
  }

  const TileFacts* facts_;
  int first_, end_;
  int2 keys_;  // the block's
  unsigned left_ = 0, seen_ = 0, whole_ = 0;
};

// Stores a warp's rows of a gradient of keys or values.
template <int kM, int kTiles>
__device__ inline void store_keys(const KeyGradient<bf16>& grad, const FlashSizes& z, int split,
                                  int splits, int b, int kv, int key0, float factor,
                                  float (&sums)[kM][kTiles][4]) {
  if (grad.to.data == nullptr) {
    return;
  }
  for_each_row<kM>([&](int row, int m, int half) {
    const int key = key0 + row;
    if (key >= z.keys) {
      return;
    }
    if (splits > 1) {
      put_row(sums, m, half, factor, grad.part(z, split, b, kv, key), z.width, false);
    } else {
      put_row(sums, m, half, factor, grad.to.data + grad.to.at(b, key, kv), z.width,
              grad.accumulate);
    }
  });
}

template <int kD>
constexpr uint32_t key_stage_bytes() {
  return tile_bytes<kD>(2 * kTile) + kTile * sizeof(RowFacts);
}
template <int kD>
constexpr uint32_t key_bytes() {
  return tile_bytes<kD>(2 * 16 * kBlocks<kD> * kFlashWarps) + 2 * key_stage_bytes<kD>();
}

// Adds what a tile of queries gives to the gradients of a warp's keys, which begin with key0. The
// mask is a case of its own: a branch further inside would cost registers.
template <int kD, int kM, bool kMasked>
__device__ inline void add_queries(const Fragments<kD, kM>& k_rows, const Fragments<kD, kM>& v_rows,
                                   uint32_t tile, const RowFacts* rows, int key0, float exponent,
                                   float (&dk)[kM][kD / 8][4], float (&dv)[kM][kD / 8][4]) {
  constexpr int kStep = 4 / kM;  // blocks of 8 queries at a time
  const uint32_t along = lanes_along<kD>(tile), down = lanes_down<kD>(tile);
  const int lane = static_cast<int>(fresh_thread() % 32);
#pragma unroll(kMasked ? 1 : kTile / 8 / kStep)
  for (int t = 0; t < kTile / 8; t += kStep) {
    float p[kM][kStep][4], ds[kM][kStep][4];
    dot_rows<kD, kM>(k_rows, along, t / 2, p);
    dot_rows<kD, kM>(v_rows, along, kTileBlocks + t / 2, ds);
#pragma unroll
    for (int i = 0; i < 2 * kStep; ++i) {
      const int n = i / 2, column = i % 2;
      const RowFacts& row = rows[(t + n) * 8 + lane % 4 * 2 + column];
#pragma unroll
      for (int j = 0; j < 2 * kM; ++j) {
        float& score = p[j / 2][n][j % 2 * 2 + column];
        float& other = ds[j / 2][n][j % 2 * 2 + column];
        score = power_of_two(fmaf(score, exponent, -row.lse));
        if (kMasked) {
          const int key = key0 + j * 8 + lane / 4;
          score = key >= row.first && key < row.end ? score : 0.0f;
        }
        other = score * (other - row.delta);
      }
    }
    add_weighted<kD, kM>(p, down, kTileBlocks + t / 2, dv);
    add_weighted<kD, kM>(ds, down, t / 2, dk);
  }
}

template <int kD>
__global__ void __launch_bounds__(kBlockThreads, 2)
    flash_key_kernel(FlashSizes z, Heads<bf16> q, Heads<bf16> k, Heads<bf16> v, Heads<bf16> grad,
                     const RowFacts* facts, const TileFacts* tile_facts, KeyGradient<bf16> dk,
                     KeyGradient<bf16> dv, int query_tiles, int splits) {
  constexpr int kM = kBlocks<kD>, kKeys = 16 * kM * kFlashWarps;
  // A stage is a tile of queries, one of their gradients, and their facts.
  constexpr uint32_t kStage = key_stage_bytes<kD>(), kFactsAt = tile_bytes<kD>(2 * kTile);
  extern __shared__ __align__(256) unsigned char shared[];
  const uint32_t k_tile = shared_address(shared), v_tile = k_tile + tile_bytes<kD>(kKeys),
                 stages = v_tile + tile_bytes<kD>(kKeys);

  int64_t item = blockIdx.x;
  const int split = static_cast<int>(item % splits);
  item /= splits;
  // Early keys are seen by the most queries: they go first.
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = item % pairs;
  const int key0 = static_cast<int>(item / pairs) * kKeys;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int warp_key = static_cast<int>(threadIdx.x / 32) * 16 * kM;
  const int keys = min(kKeys, z.keys - key0);

  fetch_rows<kD, kKeys, kBlockThreads>(k.data + k.at(b, key0, kv), k.token, keys, z.chunks, k_tile);
  fetch_rows<kD, kKeys, kBlockThreads>(v.data + v.at(b, key0, kv), v.token, keys, z.chunks, v_tile);
  // The queries that can see one of these keys, and this split's share of their tiles.
  const int64_t query_first = max(int64_t{0}, key0 - z.q_offset);
  int64_t query_end = z.queries;
  if (z.window > 0) {
    query_end = min(query_end, key0 + keys + z.window - 1 - z.q_offset);
  }
  const int64_t tile_first = query_first / kTile;
  const int64_t tiles = max(int64_t{0}, (query_end + kTile - 1) / kTile - tile_first);
  TileWalk<16 * kM> walk(
      tile_facts + int64_t{b} * query_tiles, static_cast<int>(tile_first + tiles * split / splits),
      static_cast<int>(tile_first + tiles * (split + 1) / splits), make_int2(key0, key0 + keys));

  // Each tile is taken head by head.
  const StackedRows q_rows(q, z, b, kv), g_rows(grad, z, b, kv);
  facts += (int64_t{b} * z.heads + kv * z.group) * query_tiles * kTile;
  int head = 0;
  const auto fetch = [&](uint32_t to) {
    const int query0 = walk.tile * kTile, count = z.queries - query0;
    fetch_rows<kD, kTile, kBlockThreads>(q_rows.at(query0, head), q_rows.token, count, z.chunks,
                                         to);
    fetch_rows<kD, kTile, kBlockThreads>(g_rows.at(query0, head), g_rows.token, count, z.chunks,
                                         to + tile_bytes<kD>(kTile));
    if (const uint32_t thread = fresh_thread(); thread < kTile) {
      copy_async(to + kFactsAt + thread * sizeof(RowFacts),
                 facts + (int64_t{head} * query_tiles * kTile + query0 + thread), true);
    }
  };
  if (walk.tile >= 0) {
    fetch(stages);
  }
  wait_copies();
  __syncthreads();
  Fragments<kD, kM> k_rows, v_rows;
  load_fragments<kD, kM>(k_tile, warp_key, k_rows);
  load_fragments<kD, kM>(v_tile, warp_key, v_rows);

  float dk_sums[kM][kD / 8][4] = {}, dv_sums[kM][kD / 8][4] = {};
  for (uint32_t stage = 0; walk.tile >= 0; stage ^= 1) {
    const bool seen = walk.seen, whole = walk.whole;
    wait_copies();
    __syncthreads();
    if (++head == z.group) {
      head = 0;
      walk.next();
    }
    if (walk.tile >= 0) {
      fetch(stages + (stage ^ 1) * kStage);
    }
    if (!seen) {
      continue;
    }
    const auto* rows = reinterpret_cast<const RowFacts*>(shared + tile_bytes<kD>(2 * kKeys) +
                                                         stage * kStage + kFactsAt);
    const uint32_t tile = stages + stage * kStage;
    if (whole) {
      add_queries<kD, kM, false>(k_rows, v_rows, tile, rows, 0, z.exponent, dk_sums, dv_sums);
    } else {
      add_queries<kD, kM, true>(k_rows, v_rows, tile, rows, key0 + warp_key, z.exponent, dk_sums,
                                dv_sums);
    }
  }
  // k and v may be one tensor: dv then adds to what was written to dk, in the same thread.
  store_keys(dk, z, split, splits, b, kv, key0 + warp_key, z.scale, dk_sums);
  store_keys(dv, z, split, splits, b, kv, key0 + warp_key, 1.0f, dv_sums);
}

template <int kD>
void backward(const OpArgs& args, const FlashSizes& z, const FlashBackwardPlan& plan) {
  const Heads<bf16> q(args.in[0]), k(args.in[1]), v(args.in[2]), grad(args.dout[0]);
  const int64_t row_blocks = z.pairs() * ceil_div(z.rows, 16 * kBlocks<kD> * kFlashWarps);
  if (args.din[0] && row_blocks > 0) {
    const auto kernel = &flash_query_kernel<kD>;
    allow_shared(kernel, query_bytes<kD>());
    kernel<<<static_cast<unsigned>(row_blocks), kBlockThreads, query_bytes<kD>(), this_stream()>>>(
        z, q, k, v, grad, plan.rows, Heads<bf16>(args.din[0]), args.accumulate[0],
        plan.query_tiles);
    check_launch("attention dq");
  }
  const int64_t key_blocks = z.pairs() * plan.key_tiles * plan.splits;
  if ((args.din[1] || args.din[2]) && key_blocks > 0) {
    const KeyGradient<bf16> dk{Heads<bf16>(args.din[1]), plan.dk_parts, args.accumulate[1]};
    const KeyGradient<bf16> dv{Heads<bf16>(args.din[2]), plan.dv_parts, args.accumulate[2]};
    const auto kernel = &flash_key_kernel<kD>;
    allow_shared(kernel, key_bytes<kD>());
    kernel<<<static_cast<unsigned>(key_blocks), kBlockThreads, key_bytes<kD>(), this_stream()>>>(
        z, q, k, v, grad, plan.rows, plan.tiles, dk, dv, plan.query_tiles, plan.splits);
    check_launch("attention dk, dv");
    if (plan.splits > 1) {
      add_parts(z, dk, plan.splits);
      add_parts(z, dv, plan.splits);
    }
  }
}

}  // namespace

void attention_gpu::flash_backward(const OpArgs& args) {
  const FlashSizes z(args);
  const FlashBackwardPlan plan(args, z);
  if (const int64_t blocks = int64_t{z.batch} * z.heads * plan.query_tiles; blocks > 0) {
    facts_kernel<<<static_cast<unsigned>(blocks), kBlockThreads, 0, this_stream()>>>(
        z, Heads<bf16>(args.dout[0]), Heads<bf16>(args.out[0]), args.saved[0].ptr<float>(),
        plan.rows, plan.tiles, plan.query_tiles);
    check_launch("attention delta");
  }
  if (z.padded() == 64) {
    backward<64>(args, z, plan);
  } else {
    backward<128>(args, z, plan);
  }
}

size_t attention_gpu::flash_backward_bytes(const OpArgs& args) {
  return FlashBackwardPlan(args, FlashSizes(args)).bytes;
}

}  // namespace fwpkm
