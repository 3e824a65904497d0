// Forward: a block for each tile of stacked rows, over the keys that they see, with a running
// softmax. Where tiles are too few to fill a GPU (decoding), their keys are split among blocks and
// the parts merged.
#include <algorithm>

#include "ops/attention/tile.cuh"

namespace fwpkm {
namespace {

using namespace attention_gpu;

constexpr int64_t kMostSplits = 64;

// How forward is cut; follows from the shapes alone.
struct ForwardPlan {
  bool small;  // tiles of 16 rows instead of 64
  int tiles, splits = 1;
  // Of each split and row: the sums [D], and their maximum and the sum of exponentials.
  float *sums = nullptr, *stats = nullptr;
  size_t bytes = 0;

  ForwardPlan(const Sizes& z, void* workspace) {
    small = z.rows <= 16;
    tiles = static_cast<int>(ceil_div(z.rows, small ? 16 : kTile));
    const int64_t blocks = z.pairs() * tiles * z.slices();
    if (blocks == 0 || z.keys == 0) {
      return;
    }
    const int64_t last = z.queries - 1 + z.q_offset;
    int64_t range = std::min<int64_t>(z.keys, last + 1);
    if (z.window > 0) {
      const int64_t tile_queries = std::min<int64_t>(z.queries, ceil_div(kTile, z.group) + 1);
      range = std::min(range, z.window + tile_queries);
    }
    splits = static_cast<int>(std::clamp<int64_t>(
        std::min(ceil_div(kBusyBlocks, blocks), range / (2 * kTile)), 1, kMostSplits));
    if (splits > 1) {
      Parts parts(workspace);
      const int64_t rows = splits * z.pairs() * z.rows;
      stats = parts.take(2 * rows);
      sums = parts.take(rows * z.width);
      bytes = parts.used();
    }
  }
};

template <int kRm, int kCols>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sizes z, Heads q, Heads k, Heads v, Heads o, float* lse, ForwardPlan plan,
                   int slices) {
  constexpr int kRows = 16 * kRm;
  __shared__ alignas(16) float buffer[kBuffer];
  __shared__ alignas(16) float factors[kTile * (kRows + kPad)];
  __shared__ int64_t q_offsets[kRows], k_offsets[kTile], v_offsets[kTile];
  __shared__ int row_first[kRows], row_end[kRows];

  int64_t item = blockIdx.x;
  const int slice = static_cast<int>(item % slices);
  item /= slices;
  const int split = static_cast<int>(item % plan.splits);
  item /= plan.splits;
  // Late tiles see the most keys: they go first.
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = item % pairs;
  const int row0 = (plan.tiles - 1 - static_cast<int>(item / pairs)) * kRows;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int count = min(kRows, z.rows - row0);
  const int thread = threadIdx.x, ty = thread / 16, tx = thread % 16;
  const int column0 = slice * 64 * kCols;

  if (thread < kRows) {
    int2 seen = make_int2(0, 0);
    if (thread < count) {
      const int query = (row0 + thread) / z.group, head = kv * z.group + (row0 + thread) % z.group;
      seen = z.visible(b, query);
      q_offsets[thread] = q.at(b, query, head);
    }
    row_first[thread] = seen.x;
    row_end[thread] = seen.y;
  }
  __syncthreads();
  int first = row_first[0], end = row_end[0];
  for (int r = 1; r < count; ++r) {
    first = min(first, row_first[r]);
    end = max(end, row_end[r]);
  }
  int low[kRm], high[kRm];
  float most[kRm], total[kRm], sums[kRm][4 * kCols];
#pragma unroll
  for (int i = 0; i < kRm; ++i) {
    low[i] = row_first[ty * kRm + i];
    high[i] = row_end[ty * kRm + i];
    most[i] = -INFINITY;
    total[i] = 0;
#pragma unroll
    for (int c = 0; c < 4 * kCols; ++c) {
      sums[i][c] = 0;
    }
  }

  const int64_t tiles = (int64_t{end} - first + kTile - 1) / kTile;
  const int tile_end = static_cast<int>(tiles * (split + 1) / plan.splits);
  for (int tile = static_cast<int>(tiles * split / plan.splits); tile < tile_end; ++tile) {
    const int key0 = first + tile * kTile, keys = min(kTile, end - key0);
    if (thread < keys) {
      k_offsets[thread] = k.at(b, key0 + thread, kv);
      v_offsets[thread] = v.at(b, key0 + thread, kv);
    }
    float s[kRm][4];
    row_products<kRm>(q.data, q_offsets, count, k.data, k_offsets, keys, z.width, buffer, s);
#pragma unroll
    for (int i = 0; i < kRm; ++i) {
      float top = most[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = key0 + tx * 4 + j;
        s[i][j] = key >= low[i] && key < high[i] ? __fmul_rn(z.scale, s[i][j]) : -INFINITY;
        top = fmaxf(top, s[i][j]);
      }
      for (int step = 8; step > 0; step /= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      // Before the first key that the row sees, everything is minus infinity.
      const float shrink = top == most[i] ? 1.0f : expf(most[i] - top);
      float tile_total = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = s[i][j] == -INFINITY ? 0.0f : expf(s[i][j] - top);
        tile_total += s[i][j];
      }
      for (int step = 8; step > 0; step /= 2) {
        tile_total += __shfl_xor_sync(0xffffffffu, tile_total, step);
      }
      most[i] = top;
      total[i] = total[i] * shrink + tile_total;
#pragma unroll
      for (int c = 0; c < 4 * kCols; ++c) {
        sums[i][c] *= shrink;
      }
    }
    store_tile(s, factors);
    add_rows<kRm, kCols>(factors, v.data, v_offsets, keys, column0, z.width, buffer, sums);
  }

#pragma unroll
  for (int i = 0; i < kRm; ++i) {
    const int row = row0 + ty * kRm + i;
    if (row >= z.rows) {
      continue;
    }
    const int query = row / z.group, head = kv * z.group + row % z.group;
    const int64_t part = (split * pairs + pair) * z.rows + row;
    float* to = plan.splits > 1 ? plan.sums + part * z.width : o.data + o.at(b, query, head);
#pragma unroll
    for (int c = 0; c < 4 * kCols; ++c) {
      const int column = column0 + c / 4 * 64 + tx * 4 + c % 4;
      if (column < z.width) {
        to[column] = plan.splits > 1 ? sums[i][c] : sums[i][c] / total[i];
      }
    }
    if (slice == 0 && tx == 0) {
      if (plan.splits > 1) {
        plan.stats[2 * part] = most[i];
        plan.stats[2 * part + 1] = total[i];
      } else if (lse != nullptr) {
        lse[z.number(b, query, head)] = most[i] + logf(total[i]);
      }
    }
  }
}

// Merges the splits: a warp for each row.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Sizes z, Heads o, float* lse, ForwardPlan plan) {
  const int64_t rows = int64_t{z.batch} * z.kv_heads * z.rows;
  const int lane = threadIdx.x % 32;
  for (int64_t at = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; at < rows;
       at += int64_t{gridDim.x} * (kThreads / 32)) {
    const int64_t pair = at / z.rows;
    const int row = static_cast<int>(at % z.rows);
    const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
    const int query = row / z.group, head = kv * z.group + row % z.group;
    float most = -INFINITY, total = 0;
    for (int split = 0; split < plan.splits; ++split) {
      most = fmaxf(most, plan.stats[2 * (split * rows + at)]);
    }
    // A split in which the row sees nothing weighs exp(-inf) = 0.
    for (int split = 0; split < plan.splits; ++split) {
      const float* stats = plan.stats + 2 * (split * rows + at);
      total += stats[1] * expf(stats[0] - most);
    }
    float* to = o.data + o.at(b, query, head);
    for (int column = lane; column < z.width; column += 32) {
      float sum = 0;
      for (int split = 0; split < plan.splits; ++split) {
        const int64_t part = split * rows + at;
        sum += plan.sums[part * z.width + column] * expf(plan.stats[2 * part] - most);
      }
      to[column] = sum / total;
    }
    if (lse != nullptr && lane == 0) {
      lse[z.number(b, query, head)] = most + logf(total);
    }
  }
}

}  // namespace

void attention_forward_cuda(const OpArgs& args) {
  const Sizes z(args);
  const ForwardPlan plan(z, args.workspace);
  const int64_t blocks = z.pairs() * plan.tiles * z.slices() * plan.splits;
  if (blocks == 0) {
    return;
  }
  const Heads o(args.out[0]);
  float* lse = args.saved[0].ptr<float>();
  const auto run = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, this_stream()>>>(
        z, Heads(args.in[0]), Heads(args.in[1]), Heads(args.in[2]), o, lse, plan, z.slices());
    check_launch("attention");
  };
  if (z.slice_columns() == 64) {
    run(plan.small ? &forward_kernel<1, 1> : &forward_kernel<4, 1>);
  } else {
    run(plan.small ? &forward_kernel<1, 2> : &forward_kernel<4, 2>);
  }
  if (plan.splits > 1) {
    merge_kernel<<<blocks_for(z.pairs() * z.rows * 32, kThreads), kThreads, 0, this_stream()>>>(
        z, o, lse, plan);
    check_launch("attention merge");
  }
}

size_t attention_workspace_cuda(const OpArgs& args, bool backward) {
  return backward ? backward_bytes(args) : ForwardPlan(Sizes(args), nullptr).bytes;
}

}  // namespace fwpkm
