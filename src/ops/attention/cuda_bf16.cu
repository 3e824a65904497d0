// Forward on tensor cores: a block for each tile of stacked rows, over the keys that they see, with
// a running softmax in base 2. Where tiles are too few to fill a GPU, their keys are split among
// blocks; in decoding, where a pair has a few rows only, a block is one warp.
#include <algorithm>
#include <limits>

#include "ops/attention/flash.cuh"

namespace fwpkm {
namespace {

using namespace attention_gpu;

constexpr int64_t kMostSplits = 128;
constexpr int kSmallRows = 48;  // up to so many stacked rows, tiles have 16
// A row's exponents are taken relative to a shift that need not be its largest score: it moves only
// when a score exceeds it by this much, and then the sums so far are scaled down.
constexpr float kSlack = 8;
constexpr float kLowest = -1e30f;  // finite: minus infinity less a shift is never NaN

// 16-row blocks that a warp has; as many as registers allow.
constexpr int blocks_of_warp(int padded, bool small) {
  return padded == 64 && !small ? 2 : 1;
}

// How forward is cut; follows from the shapes alone.
struct FlashPlan {
  bool small;
  int tile_rows, tiles;
  SplitSums parts;
  size_t bytes = 0;

  FlashPlan(const FlashSizes& z, void* workspace) {
    small = z.rows <= kSmallRows;
    tile_rows = 16 * blocks_of_warp(z.padded(), small) * (small ? 1 : kFlashWarps);
    tiles = static_cast<int>(ceil_div(z.rows, tile_rows));
    const int64_t blocks = z.pairs() * tiles;
    if (blocks == 0) {
      return;
    }
    const int64_t last = z.queries - 1 + z.q_offset;
    int64_t range = std::min<int64_t>(z.keys, last + 1);
    if (z.window > 0) {
      const int64_t tile_queries = std::min<int64_t>(z.queries, ceil_div(tile_rows, z.group) + 1);
      range = std::min(range, z.window + tile_queries);
    }
    parts.splits = static_cast<int>(std::clamp<int64_t>(
        std::min(ceil_div(kFlashBlocks, blocks), range / (2 * kTile)), 1, kMostSplits));
    if (parts.splits > 1) {
      Parts memory(workspace);
      parts.place(z, memory);
      bytes = memory.used();
    }
  }
};

template <int kD, int kRows>
constexpr uint32_t shared_bytes() {
  return tile_bytes<kD>(kRows + 4 * kTile) + kRows * sizeof(int2) + kFlashWarps * sizeof(WarpView);
}

// The running softmax of a warp's rows; a lane has 2 kM of them, with a quarter of their keys.
template <int kD, int kM>
struct RowSums {
  float shift[kM][2], total[kM][2];
  float sums[kM][kD / 8][4];

  __device__ RowSums() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shift[m][half] = kLowest;
        total[m][half] = 0;
      }
#pragma unroll
      for (int t = 0; t < kD / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[m][t][e] = 0;
        }
      }
    }
  }

  // Moves the shifts up where these scores ask for it.
  template <int kTiles>
  __device__ void make_room(const float (&scores)[kM][kTiles][4], float exponent) {
    float most[kM][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          top = fmaxf(top, fmaxf(scores[m][t][2 * half], scores[m][t][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
        most[m][half] = top * exponent;
        grows = grows || most[m][half] > shift[m][half] + kSlack;
      }
    }
    if (!__any_sync(kAllLanes, grows)) {
      return;
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float old = shift[m][half];
        const float next = most[m][half] > old + kSlack ? most[m][half] : old;
        const float shrink = power_of_two(old - next);
        shift[m][half] = next;
        total[m][half] *= shrink;
#pragma unroll
        for (int t = 0; t < kD / 8; ++t) {
          sums[m][t][2 * half] *= shrink;
          sums[m][t][2 * half + 1] *= shrink;
        }
      }
    }
  }

  // Scores become exponentials, which add to the totals.
  template <int kTiles>
  __device__ void raise(float (&scores)[kM][kTiles][4], float exponent) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[m][t][e] = power_of_two(fmaf(scores[m][t][e], exponent, -shift[m][e / 2]));
          total[m][e / 2] += scores[m][t][e];
        }
      }
    }
  }

  // Adds up a row's total over the lanes that share it.
  __device__ void finish() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        total[m][half] += __shfl_xor_sync(kAllLanes, total[m][half], 1);
        total[m][half] += __shfl_xor_sync(kAllLanes, total[m][half], 2);
      }
    }
  }
};

template <int kD, int kM, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kWarps == 1 ? 6 : 2)
    flash_kernel(FlashSizes z, Heads<bf16> q, Heads<bf16> k, Heads<bf16> v, Heads<bf16> o,
                 float* lse, int tiles, SplitSums parts) {
  constexpr int kRows = 16 * kM * kWarps, kThreads = 32 * kWarps;
  constexpr uint32_t kStage = tile_bytes<kD>(2 * kTile);  // a tile of keys, then one of values
  extern __shared__ __align__(256) unsigned char shared[];
  const uint32_t q_tile = shared_address(shared), stages = q_tile + tile_bytes<kD>(kRows);
  int2* row_seen = reinterpret_cast<int2*>(shared + tile_bytes<kD>(kRows) + 2 * kStage);
  auto* views = reinterpret_cast<WarpView*>(row_seen + kRows);

  int64_t item = blockIdx.x;
  const int split = static_cast<int>(item % parts.splits);
  item /= parts.splits;
  // Late tiles see the most keys: they go first.
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = item % pairs;
  const int row0 = (tiles - 1 - static_cast<int>(item / pairs)) * kRows;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * 16 * kM;

  const RowPlaces places(z, row0);
  const int count = z.rows - row0;  // of rows, if the tile is not full
  fetch_stacked<kD, kRows, kThreads>(StackedRows(q, z, b, kv), z, places, count, q_tile);
  const bool has_row = lane < 16 * kM && warp_row + lane < count;
  int2 seen = make_int2(0, INT_MAX);  // rows that are not there hide nothing, and are not stored
  if (has_row) {
    seen = z.visible(b, places(z, warp_row + lane).x);
  }
  if (lane < 16 * kM) {
    row_seen[warp_row + lane] = seen;
  }
  const int2 range = block_range<kWarps>(seen, has_row, views);

  const int64_t key_tiles = (int64_t{range.y} - range.x + kTile - 1) / kTile;
  const int tile_begin = static_cast<int>(key_tiles * split / parts.splits);
  const int tile_end = static_cast<int>(key_tiles * (split + 1) / parts.splits);
  const bf16 *k_rows = k.data + k.at(b, range.x, kv), *v_rows = v.data + v.at(b, range.x, kv);
  const auto fetch = [&](int tile) {
    const int key = tile * kTile, left = range.y - range.x - key;
    const uint32_t to = stages + tile % 2 * kStage;
    fetch_rows<kD, kTile, kThreads>(k_rows + key * k.token, k.token, left, z.chunks, to);
    fetch_rows<kD, kTile, kThreads>(v_rows + key * v.token, v.token, left, z.chunks,
                                    to + tile_bytes<kD>(kTile));
  };
  if (tile_begin < tile_end) {
    fetch(tile_begin);
  }
  wait_copies();
  __syncthreads();
  Fragments<kD, kM> queries;
  load_fragments<kD, kM>(q_tile, warp_row, queries);

  RowSums<kD, kM> rows;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    // One barrier: this tile has arrived, and nobody reads the one before, which the next replaces.
    wait_copies();
    __syncthreads();
    if (tile + 1 < tile_end) {
      fetch(tile + 1);
    }
    const int key0 = range.x + tile * kTile;
    if (!views[warp].sees(key0, kTile)) {
      continue;
    }
    const uint32_t stage = stages + tile % 2 * kStage;
    float scores[kM][kTile / 8][4];
    dot_rows<kD, kM>(queries, lanes_along<kD>(stage), 0, scores);
    if (!views[warp].sees_all(key0, kTile)) {
      hide(row_seen + warp_row, key0, -INFINITY, scores);
    }
    rows.make_room(scores, z.exponent);
    rows.raise(scores, z.exponent);
    add_weighted<kD, kM>(scores, lanes_down<kD>(stage), kTileBlocks, rows.sums);
  }
  rows.finish();

  for_each_row<kM>([&](int down, int m, int half) {
    const int row = warp_row + down;
    if (row >= count) {
      return;
    }
    const int2 place = places(z, row);
    const int query = place.x, head = kv * z.group + place.y;
    const float most = rows.shift[m][half] * kLn2, total = rows.total[m][half];
    if (parts.splits > 1) {
      const int64_t part = (split * pairs + pair) * z.rows + row0 + row;
      put_row(rows.sums, m, half, 1.0f, parts.sums + part * z.width, z.width, false);
      if (lane % 4 == 0) {
        parts.stats[2 * part] = most;
        parts.stats[2 * part + 1] = total;
      }
    } else {
      put_row(rows.sums, m, half, 1 / total, o.data + o.at(b, query, head), z.width, false);
      if (lse != nullptr && lane % 4 == 0) {
        lse[z.number(b, query, head)] = most + logf(total);
      }
    }
  });
}

template <int kD, int kM, int kWarps>
void run(const OpArgs& args, const FlashSizes& z, const FlashPlan& plan) {
  const auto kernel = &flash_kernel<kD, kM, kWarps>;
  constexpr uint32_t kBytes = shared_bytes<kD, 16 * kM * kWarps>();
  allow_shared(kernel, kBytes);
  const int64_t blocks = z.pairs() * plan.tiles * plan.parts.splits;
  kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, kBytes, this_stream()>>>(
      z, Heads<bf16>(args.in[0]), Heads<bf16>(args.in[1]), Heads<bf16>(args.in[2]),
      Heads<bf16>(args.out[0]), args.saved[0].ptr<float>(), plan.tiles, plan.parts);
  check_launch("attention");
}

}  // namespace

bool attention_gpu::flash_fits(const OpArgs& args) {
  const View &q = args.in[0], &k = args.in[1], &v = args.in[2];
  if (q.dtype != DType::kBF16 || q.dim(3) < 1 || q.dim(3) > 128 ||
      args.attr<AttentionSettings>().scale <= 0 || q.dim(2) / k.dim(2) > 1024) {
    return false;
  }
  // Rows are copied 16 bytes at a time, results written in pairs.
  if (!in_runs_of(8, {q, k, v}) || !in_runs_of(2, {args.out[0]})) {
    return false;
  }
  if (!args.dout.empty()) {
    if (!in_runs_of(8, {args.dout[0]}) || !in_runs_of(2, {args.din[0], args.din[1], args.din[2]})) {
      return false;
    }
  }
  const int64_t most = std::numeric_limits<int32_t>::max();
  return q.stride(1) <= most && q.stride(2) <= most &&
         (args.dout.empty() || (args.dout[0].stride(1) <= most && args.dout[0].stride(2) <= most));
}

void attention_gpu::flash_forward(const OpArgs& args) {
  const FlashSizes z(args);
  const FlashPlan plan(z, args.workspace);
  if (z.pairs() * plan.tiles == 0) {
    return;
  }
  if (z.padded() == 64) {
    plan.small ? run<64, blocks_of_warp(64, true), 1>(args, z, plan)
               : run<64, blocks_of_warp(64, false), kFlashWarps>(args, z, plan);
  } else {
    plan.small ? run<128, blocks_of_warp(128, true), 1>(args, z, plan)
               : run<128, blocks_of_warp(128, false), kFlashWarps>(args, z, plan);
  }
  if (plan.parts.splits > 1) {
    merge_splits(z, Heads<bf16>(args.out[0]), args.saved[0].ptr<float>(), plan.parts);
  }
}

size_t attention_gpu::flash_forward_bytes(const OpArgs& args) {
  return FlashPlan(FlashSizes(args), nullptr).bytes;
}

}  // namespace fwpkm
