// Backward in two passes that compute the scores again: dq by tiles of stacked rows over the keys
// that they see, dk and dv by tiles of keys over the rows that see them. The rows of a tile of keys
// may be split among blocks; their sums are then added up in order.
#include <algorithm>

#include "ops/attention/tile.cuh"

namespace fwpkm {
namespace {

using namespace attention_gpu;

constexpr int64_t kMostSplits = 16;

struct BackwardPlan {
  int row_tiles, key_tiles, splits = 1;
  float* delta = nullptr;                          // [B, Hq, Tq]
  float *dk_parts = nullptr, *dv_parts = nullptr;  // [splits, pairs, Tk, D]
  size_t bytes = 0;

  BackwardPlan(const OpArgs& args, const Sizes& z) {
    row_tiles = static_cast<int>(ceil_div(z.rows, kTile));
    key_tiles = static_cast<int>(ceil_div(z.keys, kTile));
    Parts parts(args.workspace);
    delta = parts.take(z.pairs() * z.rows);
    const int64_t blocks = z.pairs() * key_tiles * z.slices();
    if (blocks > 0) {
      // Twice as many as in forward: tiles of keys differ more in work.
      splits = static_cast<int>(std::clamp<int64_t>(
          std::min<int64_t>(ceil_div(2 * kBusyBlocks, blocks), row_tiles / 2), 1, kMostSplits));
    }
    if (splits > 1) {
      const int64_t floats = splits * z.pairs() * z.keys * z.width;
      if (args.din[1]) {
        dk_parts = parts.take(floats);
      }
      if (args.din[2]) {
        dv_parts = parts.take(floats);
      }
    }
    bytes = parts.used();
  }
};

// delta = g.o of each row, summed in the order of row_products: where a query sees one key, g.v
// minus delta is then exactly zero.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(Sizes z, Heads<T> grad, Heads<T> o, float* delta) {
  __shared__ alignas(16) float buffer[kBuffer];
  __shared__ int64_t g_offsets[kTile], o_offsets[kTile];
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = blockIdx.x % pairs;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int row0 = static_cast<int>(blockIdx.x / pairs) * kTile, count = min(kTile, z.rows - row0);
  const int thread = threadIdx.x;
  const int query = (row0 + thread) / z.group, head = kv * z.group + (row0 + thread) % z.group;
  if (thread < count) {
    g_offsets[thread] = grad.at(b, query, head);
    o_offsets[thread] = o.at(b, query, head);
  }
  float* o_tile = buffer + kDepth * (kTile + kPad);
  float sum = 0;
  for (int d0 = 0; d0 < z.width; d0 += kDepth) {
    __syncthreads();
    load_transposed<kTile>(grad.data, g_offsets, count, d0, z.width, buffer);
    load_transposed<kTile>(o.data, o_offsets, count, d0, z.width, o_tile);
    __syncthreads();
    if (thread < count) {
      for (int d = 0; d < kDepth; ++d) {
        const int at = d * (kTile + kPad) + thread;
        sum = fmaf(buffer[at], o_tile[at], sum);
      }
    }
  }
  if (thread < count) {
    delta[z.number(b, query, head)] = sum;
  }
}

template <typename T, int kCols>
__global__ void __launch_bounds__(kThreads)
    query_kernel(Sizes z, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> grad, const float* lse,
                 const float* delta, Heads<T> dq, bool accumulate, int row_tiles, int slices) {
  __shared__ alignas(16) float buffer[kBuffer];
  __shared__ alignas(16) float factors[kTile * (kTile + kPad)];
  __shared__ int64_t q_offsets[kTile], g_offsets[kTile], k_offsets[kTile], v_offsets[kTile];
  __shared__ int row_first[kTile], row_end[kTile];
  __shared__ float row_lse[kTile], row_delta[kTile];

  int64_t item = blockIdx.x;
  const int column0 = static_cast<int>(item % slices) * 64 * kCols;
  item /= slices;
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = item % pairs;
  const int row0 = (row_tiles - 1 - static_cast<int>(item / pairs)) * kTile;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int count = min(kTile, z.rows - row0);
  const int thread = threadIdx.x, ty = thread / 16, tx = thread % 16;

  if (thread < kTile) {
    int2 seen = make_int2(0, 0);
    float shift = 0, center = 0;
    if (thread < count) {
      const int query = (row0 + thread) / z.group, head = kv * z.group + (row0 + thread) % z.group;
      seen = z.visible(b, query);
      q_offsets[thread] = q.at(b, query, head);
      g_offsets[thread] = grad.at(b, query, head);
      shift = lse[z.number(b, query, head)];
      center = delta[z.number(b, query, head)];
    }
    row_first[thread] = seen.x;
    row_end[thread] = seen.y;
    row_lse[thread] = shift;
    row_delta[thread] = center;
  }
  __syncthreads();
  int first = row_first[0], end = row_end[0];
  for (int r = 1; r < count; ++r) {
    first = min(first, row_first[r]);
    end = max(end, row_end[r]);
  }
  float sums[4][4 * kCols] = {};
  for (int key0 = first; key0 < end; key0 += kTile) {
    const int keys = min(kTile, end - key0);
    if (thread < keys) {
      k_offsets[thread] = k.at(b, key0 + thread, kv);
      v_offsets[thread] = v.at(b, key0 + thread, kv);
    }
    float s[4][4], dp[4][4];
    row_products<4>(q.data, q_offsets, count, k.data, k_offsets, keys, z.width, buffer, s);
    row_products<4>(grad.data, g_offsets, count, v.data, v_offsets, keys, z.width, buffer, dp);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = ty * 4 + i, low = row_first[r], high = row_end[r];
      const float shift = row_lse[r], center = row_delta[r];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = key0 + tx * 4 + j;
        s[i][j] = key >= low && key < high
                      ? z.scale * expf(__fmul_rn(z.scale, s[i][j]) - shift) * (dp[i][j] - center)
                      : 0.0f;
      }
    }
    store_tile(s, factors);
    add_rows<4, kCols>(factors, k.data, k_offsets, keys, column0, z.width, buffer, sums);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + ty * 4 + i;
    if (row >= z.rows) {
      continue;
    }
    T* to = dq.data + dq.at(b, row / z.group, kv * z.group + row % z.group);
#pragma unroll
    for (int c = 0; c < 4 * kCols; ++c) {
      const int column = column0 + c / 4 * 64 + tx * 4 + c % 4;
      if (column < z.width) {
        put(to + column, sums[i][c], accumulate);
      }
    }
  }
}

template <int kCols, typename T>
__device__ void store_keys(const KeyGradient<T>& grad, const Sizes& z, int split, int splits, int b,
                           int kv, int key0, int column0, const float (&sums)[4][4 * kCols]) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = key0 + ty * 4 + i;
    if (key >= z.keys) {
      continue;
    }
#pragma unroll
    for (int c = 0; c < 4 * kCols; ++c) {
      const int column = column0 + c / 4 * 64 + tx * 4 + c % 4;
      if (column >= z.width) {
        continue;
      }
      if (splits > 1) {
        grad.part(z, split, b, kv, key)[column] = sums[i][c];
      } else {
        put(grad.to.data + grad.to.at(b, key, kv) + column, sums[i][c], grad.accumulate);
      }
    }
  }
}

template <typename T, int kCols>
__global__ void __launch_bounds__(kThreads, 3 - kCols)
    key_kernel(Sizes z, Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> grad, const float* lse,
               const float* delta, KeyGradient<T> dk, KeyGradient<T> dv, int splits, int slices) {
  __shared__ alignas(16) float buffer[kBuffer];
  __shared__ alignas(16) float factors[kTile * (kTile + kPad)];
  __shared__ int64_t q_offsets[kTile], g_offsets[kTile], k_offsets[kTile], v_offsets[kTile];
  __shared__ int row_first[kTile], row_end[kTile];
  __shared__ float row_lse[kTile], row_delta[kTile];

  int64_t item = blockIdx.x;
  const int column0 = static_cast<int>(item % slices) * 64 * kCols;
  item /= slices;
  const int split = static_cast<int>(item % splits);
  item /= splits;
  // Early keys are seen by the most queries: they go first.
  const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = item % pairs;
  const int key0 = static_cast<int>(item / pairs) * kTile;
  const int b = static_cast<int>(pair / z.kv_heads), kv = static_cast<int>(pair % z.kv_heads);
  const int keys = min(kTile, z.keys - key0), key_end = key0 + keys;
  const int thread = threadIdx.x, ty = thread / 16, tx = thread % 16;
  const bool want_dk = dk.to.data != nullptr, want_dv = dv.to.data != nullptr;

  if (thread < keys) {
    k_offsets[thread] = k.at(b, key0 + thread, kv);
    v_offsets[thread] = v.at(b, key0 + thread, kv);
  }
  // The queries that can see one of these keys.
  const int64_t query_first = max(int64_t{0}, key0 - z.q_offset);
  int64_t query_end = z.queries;
  if (z.window > 0) {
    query_end = min(query_end, key_end + z.window - 1 - z.q_offset);
  }
  const int64_t rows = max(int64_t{0}, query_end - query_first) * z.group;
  const int64_t tiles = (rows + kTile - 1) / kTile;
  const int64_t tile_end = tiles * (split + 1) / splits;
  float dk_sums[4][4 * kCols] = {}, dv_sums[4][4 * kCols] = {};
  for (int64_t tile = tiles * split / splits; tile < tile_end; ++tile) {
    const int row0 = static_cast<int>(query_first * z.group + tile * kTile);
    const int count = static_cast<int>(min(int64_t{kTile}, rows - tile * kTile));
    bool sees = false;
    if (thread < kTile) {
      int2 seen = make_int2(0, 0);
      float shift = 0, center = 0;
      if (thread < count) {
        const int query = (row0 + thread) / z.group;
        const int head = kv * z.group + (row0 + thread) % z.group;
        seen = z.visible(b, query);
        q_offsets[thread] = q.at(b, query, head);
        g_offsets[thread] = grad.at(b, query, head);
        shift = lse[z.number(b, query, head)];
        center = delta[z.number(b, query, head)];
        sees = seen.x < key_end && seen.y > key0;
      }
      row_first[thread] = seen.x;
      row_end[thread] = seen.y;
      row_lse[thread] = shift;
      row_delta[thread] = center;
    }
    // Documents hide whole tiles.
    if (__syncthreads_or(sees) == 0) {
      continue;
    }
    float p[4][4], ds[4][4] = {};
    row_products<4>(k.data, k_offsets, keys, q.data, q_offsets, count, z.width, buffer, p);
    if (want_dk) {
      row_products<4>(v.data, v_offsets, keys, grad.data, g_offsets, count, z.width, buffer, ds);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = tx * 4 + j, low = row_first[r], high = row_end[r];
      const float shift = row_lse[r], center = row_delta[r];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + ty * 4 + i;
        const bool seen = key >= low && key < high;
        p[i][j] = seen ? expf(__fmul_rn(z.scale, p[i][j]) - shift) : 0.0f;
        ds[i][j] = seen ? z.scale * p[i][j] * (ds[i][j] - center) : 0.0f;
      }
    }
    if (want_dv) {
      store_tile(p, factors);
      add_rows<4, kCols>(factors, grad.data, g_offsets, count, column0, z.width, buffer, dv_sums);
      __syncthreads();  // the factors are read until here
    }
    if (want_dk) {
      store_tile(ds, factors);
      add_rows<4, kCols>(factors, q.data, q_offsets, count, column0, z.width, buffer, dk_sums);
    }
  }
  // k and v may be one tensor: dv then adds to what was written to dk, in the same thread.
  if (want_dk) {
    store_keys<kCols>(dk, z, split, splits, b, kv, key0, column0, dk_sums);
  }
  if (want_dv) {
    store_keys<kCols>(dv, z, split, splits, b, kv, key0, column0, dv_sums);
  }
}

template <typename T>
__global__ void add_parts_kernel(Sizes z, KeyGradient<T> grad, int splits) {
  const int64_t size = int64_t{z.batch} * z.kv_heads * z.keys * z.width;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = 0;
    for (int split = 0; split < splits; ++split) {
      sum += grad.parts[split * size + i];
    }
    const int64_t row = i / z.width, pair = row / z.keys;
    put(grad.to.data + grad.to.at(pair / z.kv_heads, row % z.keys, pair % z.kv_heads) + i % z.width,
        sum, grad.accumulate);
  }
}

template <typename T>
void backward(const OpArgs& args) {
  const Sizes z(args);
  if (z.width == 0) {
    return;
  }
  const BackwardPlan plan(args, z);
  const Heads<T> q(args.in[0]), k(args.in[1]), v(args.in[2]), grad(args.dout[0]);
  const float* lse = args.saved[0].ptr<float>();
  const int slices = z.slices();
  const bool narrow = z.slice_columns() == 64;
  const int64_t row_blocks = z.pairs() * plan.row_tiles;
  if (row_blocks > 0) {
    delta_kernel<T><<<static_cast<unsigned>(row_blocks), kThreads, 0, this_stream()>>>(
        z, grad, Heads<T>(args.out[0]), plan.delta);
    check_launch("attention delta");
  }
  if (args.din[0] && row_blocks > 0) {
    const auto kernel = narrow ? &query_kernel<T, 1> : &query_kernel<T, 2>;
    kernel<<<static_cast<unsigned>(row_blocks * slices), kThreads, 0, this_stream()>>>(
        z, q, k, v, grad, lse, plan.delta, Heads<T>(args.din[0]), args.accumulate[0],
        plan.row_tiles, slices);
    check_launch("attention dq");
  }
  const int64_t key_blocks = z.pairs() * plan.key_tiles * slices * plan.splits;
  if ((args.din[1] || args.din[2]) && key_blocks > 0) {
    const KeyGradient<T> dk{Heads<T>(args.din[1]), plan.dk_parts, args.accumulate[1]};
    const KeyGradient<T> dv{Heads<T>(args.din[2]), plan.dv_parts, args.accumulate[2]};
    const auto kernel = narrow ? &key_kernel<T, 1> : &key_kernel<T, 2>;
    kernel<<<static_cast<unsigned>(key_blocks), kThreads, 0, this_stream()>>>(
        z, q, k, v, grad, lse, plan.delta, dk, dv, plan.splits, slices);
    check_launch("attention dk, dv");
    if (plan.splits > 1) {
      add_parts(z, dk, plan.splits);
      add_parts(z, dv, plan.splits);
    }
  }
}

}  // namespace

template <typename T>
void attention_gpu::add_parts(const Sizes& z, const KeyGradient<T>& grad, int splits) {
  if (grad.to.data == nullptr) {
    return;
  }
  add_parts_kernel<<<blocks_for(z.pairs() * z.keys * z.width, 256), 256, 0, this_stream()>>>(
      z, grad, splits);
  check_launch("attention dk, dv parts");
}
template void attention_gpu::add_parts(const Sizes&, const KeyGradient<float>&, int);
template void attention_gpu::add_parts(const Sizes&, const KeyGradient<bf16>&, int);

void attention_backward_cuda(const OpArgs& args) {
  if (flash_fits(args)) {
    flash_backward(args);
    return;
  }
  with_real(args.in[0], [&](auto* type) { backward<std::remove_pointer_t<decltype(type)>>(args); });
}

size_t attention_gpu::backward_bytes(const OpArgs& args) {
  return BackwardPlan(args, Sizes(args)).bytes;
}

}  // namespace fwpkm
