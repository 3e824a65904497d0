// How the CUDA kernels lay out a chunk. Each works on whole rows of the batch: with weights of
// their own, or sharing them, in which case they are one tall matrix.
#pragma once

#include "ops/common/carver.h"
#include "ops/common/rows.cuh"
#include "ops/fast_mlp/fast_mlp.h"
#include "ops/fast_mlp/products.cuh"

namespace fwpkm {

// Six weights of all sets where their owners have them; null: nowhere.
struct FastMlpMasters {
  float* at[6] = {};
  int64_t stride[6] = {};  // from one set to the next

  FastMlpMasters() = default;
  FastMlpMasters(const FastMlpSizes& s, const FastMlpWeights<float>& first, bool packed) {
    for (int i = 0; i < 6; ++i) {
      at[i] = first.all()[i];
      stride[i] = packed ? s.packed : s.parts[i];
    }
  }
  // Six tensors.
  static FastMlpMasters of(std::span<const View> w, const FastMlpSizes& s) {
    return {s, FastMlpWeights<float>::of(w, s, 0), false};
  }
  // Version v of those that forward saved.
  static FastMlpMasters version(const OpArgs& args, const FastMlpSizes& s, int64_t v) {
    float* first = args.saved[0].ptr<float>() + v * s.sets * s.packed;
    return {s, FastMlpWeights<float>::of(first, s), true};
  }
  explicit operator bool() const { return at[0] != nullptr; }
};

// Six weights of all sets as products take them: up and gate are one matrix [2h, dk], down [dv, h]
// follows; the biases are one vector [2h + dv].
struct FastMlpStack {
  int64_t dk, dv, hidden;
  int64_t down;          // where the second matrix begins
  int64_t matrix, bias;  // elements of a set

  explicit FastMlpStack(const FastMlpSizes& s)
      : dk(s.dk),
        dv(s.dv),
        hidden(s.hidden),
        down(2 * s.hidden * s.dk),
        matrix(down + s.dv * s.hidden),
        bias(2 * s.hidden + s.dv) {}
  // The two matrices of sets `set` and following.
  template <typename Real>
  FastMatrices<Real> up_gate_of(const Real* matrices, int64_t set) const {
    return {matrices + set * matrix, 2 * hidden, dk, matrix};
  }
  template <typename Real>
  FastMatrices<Real> down_of(const Real* matrices, int64_t set) const {
    return {matrices + set * matrix + down, dv, hidden, matrix};
  }
};

// Rows b .. b+rows-1 of the batch, tokens begin .. begin+len-1 of each. In buffers they are
// [rows, len, width].
struct FastMlpSpan {
  int64_t b, rows, begin, len;
  int64_t writers;    // the first so many of a row's tokens write
  int64_t set, sets;  // the weights that they use: several sets have a row each

  int64_t tokens() const { return rows * len; }
  // Tokens that share a product.
  int64_t height() const { return tokens() / sets; }
  // A buffer [tokens, width], in products.
  template <typename Real>
  FastMatrices<Real> matrices(const Real* buffer, int64_t width) const {
    return {buffer, height(), width, height() * width};
  }
  // Whether tokens of another span have added to the same sums before.
  bool follows() const { return sets == 1 && b > 0 && set == 0; }
};

// Rows that are worked on together: as many as the workspace allows.
inline int64_t fast_mlp_span_rows(const FastMlpSizes& s) {
  constexpr int64_t kMostHidden = int64_t{1} << 24;
  const int64_t row = std::min(s.set.chunk, s.length) * s.hidden;
  return std::min(s.batch, std::max<int64_t>(1, kMostHidden / row));
}

template <typename Fn>
void for_fast_mlp_spans(const FastMlpSizes& s, int64_t c, Fn&& fn) {
  const int64_t rows = fast_mlp_span_rows(s);
  for (int64_t b = 0; b < s.batch; b += rows) {
    const int64_t count = std::min(rows, s.batch - b);
    const bool own = s.sets > 1;
    fn(FastMlpSpan{b, count, s.begin(c), s.end(c) - s.begin(c), s.pairs(c), own ? b : 0,
                   own ? count : 1});
  }
}

// A span as kernels see it.
struct FastMlpWindow {
  uint32_t tokens, writers;
  int64_t first,
      length;    // the first token's row in tensors, and rows from one sequence to the next
  int64_t bias;  // from one row's biases to the next one's; 0 where they are shared
  FastDivisor len;

  FastMlpWindow(const FastMlpSizes& s, const FastMlpSpan& span)
      : tokens(static_cast<uint32_t>(span.tokens())),
        writers(static_cast<uint32_t>(span.writers)),
        first(span.b * s.length + span.begin),
        length(s.length),
        bias(s.sets > 1 ? FastMlpStack(s).bias : 0),
        len(span.len) {}
  // The tensor row of a token of the span.
  __device__ int64_t row(uint32_t token) const {
    const uint32_t b = len.quotient(token);
    return first + b * length + (token - b * len.divisor);
  }
  __device__ bool writes(uint32_t token) const { return len.remainder(token) < writers; }
  __device__ int64_t bias_of(uint32_t token) const { return len.quotient(token) * bias; }
};

// Sums over columns are made for groups of this many tokens first.
inline constexpr int64_t kFastMlpSumRows = 128;
inline int64_t fast_mlp_parts(const FastMlpSizes& s) {
  const int64_t rows = fast_mlp_span_rows(s), sets = std::min(s.sets, rows);
  const int64_t height = rows * std::min(s.set.chunk, s.length) / sets;
  return sets * ceil_div(height, kFastMlpSumRows) * FastMlpStack(s).bias;
}

// Names as in README.md; M is the number of tokens of a span. Up and gate stand side by side.
template <typename Real>
struct FastMlpForwardBuffers {
  Real* matrices;     // [sets, matrix]
  float* biases;      // [sets, bias]
  float* steps;       // [sets, matrix]
  float* bias_steps;  // [sets, bias]
  float* parts;       // of column sums
  Real* q;            // [M, dk]
  float* up_gate;     // [M, 2h] -> da/dup and da/dgate
  Real* a;            // [M, h]
  float* y;           // [M, dv]
  Real* p;            // [M, dv]
  float* da;          // [M, h]
  Real* dup_gate;     // [M, 2h]
  size_t bytes;

  FastMlpForwardBuffers(const OpArgs& args, const FastMlpSizes& s) {
    const FastMlpStack stack(s);
    const int64_t m = fast_mlp_span_rows(s) * std::min(s.set.chunk, s.length);
    const int64_t written = s.writes > 0 ? 1 : 0;
    Carver carver(args.workspace);
    matrices = carver.take<Real>(s.sets * stack.matrix);
    biases = carver.take<float>(s.sets * stack.bias);
    steps = carver.take<float>(written * s.sets * stack.matrix);
    bias_steps = carver.take<float>(written * s.sets * stack.bias);
    parts = carver.take<float>(written * fast_mlp_parts(s));
    q = carver.take<Real>(m * s.dk);
    up_gate = carver.take<float>(m * 2 * s.hidden);
    a = carver.take<Real>(m * s.hidden);
    y = carver.take<float>(m * s.dv);
    p = carver.take<Real>(written * m * s.dv);
    da = carver.take<float>(written * m * s.hidden);
    dup_gate = carver.take<Real>(written * m * 2 * s.hidden);
    bytes = carver.used();
  }
};

template <typename Real>
struct FastMlpBackwardBuffers {
  Real* matrices;                // [sets, matrix]
  float* biases;                 // [sets, bias]
  Real* behind;                  // [sets, matrix]: `matrices`, but see late_weights
  float *d_matrices, *d_biases;  // the gradient of the weights: after a chunk -> before it
  Real* d_copy;                  // [sets, matrix]: that of the weights after the chunk
  float* d_bias_copy;            // [sets, bias]
  float* parts;                  // of column sums
  Real* q;                       // [M, dk]
  float* dq;                     // [M, dk]
  float* up_gate;                // [M, 2h] -> da/dup and da/dgate
  Real *a, *a_dot;               // [M, h]
  float* da;                     // [M, h] -> abar
  float* up_gate_dot;            // [M, 2h] -> the write's own part of their gradients
  Real* dup_gate;                // [M, 2h], by the write -> ubar and gbar
  Real* p;                       // [M, dv]
  float* y_dot;                  // [M, dv]
  Real* ybar;                    // [M, dv]
  size_t bytes;

  FastMlpBackwardBuffers(const OpArgs& args, const FastMlpSizes& s) {
    const FastMlpStack stack(s);
    const int64_t m = fast_mlp_span_rows(s) * std::min(s.set.chunk, s.length);
    const int64_t through = s.versions > 0 ? 1 : 0;
    Carver carver(args.workspace);
    matrices = carver.take<Real>(s.sets * stack.matrix);
    biases = carver.take<float>(s.sets * stack.bias);
    behind = s.set.late_weights ? carver.take<Real>(s.sets * stack.matrix) : matrices;
    d_matrices = carver.take<float>(through * s.sets * stack.matrix);
    d_biases = carver.take<float>(through * s.sets * stack.bias);
    d_copy = carver.take<Real>(through * s.sets * stack.matrix);
    d_bias_copy = carver.take<float>(through * s.sets * stack.bias);
    parts = carver.take<float>(through * fast_mlp_parts(s));
    q = carver.take<Real>(m * s.dk);
    dq = carver.take<float>(m * s.dk);
    up_gate = carver.take<float>(m * 2 * s.hidden);
    a = carver.take<Real>(m * s.hidden);
    a_dot = carver.take<Real>(through * m * s.hidden);
    da = carver.take<float>(m * s.hidden);
    up_gate_dot = carver.take<float>(through * m * 2 * s.hidden);
    dup_gate = carver.take<Real>(m * 2 * s.hidden);
    p = carver.take<Real>(through * m * s.dv);
    y_dot = carver.take<float>(through * m * s.dv);
    ybar = carver.take<Real>(m * s.dv);
    bytes = carver.used();
  }
};

// Sums over the tokens of each product: columns [2h] of up_gate and [dv] of y, as biases are laid
// out; set or added to.
template <typename Real>
void fast_mlp_column_sums(const FastMlpSizes& s, const FastMlpSpan& span, const Real* up_gate,
                          const Real* y, float* parts, bool add, float* to);

// Weights as products take them; with steps they are first added, and the sums also stored in `to`.
// Any of the targets may be null.
template <typename Real>
void fast_mlp_load(const FastMlpSizes& s, const FastMlpMasters& from, const float* steps,
                   const float* bias_steps, const FastMlpMasters& to, Real* matrices,
                   float* biases);

// Rows of a span [.., width] out of a tensor.
template <typename T, typename Real>
void fast_mlp_gather(const FastMlpSizes& s, const FastMlpSpan& span, const T* all, int64_t width,
                     Real* to);

// a from up and gate (without their biases). With `slopes` these become the derivatives of a.
template <typename Real>
void fast_mlp_hidden(const FastMlpSizes& s, const FastMlpSpan& span, const float* biases,
                     bool slopes, float* up_gate, Real* a);

// dup_gate = da * slopes (+ extra, where given).
template <typename Real>
void fast_mlp_through_hidden(const FastMlpSizes& s, const FastMlpSpan& span, const float* da,
                             const float* slopes, const float* extra, Real* dup_gate);

// p = scale * error of writing tokens, 0 of others. With y (without its bias), vhat and the losses
// are written too, and p may be null; without it vhat is read.
template <typename T, typename Real>
void fast_mlp_errors(const OpArgs& args, const FastMlpSizes& s, const FastMlpSpan& span,
                     const float* y, const float* biases, float scale, Real* p);

// Calls fn with the types of a call: of its tensors and of its products.
template <typename Fn>
void with_fast_mlp_types(const OpArgs& args, Fn&& fn) {
  const FastMlpSizes s(args);
  with_fast_types(args.in[0],
                  fast_tensor_width(s.hidden) && fast_tensor_width(s.dk) && fast_tensor_width(s.dv),
                  {args.in[0], args.in[1], args.out[0], view_or_none(args.dout, 0),
                   view_or_none(args.din, 0), view_or_none(args.din, 1)},
                  fn);
}

}  // namespace fwpkm
