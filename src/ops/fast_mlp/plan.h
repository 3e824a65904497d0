// How the CPU kernels cut a chunk into blocks of tokens, and where they keep intermediate results.
#pragma once

#include "ops/common/carver.h"
#include "ops/fast_mlp/fast_mlp.h"

namespace fwpkm {

// Tokens that go through the products at once: enough for their full speed, while the workspace
// stays small however long chunks are and however many rows share the weights.
inline constexpr int64_t kFastMlpBlock = 512;

// Tokens t .. t+len-1 of batch rows b .. b+rows-1.
struct FastMlpBlock {
  int64_t b, rows, t, len;
  int64_t tokens() const { return rows * len; }
};

// Calls fn with the blocks of chunk c, set r: pieces of one row, or whole rows where these are
// short.
template <typename Fn>
void for_fast_mlp_blocks(const FastMlpSizes& s, int64_t r, int64_t c, Fn&& fn) {
  const int64_t first = r * s.rows, last = first + s.rows, n = s.end(c) - s.begin(c);
  const int64_t rows = std::max<int64_t>(1, kFastMlpBlock / n);
  for (int64_t b = first; b < last; b += rows) {
    for (int64_t t = s.begin(c); t < s.end(c); t += kFastMlpBlock) {
      fn(FastMlpBlock{b, std::min(rows, last - b), t, std::min(kFastMlpBlock, s.end(c) - t)});
    }
  }
}

inline int64_t fast_mlp_block_tokens(const FastMlpSizes& s) {
  return std::min(kFastMlpBlock, s.rows * std::min(s.set.chunk, s.length));
}

// M is the number of tokens of a block. Rows of q, vhat and dq are worked on in place where a block
// is a piece of one row, and gathered otherwise.
struct FastMlpForwardPlan {
  float *q, *y;      // [M, dk], [M, dv]
  float *up, *gate;  // [M, h]
  float *a, *da;     // [M, h]
  float* p;          // [M, dv]
  float* spare;      // [packed], a version of the weights that need not be kept
  size_t bytes;

  FastMlpForwardPlan(const OpArgs& args, const FastMlpSizes& s) {
    const int64_t m = fast_mlp_block_tokens(s);
    const bool gathers = s.rows > 1, writes = s.writes > 0;
    Carver carver(args.workspace);
    q = carver.take<float>(gathers ? m * s.dk : 0);
    y = carver.take<float>(gathers ? m * s.dv : 0);
    up = carver.take<float>(m * s.hidden);
    gate = carver.take<float>(m * s.hidden);
    a = carver.take<float>(writes ? m * s.hidden : 0);
    da = carver.take<float>(writes ? m * s.hidden : 0);
    p = carver.take<float>(writes ? m * s.dv : 0);
    spare = carver.take<float>(s.writes > 1 && !args.saved[0] ? s.packed : 0);
    bytes = carver.used();
  }
};

// Names as in README.md. Buffers are used twice where the comment has an arrow.
struct FastMlpBackwardPlan {
  float *q, *dq;         // [M, dk]
  float *up, *gate;      // [M, h] -> da/dup and da/dgate
  float *a, *a_dot;      // [M, h]
  float* da;             // [M, h] -> gradient of up by the write -> abar
  float* dgate;          // [M, h], gradient of gate by the write
  float *u_dot, *g_dot;  // [M, h] -> ubar, gbar
  float* p;              // [M, dv]
  float* y_dot;          // [M, dv] -> ybar
  float* d[2];           // [packed], gradients of the weights: of those after and before a chunk
  size_t bytes;

  FastMlpBackwardPlan(const OpArgs& args, const FastMlpSizes& s) {
    const int64_t m = fast_mlp_block_tokens(s);
    const bool gathers = s.rows > 1, through = s.versions > 0;
    Carver carver(args.workspace);
    q = carver.take<float>(gathers ? m * s.dk : 0);
    dq = carver.take<float>(gathers ? m * s.dk : 0);
    for (float** each : {&up, &gate, &a, &da, &u_dot, &g_dot}) {
      *each = carver.take<float>(m * s.hidden);
    }
    a_dot = carver.take<float>(through ? m * s.hidden : 0);
    dgate = carver.take<float>(through ? m * s.hidden : 0);
    p = carver.take<float>(through ? m * s.dv : 0);
    y_dot = carver.take<float>(m * s.dv);
    for (float*& each : d) {
      each = carver.take<float>(through ? s.packed : 0);
    }
    bytes = carver.used();
  }
};

}  // namespace fwpkm
