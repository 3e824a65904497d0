// The rotation of rows, for kernels of this op and of rope.
#pragma once

#include "ops/common/rows.cuh"

namespace fwpkm {

// Which angles the rows of x [B, T, H, D] are turned by: those of their token, in tables [T, half].
// Without tables half is 0, and nothing is turned.
struct Turns {
  const float *cos, *sin;
  uint32_t half;
  FastDivisor heads, tokens;

  Turns(const View& x, const View& cos_table, const View& sin_table)
      : cos(cos_table.ptr<float>()),
        sin(sin_table.ptr<float>()),
        half(cos_table ? static_cast<uint32_t>(cos_table.dim(1)) : 0),
        heads(x.dim(2)),
        tokens(x.dim(1)) {}

  // Where a row's angles begin.
  __device__ int64_t angles(uint32_t row) const {
    return int64_t{tokens.remainder(heads.quotient(row))} * half;
  }
  // Turns the run that begins at feature `at`, forwards or back. read(at, values) gives the run
  // that it is paired with; runs do not cross `half`.
  template <int kCount, typename Read>
  __device__ void turn(int64_t angles, uint32_t at, bool back, float (&values)[kCount],
                       Read&& read) const {
    if (at >= 2 * half) {
      return;
    }
    const bool low = at < half;
    const int64_t first = angles + (low ? at : at - half);
    float other[kCount], c[kCount], s[kCount];
    read(low ? at + half : at - half, other);
    load_run(cos + first, c);
    load_run(sin + first, s);
    const float sign = low == back ? 1.0f : -1.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = values[i] * c[i] + other[i] * (sign * s[i]);
    }
  }
};

}  // namespace fwpkm
