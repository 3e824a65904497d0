// What the attention kernels for GPUs are made of: two products on tiles in shared memory.
//
// Heads that share a key head are stacked: row r of a (batch, key head) pair is query r / group,
// head r % group. A block is a square of 16 x 16 threads; thread (ty, tx) has the kRm rows from
// ty kRm on and the four columns from tx 4 on of a tile of scores. Rows of tensors are found by
// their offsets, which lie in shared memory. Tensors are float, or bf16 where flash.cuh's kernels
// on tensor cores do not fit (odd strides, heads wider than 128); the arithmetic is float.
#pragma once

#include <climits>

#include "ops/attention/attention.h"
#include "ops/common/device.cuh"

namespace fwpkm::attention_gpu {

inline constexpr int kThreads = 256;
inline constexpr int kTile = 64;   // keys, or stacked rows, of a tile
inline constexpr int kDepth = 32;  // terms of a product's sum in shared memory at once
inline constexpr int kPad = 4;     // transposed rows are this much longer, for the banks
// Floats of the products' buffer: two transposed tiles, or kDepth rows of 128 columns.
inline constexpr int kBuffer = 2 * kDepth * (kTile + kPad);
// Blocks that keep a GPU busy; work is cut finer until there are as many.
inline constexpr int64_t kBusyBlocks = 264;

// A tensor [B, T, H, D].
template <typename T>
struct Heads {
  T* data;
  int64_t batch, token, head;  // strides

  explicit Heads(const View& view)
      : data(view.ptr<T>()), batch(view.stride(0)), token(view.stride(1)), head(view.stride(2)) {}
  __device__ int64_t at(int64_t b, int64_t t, int64_t h) const {
    return b * batch + t * token + h * head;
  }
};

struct Sizes {
  int batch, queries, keys, heads, kv_heads, group, width;
  int rows;  // stacked rows of a pair
  int64_t q_offset, window;
  float scale;
  const int32_t* starts;

  explicit Sizes(const OpArgs& args) {
    const View &q = args.in[0], &k = args.in[1];
    const auto settings = args.attr<AttentionSettings>();
    batch = static_cast<int>(q.dim(0));
    queries = static_cast<int>(q.dim(1));
    heads = static_cast<int>(q.dim(2));
    width = static_cast<int>(q.dim(3));
    keys = static_cast<int>(k.dim(1));
    kv_heads = static_cast<int>(k.dim(2));
    group = heads / kv_heads;
    rows = queries * group;
    q_offset = settings.q_offset;
    window = settings.window;
    scale = static_cast<float>(settings.scale);
    starts = args.in[3].ptr<int32_t>();
  }

  int64_t pairs() const { return int64_t{batch} * kv_heads; }
  // Results are cut into slices of columns; each computes the scores anew, so they are wide.
  int slice_columns() const { return width <= 64 ? 64 : 128; }
  int slices() const { return (width + slice_columns() - 1) / slice_columns(); }

  // Keys x..y-1 are those that a query sees.
  __device__ int2 visible(int b, int query) const {
    const int64_t position = query + q_offset;
    int64_t first = window > 0 ? max(int64_t{0}, position - window + 1) : 0;
    if (starts != nullptr) {
      first = max(first, int64_t{starts[int64_t{b} * queries + query]});
    }
    const int64_t end = min(int64_t{keys}, position + 1);
    return make_int2(static_cast<int>(min(first, end)), static_cast<int>(end));
  }
  // Where a query's number lies in lse and delta, [B, Hq, Tq].
  __device__ int64_t number(int b, int query, int head) const {
    return (int64_t{b} * heads + head) * queries + query;
  }
};

template <int kCount>
__device__ inline void read(const float* from, float (&to)[kCount]) {
  static_assert(kCount == 1 || kCount == 4);
  if constexpr (kCount == 1) {
    to[0] = from[0];
  } else {
    const float4 all = *reinterpret_cast<const float4*>(from);
    to[0] = all.x;
    to[1] = all.y;
    to[2] = all.z;
    to[3] = all.w;
  }
}

// to [kDepth][kRows + kPad] = features d0.. of the rows, transposed; zero where there are none. A
// warp takes 4 rows x 8 features at a time: whole sectors of memory, and no two threads in one
// bank.
template <int kRows, typename T>
__device__ inline void load_transposed(const T* from, const int64_t* offsets, int count, int d0,
                                       int width, float* to) {
  constexpr int kRowBlocks = kRows / 4, kUnits = kRowBlocks * (kDepth / 8) / (kThreads / 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float values[kUnits];
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int unit = warp + n * (kThreads / 32);
    const int row = unit % kRowBlocks * 4 + lane / 8, d = d0 + unit / kRowBlocks * 8 + lane % 8;
    values[n] = row < count && d < width ? to_float(from[offsets[row] + d]) : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int unit = warp + n * (kThreads / 32);
    const int row = unit % kRowBlocks * 4 + lane / 8, d = unit / kRowBlocks * 8 + lane % 8;
    to[d * (kRows + kPad) + row] = values[n];
  }
}

// to [kDepth][kColumns] = columns column0.. of rows first.., zero where there are none.
template <int kColumns, typename T>
__device__ inline void load_rows(const T* from, const int64_t* offsets, int first, int count,
                                 int column0, int width, float* to) {
  constexpr int kEach = kDepth * kColumns / kThreads;
  float values[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int at = threadIdx.x + n * kThreads;
    const int row = first + at / kColumns, column = column0 + at % kColumns;
    values[n] = row < count && column < width ? to_float(from[offsets[row] + column]) : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    to[threadIdx.x + n * kThreads] = values[n];
  }
}

// products[i][j] = a_row . b_row of 16 kRm rows of a and 64 of b. Sums run over the features in one
// order everywhere, so that backward's scores have the bits of forward's. Begins with a barrier:
// the offsets may be written right before.
template <int kRm, typename T>
__device__ inline void row_products(const T* a, const int64_t* a_offsets, int a_count, const T* b,
                                    const int64_t* b_offsets, int b_count, int width, float* buffer,
                                    float (&products)[kRm][4]) {
  constexpr int kRows = 16 * kRm;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float* b_tile = buffer + kDepth * (kRows + kPad);
#pragma unroll
  for (int i = 0; i < kRm; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      products[i][j] = 0;
    }
  }
  for (int d0 = 0; d0 < width; d0 += kDepth) {
    __syncthreads();
    load_transposed<kRows>(a, a_offsets, a_count, d0, width, buffer);
    load_transposed<kTile>(b, b_offsets, b_count, d0, width, b_tile);
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < kDepth; ++d) {
      float x[kRm], y[4];
      read(buffer + d * (kRows + kPad) + ty * kRm, x);
      read(b_tile + d * (kTile + kPad) + tx * 4, y);
#pragma unroll
      for (int i = 0; i < kRm; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          products[i][j] = fmaf(x[i], y[j], products[i][j]);
        }
      }
    }
  }
}

// Hands a tile of numbers over to add_rows: to[column][row].
template <int kRm>
__device__ inline void store_tile(const float (&tile)[kRm][4], float* to) {
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float* at = to + (tx * 4 + j) * (16 * kRm + kPad) + ty * kRm;
#pragma unroll
    for (int i = 0; i < kRm; ++i) {
      at[i] = tile[i][j];
    }
  }
}

// sums[i][4c + j] += sum over n < count of factors[n][row i] from[n][column0 + 64c + 4tx + j].
// Begins with a barrier: the factors may be stored right before. No barrier at the end: other
// threads may still read factors and buffer.
template <int kRm, int kCols, typename T>
__device__ inline void add_rows(const float* factors, const T* from, const int64_t* offsets,
                                int count, int column0, int width, float* buffer,
                                float (&sums)[kRm][4 * kCols]) {
  constexpr int kColumns = 64 * kCols;
  static_assert(kDepth * kColumns <= kBuffer);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int first = 0; first < count; first += kDepth) {
    __syncthreads();
    load_rows<kColumns>(from, offsets, first, count, column0, width, buffer);
    __syncthreads();
#pragma unroll 4
    for (int n = 0; n < kDepth; ++n) {
      float x[kRm];
      read(factors + (first + n) * (16 * kRm + kPad) + ty * kRm, x);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        float y[4];
        read(buffer + n * kColumns + 64 * c + tx * 4, y);
#pragma unroll
        for (int i = 0; i < kRm; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[i][4 * c + j] = fmaf(x[i], y[j], sums[i][4 * c + j]);
          }
        }
      }
    }
  }
}

// Cuts a workspace into parts of whole 256 bytes; with null it only counts.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<char*>(base)) {}
  float* take(int64_t floats) {
    auto* part = base_ == nullptr ? nullptr : reinterpret_cast<float*>(base_ + used_);
    used_ += (static_cast<size_t>(floats) * sizeof(float) + 255) / 256 * 256;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// What forward's splits leave for each row: the sums [D], and the maximum of the scores with the
// sum of exponentials below it; [splits, pairs, rows].
struct SplitSums {
  int splits = 1;
  float *sums = nullptr, *stats = nullptr;

  void place(const Sizes& z, Parts& parts) {
    const int64_t rows = splits * z.pairs() * z.rows;
    stats = parts.take(2 * rows);
    sums = parts.take(rows * z.width);
  }
};
template <typename T>
void merge_splits(const Sizes& z, const Heads<T>& o, float* lse, const SplitSums& parts);

// Where a tile of keys puts a gradient: at once, or as a split's part [splits, pairs, Tk, D].
template <typename T>
struct KeyGradient {
  Heads<T> to;
  float* parts;
  bool accumulate;

  __device__ float* part(const Sizes& z, int split, int b, int kv, int key) const {
    const int64_t pairs = int64_t{z.batch} * z.kv_heads, pair = int64_t{b} * z.kv_heads + kv;
    return parts + ((split * pairs + pair) * z.keys + key) * z.width;
  }
};
// Adds up the parts, in order.
template <typename T>
void add_parts(const Sizes& z, const KeyGradient<T>& grad, int splits);

// Bytes that backward asks for.
size_t backward_bytes(const OpArgs& args);

// The kernels on tensor cores (flash.cuh), where they fit.
bool flash_fits(const OpArgs& args);
void flash_forward(const OpArgs& args);
size_t flash_forward_bytes(const OpArgs& args);
void flash_backward(const OpArgs& args);
size_t flash_backward_bytes(const OpArgs& args);

}  // namespace fwpkm::attention_gpu
