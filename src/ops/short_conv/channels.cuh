// What the kernels of the short convolution share.
#pragma once

#include <type_traits>

#include "ops/common/device.cuh"
#include "ops/short_conv/short_conv.h"

namespace fwpkm {

inline constexpr int kConvThreads = 128;

// Sums before SiLU: taps cancel, and what is left of floats should be exact to a float.
template <typename T>
using ConvSum = std::conditional_t<sizeof(T) == 2, float, double>;

// q, k and v, or their gradients, as one row of channels.
template <typename T>
struct ConvChannels {
  T* data[3];
  int64_t strides[3][3];  // batch, time, head
  int64_t width[3], end[3];
  bool add[3] = {};

  // Shapes are those of the inputs; the gradient that nobody wants has no data.
  ConvChannels(std::span<const View> views, std::span<const View> in) {
    int64_t channels = 0;
    for (int i = 0; i < 3; ++i) {
      data[i] = views[i].ptr<T>();
      width[i] = in[i].dim(3);
      channels += in[i].dim(2) * width[i];
      end[i] = channels;
      for (int d = 0; d < 3; ++d) {
        strides[i][d] = views[i].strides[d];
      }
    }
  }
  __device__ int part(int64_t c) const { return c < end[0] ? 0 : c < end[1] ? 1 : 2; }
  // Channel c of a part at time 0.
  __device__ T* start(int part, int64_t b, int64_t c) const {
    const int64_t inside = c - (part == 0 ? 0 : end[part - 1]);
    return data[part] + b * strides[part][0] + inside / width[part] * strides[part][2] +
           inside % width[part];
  }
};

struct ConvSizes {
  int64_t batch, time, channels, taps;

  explicit ConvSizes(const OpArgs& args)
      : batch(args.out[0].dim(0)),
        time(args.out[0].dim(1)),
        channels(args.out[0].dim(2)),
        taps(args.in[3].dim(2)) {}
  __host__ __device__ int64_t tokens() const { return batch * time; }
};

// What reaches a channel: the inputs of these tokens and those before them.
template <typename T>
struct ConvPast {
  const T* x;     // at time 0
  int64_t step;   // from token to token
  const T* tail;  // at time -(K-1), rows of all channels; or null for zeros
  int64_t channels, taps;

  __device__ ConvPast(const ConvChannels<T>& in, const T* tails, const ConvSizes& n, int64_t b,
                      int64_t c)
      : channels(n.channels), taps(n.taps) {
    const int part = in.part(c);
    x = in.start(part, b, c);
    step = in.strides[part][1];
    tail = tails == nullptr ? nullptr : tails + b * (taps - 1) * channels + c;
  }
  // This channel and those that follow it.
  template <int kRun>
  __device__ void load(int64_t t, float (&to)[kRun]) const {
    if (t >= 0) {
      load_run(x + t * step, to);
    } else if (tail != nullptr) {
      load_run(tail + (t + taps - 1) * channels, to);
    } else {
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        to[r] = 0;
      }
    }
  }
  __device__ float operator[](int64_t t) const {
    float one[1];
    load(t, one);
    return one[0];
  }
};

// Moves the tail on, oldest first: sources are not overwritten yet.
template <int kRun, typename T>
__device__ inline void move_conv_tail(const ConvPast<T>& past, T* tail, const ConvSizes& n) {
  for (int64_t j = 0; j < n.taps - 1; ++j) {
    float x[kRun];
    past.load(n.time - (n.taps - 1) + j, x);
    store_wide(tail + j * n.channels, x);
  }
}

}  // namespace fwpkm
