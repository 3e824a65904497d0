// How the CUDA kernels lay out a chunk. All heads of all sequences are worked on together: in
// buffers their tokens are [items, rows, D], and products are batches of `items`.
#pragma once

#include "ops/common/carver.h"
#include "ops/common/rows.cuh"
#include "ops/fast_mlp/products.cuh"
#include "ops/lact/lact.h"

namespace fwpkm {

// A row of numbers for each token of each head, wherever it stands.
template <typename T>
struct LactRows {
  T* data = nullptr;
  int64_t sequence = 0, token = 0, head = 0;  // strides

  // q, k, v, o and their gradients; null where there is no view.
  static LactRows of(const View& view, const LactSizes& n) {
    return {view.ptr<T>(), view.strides[0], view.strides[1], n.width};
  }
  // [B, T, H, width], contiguous.
  static LactRows packed(const View& view, const LactSizes& n, int64_t width) {
    return {view.ptr<T>(), n.length * n.heads * width, n.heads * width, width};
  }
  // The tokens that wait in the state, from their number `first` on.
  static LactRows pending(const View& view, const LactSizes& n, int64_t first) {
    const int64_t row = n.pending_width();
    return {view.ptr<T>() + first, n.heads * n.chunk * row, row, n.chunk * row};
  }
  LactRows from(int64_t t) const { return {data + t * token, sequence, token, head}; }
};

// Tokens as an update sees them.
template <typename T>
struct LactTokens {
  LactRows<const T> k, v;
  LactRows<const float> lr, momentum;

  static LactTokens input(const OpArgs& args, const LactSizes& n, int64_t t) {
    return {LactRows<const T>::of(args.in[1], n).from(t),
            LactRows<const T>::of(args.in[2], n).from(t),
            LactRows<const float>::packed(args.in[3], n, 3).from(t),
            LactRows<const float>::packed(args.in[4], n, 1).from(t)};
  }
};
inline LactTokens<float> lact_pending(const View& state, const LactSizes& n) {
  const auto part = [&](int64_t first) { return LactRows<const float>::pending(state, n, first); };
  return {part(0), part(n.width), part(2 * n.width), part(2 * n.width + 3)};
}

// A token of a buffer.
struct LactPlace {
  uint32_t sequence, head, token;

  template <typename T>
  __device__ T* in(const LactRows<T>& rows) const {
    return rows.data + sequence * rows.sequence + token * rows.token + head * rows.head;
  }
};

// Rows [items, rows] of a buffer.
struct LactWindow {
  FastDivisor rows, heads;

  LactWindow(const LactSizes& n, int64_t row_count) : rows(row_count), heads(n.heads) {}
  __device__ LactPlace place(uint32_t row) const {
    const uint32_t item = rows.quotient(row), sequence = heads.quotient(item);
    return {sequence, item - sequence * heads.divisor, row - item * rows.divisor};
  }
};

// Three matrices of each item, in the order of their names: states, what forward saves, the chain.
struct LactBlocks {
  float* data = nullptr;
  int64_t stride = 0;  // from one item to the next
};

// The same as products take them: W0 and W2 are one matrix [2D, D], W1 follows. Items are
// 3 D D elements apart.
struct LactStack {
  int64_t items, width, matrix;

  explicit LactStack(const LactSizes& n)
      : items(n.batch * n.heads), width(n.width), matrix(n.matrix()) {}
  int64_t size() const { return 3 * matrix; }
  int64_t total() const { return items * size(); }
  template <typename Real>
  FastMatrices<Real> both(const Real* stack) const {
    return {stack, 2 * width, width, size()};
  }
  template <typename Real>
  FastMatrices<Real> out(const Real* stack) const {
    return {stack + 2 * matrix, width, width, size()};
  }
  // A buffer [items, rows, columns].
  template <typename Real>
  FastMatrices<Real> tokens(const Real* buffer, int64_t rows, int64_t columns) const {
    return {buffer, rows, columns, rows * columns};
  }
};

// The 3 D rows of all items' matrices, as a kernel goes through them.
struct LactMatrixRows {
  RowPlan plan;
  int64_t width;
  FastDivisor rows, heads;

  LactMatrixRows(const LactSizes& n, int run)
      : plan(n.batch * n.heads * 3 * n.width, n.width / run),
        width(n.width),
        rows(3 * n.width),
        heads(n.heads) {}
  // Where a row begins in blocks and in a stack, and which one it is of its item.
  struct Place {
    uint32_t item, row;
    int64_t in_block, in_stack;
  };
  __device__ Place place(uint32_t number) const {
    const uint32_t item = rows.quotient(number), row = number - item * rows.divisor;
    const auto third = static_cast<uint32_t>(width);
    const uint32_t stacked = row < third ? row : row < 2 * third ? row + third : row - third;
    return {item, row, row * width, (int64_t{item} * rows.divisor + stacked) * width};
  }
};

// The sum over the threads of a block, for all of them. Once in a kernel.
template <int kThreads>
__device__ inline double lact_block_sum(double x) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = x;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) {
      sums[threadIdx.x] += sums[threadIdx.x + step];
    }
  }
  __syncthreads();
  return sums[0];
}

// Tokens of an item that are worked on at once.
inline int64_t lact_chunk_rows(const LactSizes& n) {
  return n.keeps && n.updates > 0 ? n.chunk : std::min(n.chunk, n.length);
}

// Rows of tokens into buffers: one tensor, or two at once.
template <typename From, typename Real>
void lact_gather(const LactSizes& n, int64_t rows, const LactRows<const From>& first, Real* to,
                 const LactRows<const From>& second = {}, Real* to_second = nullptr);

// And back; nothing happens where there are none. A null buffer is one of zeros.
template <typename T, typename Real>
void lact_scatter(const LactSizes& n, int64_t rows, int64_t width, const float* from,
                  const LactRows<T>& to, bool accumulate);

// Weights as products take them, out of blocks, or without these the ones of the start, which are
// then put into `blocks`, with the norms of their rows. `zeros`, where given, become zero.
template <typename Real>
void lact_load(const LactSizes& n, const LactBlocks& from, Real* stack);
template <typename Real>
void lact_start(const OpArgs& args, const LactSizes& n, const LactBlocks& blocks, float* norms,
                const LactBlocks& zeros, Real* stack);

// The mean momentum of n.chunk tokens, for each item.
void lact_mean_momentum(const LactSizes& n, const LactRows<const float>& momentum, float* means);

// to = w + M with its rows at their first norms, and a stack of it where one is given. With steps
// M becomes steps + mean * before; without `before` that is zero.
struct LactUpdate {
  LactBlocks w, to, m, before;
  const float *steps = nullptr, *means = nullptr, *norms = nullptr;
};
template <typename Real>
void lact_update(const LactSizes& n, const LactUpdate& update, Real* stack);

// Calls fn with the types of a call: of its tensors and of its products.
template <typename Fn>
void with_lact_types(const OpArgs& args, Fn&& fn) {
  const LactSizes n(args);
  with_fast_types(args.in[0], fast_tensor_width(n.width),
                  {args.in[0], args.in[1], args.in[2], args.out[0], view_or_none(args.dout, 0),
                   view_or_none(args.din, 0), view_or_none(args.din, 1), view_or_none(args.din, 2)},
                  fn);
}

// Buffers of forward; N is the number of tokens of all items.
template <typename Real>
struct LactForwardBuffers {
  float *weights, *momentum, *norms;  // blocks and [items, 3, D], where there is no state
  Real* stack;                        // the weights
  float* steps;                       // a stack
  float* means;                       // [items]
  Real *x, *v;                        // [N, D]
  float* hidden;                      // [N, 2D]: W0 x and W2 x
  float* out;                         // [N, D]: p, or what is read
  Real *e, *h;                        // [N, 2D], [N, D]
  size_t bytes;

  LactForwardBuffers(const OpArgs& args, const LactSizes& n) {
    const LactStack stacked(n);
    const int64_t own = n.keeps ? 0 : 1, updates = n.updates > 0 ? 1 : 0;
    const int64_t tokens = stacked.items * lact_chunk_rows(n);
    Carver carver(args.workspace);
    weights = carver.take<float>(own * stacked.total());
    momentum = carver.take<float>(args.saved[0] ? 0 : own * updates * stacked.total());
    norms = carver.take<float>(own * stacked.items * 3 * n.width);
    stack = carver.take<Real>(stacked.total());
    steps = carver.take<float>(updates * stacked.total());
    means = carver.take<float>(stacked.items);
    x = carver.take<Real>(tokens * n.width);
    v = carver.take<Real>(updates * tokens * n.width);
    hidden = carver.take<float>(tokens * 2 * n.width);
    out = carver.take<float>(tokens * n.width);
    e = carver.take<Real>(updates * tokens * 2 * n.width);
    h = carver.take<Real>(tokens * n.width);
    bytes = carver.used();
  }
};

// Buffers of backward; names as in README.md.
template <typename Real>
struct LactBackwardBuffers {
  float* chain;           // blocks [updates + 1, items]: the weights of every chunk
  float *norms, *dnorms;  // [items, 3, D]
  double* dots;           // [items, 3, D]: <S, M> of each row
  float* means;           // [items]
  float *dw, *dm;         // stacks: E and F
  Real *stack, *steps;    // stacks: the weights and S
  Real *x, *v;            // [N, D]: k and v, or q and do
  float *hidden, *out;    // [N, 2D], [N, D]: g and u, p; or A and B, dy -> dk and dv, or dq
  float *z_both, *z_out;  // [N, 2D], [N, D]: Z0 and Z2, Z1
  Real *dhidden, *dout;   // [N, 2D], [N, D]: dg and du, dp; or dA and dB, y
  Real *e, *h;            // [N, 2D], [N, D]: times their rates
  size_t bytes;

  LactBackwardBuffers(const OpArgs& args, const LactSizes& n) {
    const LactStack stacked(n);
    const int64_t updates = n.updates > 0 ? 1 : 0, rows = stacked.items * 3 * n.width;
    const int64_t tokens = stacked.items * lact_chunk_rows(n);
    Carver carver(args.workspace);
    chain = carver.take<float>((n.updates + 1) * stacked.total());
    norms = carver.take<float>(rows);
    dnorms = carver.take<float>(rows);
    dots = carver.take<double>(updates * rows);
    means = carver.take<float>(stacked.items);
    dw = carver.take<float>(stacked.total());
    dm = carver.take<float>(updates * stacked.total());
    stack = carver.take<Real>(stacked.total());
    steps = carver.take<Real>(updates * stacked.total());
    x = carver.take<Real>(tokens * n.width);
    v = carver.take<Real>(tokens * n.width);
    hidden = carver.take<float>(tokens * 2 * n.width);
    out = carver.take<float>(tokens * n.width);
    z_both = carver.take<float>(updates * tokens * 2 * n.width);
    z_out = carver.take<float>(updates * tokens * n.width);
    dhidden = carver.take<Real>(tokens * 2 * n.width);
    dout = carver.take<Real>(tokens * n.width);
    e = carver.take<Real>(updates * tokens * 2 * n.width);
    h = carver.take<Real>(updates * tokens * n.width);
    bytes = carver.used();
  }
};

}  // namespace fwpkm
