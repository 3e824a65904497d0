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
  int tiles;
  SplitSums parts;
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
    parts.splits = static_cast<int>(std::clamp<int64_t>(
        std::min(ceil_div(kBusyBlocks, blocks), range / (2 * kTile)), 1, kMostSplits));
    if (parts.splits > 1) {
      Parts memory(workspace);
      parts.place(z, memory);
      bytes = memory.used();
    }
  }
};

template <typename T, int kRm, int kCols>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Sizes z, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> o, float* lse,
                   ForwardPlan plan, int slices) {
  constexpr int kRows = 16 * kRm;
  __shared__ alignas(16) float buffer[kBuffer];
  __shared__ alignas(16) float factors[kTile * (kRows + kPad)];
  __shared__ int64_t q_offsets[kRows], k_offsets[kTile], v_offsets[kTile];
  __shared__ int row_first[kRows], row_end[kRows];

  int64_t item = blockIdx.x;
  const int slice = static_cast<int>(item % slices);
  item /= slices;
  const int splits = plan.parts.splits, split = static_cast<int>(item % splits);
  item /= splits;
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
  const int tile_end = static_cast<int>(tiles * (split + 1) / splits);
  for (int tile = static_cast<int>(tiles * split / splits); tile < tile_end; ++tile) {
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
#pragma unroll
    for (int c = 0; c < 4 * kCols; ++c) {
      const int column = column0 + c / 4 * 64 + tx * 4 + c % 4;
      if (column >= z.width) {
        continue;
      }
      if (splits > 1) {
        plan.parts.sums[part * z.width + column] = sums[i][c];
      } else {
        o.data[o.at(b, query, head) + column] = from_float<T>(sums[i][c] / total[i]);
      }
    }
    if (slice == 0 && tx == 0) {
      if (splits > 1) {
        plan.parts.stats[2 * part] = most[i];
        plan.parts.stats[2 * part + 1] = total[i];
      } else if (lse != nullptr) {
        lse[z.number(b, query, head)] = most[i] + logf(total[i]);
      }
    }
  }
}

// Merges the splits: a warp for 32 columns of a row. Each lane weighs one split of 32 at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Sizes z, Heads<T> o, float* lse, SplitSums parts) {
  constexpr unsigned kAll = 0xffffffffu;
  const int64_t rows = int64_t{z.batch} * z.kv_heads * z.rows;
  const int lane = threadIdx.x % 32, blocks = (z.width + 31) / 32;
  for (int64_t item = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; item < rows * blocks;
       item += int64_t{gridDim.x} * (kThreads / 32)) {
    const int64_t at = item / blocks, pair = at / z.rows;
    const int column = static_cast<int>(item % blocks) * 32 + lane;
    const int row = static_cast<int>(at % z.rows);
    const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
    const int query = row / z.group, head = kv * z.group + row % z.group;
    float most = -INFINITY;
    for (int split = lane; split < parts.splits; split += 32) {
      most = fmaxf(most, parts.stats[2 * (split * rows + at)]);
    }
    most = warp_max(most);
    float total = 0, sum = 0;
    for (int first = 0; first < parts.splits; first += 32) {
      const int count = min(32, parts.splits - first);
      float weight = 0, mass = 0;
      if (lane < count) {
        // A split in which the row sees nothing weighs exp(-inf) = 0.
        const float* stats = parts.stats + 2 * ((first + lane) * rows + at);
        weight = expf(stats[0] - most);
        mass = stats[1];
      }
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const float factor = __shfl_sync(kAll, weight, i);
        total += __shfl_sync(kAll, mass, i) * factor;
        if (column < z.width) {
          sum += parts.sums[((first + i) * rows + at) * z.width + column] * factor;
        }
      }
    }
    if (column < z.width) {
      o.data[o.at(b, query, head) + column] = from_float<T>(sum / total);
    }
    if (lse != nullptr && column == 0) {
      lse[z.number(b, query, head)] = most + logf(total);
    }
  }
}

template <typename T>
void forward(const OpArgs& args) {
  const Sizes z(args);
  const ForwardPlan plan(z, args.workspace);
  const int64_t blocks = z.pairs() * plan.tiles * z.slices() * plan.parts.splits;
  if (blocks == 0) {
    return;
  }
  const Heads<T> o(args.out[0]);
  float* lse = args.saved[0].ptr<float>();
  const auto run = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, this_stream()>>>(
        z, Heads<T>(args.in[0]), Heads<T>(args.in[1]), Heads<T>(args.in[2]), o, lse, plan,
        z.slices());
    check_launch("attention");
  };
  if (z.slice_columns() == 64) {
    run(plan.small ? &forward_kernel<T, 1, 1> : &forward_kernel<T, 4, 1>);
  } else {
    run(plan.small ? &forward_kernel<T, 1, 2> : &forward_kernel<T, 4, 2>);
  }
  if (plan.parts.splits > 1) {
    merge_splits(z, o, lse, plan.parts);
  }
}

}  // namespace

template <typename T>
void attention_gpu::merge_splits(const Sizes& z, const Heads<T>& o, float* lse,
                                 const SplitSums& parts) {
  const int64_t warps = z.pairs() * z.rows * ceil_div(z.width, 32);
  merge_kernel<T>
      <<<blocks_for(warps * 32, kThreads), kThreads, 0, this_stream()>>>(z, o, lse, parts);
  check_launch("attention merge");
}
template void attention_gpu::merge_splits(const Sizes&, const Heads<float>&, float*,
                                          const SplitSums&);
template void attention_gpu::merge_splits(const Sizes&, const Heads<bf16>&, float*,
                                          const SplitSums&);

void attention_forward_cuda(const OpArgs& args) {
  if (flash_fits(args)) {
    flash_forward(args);
    return;
  }
  with_real(args.in[0], [&](auto* type) { forward<std::remove_pointer_t<decltype(type)>>(args); });
}

size_t attention_workspace_cuda(const OpArgs& args, bool backward) {
  if (flash_fits(args)) {
    return backward ? flash_backward_bytes(args) : flash_forward_bytes(args);
  }
  return backward ? backward_bytes(args) : ForwardPlan(Sizes(args), nullptr).bytes;
}

}  // namespace fwpkm
