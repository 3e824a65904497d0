// The short convolution with the usual four taps: a warp walks along the tokens of a sequence. Each
// lane has a few channels that lie side by side and keeps their last inputs in registers, so that
// an input is read about once. Backward walks the same way: what a sum before SiLU gives to the
// inputs before it is kept in registers too, until nothing is missing.
#pragma once

#include "ops/short_conv/channels.cuh"

namespace fwpkm {

inline constexpr int kWalkTaps = 4;
inline constexpr int kWalkStep = 4;  // tokens whose inputs are loaded together
inline constexpr int kWalkWarps = kConvThreads / 32;
inline constexpr int kWalkInputs = kWalkTaps - 1 + kWalkStep;

// How sequences are cut into walks.
struct ConvWalks {
  int span;             // tokens of a walk
  int64_t each, count;  // walks of a sequence, and all of them

  ConvWalks(const ConvSizes& n, int tokens)
      : span(tokens), each(ceil_div(n.time, tokens)), count(n.batch * each) {}
};

// One walk over kRun channels from c on.
template <typename T, int kRun>
struct ConvWalk {
  int64_t b;
  int begin, end;
  ConvPast<T> past;
  const int32_t* starts;  // of this sequence, or null
  float w[kRun][kWalkTaps];
  // The inputs of tokens t-3 .. t+3.
  float x[kWalkInputs][kRun];

  __device__ ConvWalk(const ConvChannels<T>& in, const float* weights, const T* tail,
                      const int32_t* all_starts, const ConvSizes& n, const ConvWalks& walks,
                      int64_t walk, int64_t c)
      : b(walk / walks.each),
        begin(static_cast<int>(walk % walks.each) * walks.span),
        end(min(static_cast<int>(n.time), begin + walks.span)),
        past(in, tail, n, b, c),
        starts(all_starts == nullptr ? nullptr : all_starts + b * n.time) {
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      load_taps(weights + (c + r) * kWalkTaps, w[r]);
    }
#pragma unroll
    for (int j = 0; j < kWalkTaps - 1; ++j) {
      past.load(begin - (kWalkTaps - 1) + j, x[j]);
    }
  }
  __device__ static void load_taps(const float* from, float (&to)[kWalkTaps]) {
    if constexpr (kRun == 1) {
#pragma unroll
      for (int j = 0; j < kWalkTaps; ++j) {
        to[j] = from[j];
      }
    } else {
      load_run(from, to);
    }
  }
  // The input of token t becomes number i of this step's. Returns how many inputs before it count.
  __device__ int load(int t, int i) {
    load_run(past.x + t * past.step, x[kWalkTaps - 1 + i]);
    return starts == nullptr ? kWalkTaps : t - starts[t];
  }
  // The sums before SiLU of token number i of this step.
  __device__ void sums(int i, int seen, float (&a)[kRun]) const {
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      ConvSum<T> sum = 0;
#pragma unroll
      for (int j = 0; j < kWalkTaps; ++j) {
        if (kWalkTaps - 1 - j <= seen) {
          sum += static_cast<ConvSum<T>>(w[r][j]) * static_cast<ConvSum<T>>(x[i + j][r]);
        }
      }
      a[r] = static_cast<float>(sum);
    }
  }
  __device__ void step() {
#pragma unroll
    for (int j = 0; j < kWalkTaps - 1; ++j) {
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        x[j][r] = x[kWalkStep + j][r];
      }
    }
  }
};

// The first channel of this thread, and the number of its warp's first walk.
template <int kRun>
__device__ inline int64_t conv_walk_channel() {
  return (blockIdx.y * int64_t{32} + threadIdx.x % 32) * kRun;
}
__device__ inline int64_t first_conv_walk() {
  return blockIdx.x * int64_t{kWalkWarps} + threadIdx.x / 32;
}

// With one walk to a sequence the tail is moved on here: nobody else reads it.
template <typename T, int kRun>
__global__ void __launch_bounds__(kConvThreads)
    conv_walk_kernel(ConvChannels<T> in, const float* w, T* tail, const int32_t* starts, T* y,
                     ConvSizes n, ConvWalks walks) {
  const int64_t c = conv_walk_channel<kRun>(), number = first_conv_walk();
  if (c >= n.channels || number >= walks.count) {
    return;
  }
  ConvWalk<T, kRun> walk(in, w, tail, starts, n, walks, number, c);
  T* to = y + walk.b * n.time * n.channels + c;
  for (int t = walk.begin; t < walk.end; t += kWalkStep) {
    int seen[kWalkStep];
#pragma unroll
    for (int i = 0; i < kWalkStep; ++i) {
      seen[i] = walk.load(min(t + i, walk.end - 1), i);
    }
#pragma unroll
    for (int i = 0; i < kWalkStep; ++i) {
      if (t + i < walk.end) {
        float a[kRun];
        walk.sums(i, seen[i], a);
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          a[r] = gated<T>(a[r], a[r]);
        }
        store_wide(to + (t + i) * n.channels, a);
      }
    }
    walk.step();
  }
  if (tail != nullptr && walks.each == 1) {
    move_conv_tail<kRun>(walk.past, tail + walk.b * (kWalkTaps - 1) * n.channels + c, n);
  }
}

// Gradients of the inputs of one walk; adds to those of the weights. Tokens after the walk's reach
// back into it.
template <typename T, int kRun>
__device__ inline void conv_walk_back(ConvWalk<T, kRun>& walk, const ConvChannels<T>& to,
                                      const T* dy, const ConvSizes& n, int64_t c,
                                      float (&dw)[kRun][kWalkTaps]) {
  const int part = to.part(c);
  T* const dx = to.data[part] == nullptr ? nullptr : to.start(part, walk.b, c);
  const int64_t dx_step = to.strides[part][1];
  const bool add = to.add[part];
  const int last = min(static_cast<int>(n.time), walk.end + kWalkTaps - 1);
  dy += walk.b * n.time * n.channels + c;
  float sum[kWalkInputs][kRun] = {};  // dx of tokens t-3 .. t+3, as far as it is known
  for (int t = walk.begin; t < walk.end + kWalkTaps - 1; t += kWalkStep) {
    float da[kWalkStep][kRun];
    int seen[kWalkStep];
#pragma unroll
    for (int i = 0; i < kWalkStep; ++i) {
      const int from = min(t + i, last - 1);
      seen[i] = walk.load(from, i);
      load_run(dy + from * n.channels, da[i]);
    }
#pragma unroll
    for (int i = 0; i < kWalkStep; ++i) {
      float a[kRun];
      walk.sums(i, seen[i], a);
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        const float s = gated<T>(1, a[r]);
        const float d = t + i < last ? da[i][r] * s * (1 + a[r] * (1 - s)) : 0;
        const float own = t + i < walk.end ? d : 0;
#pragma unroll
        for (int j = 0; j < kWalkTaps; ++j) {
          if (kWalkTaps - 1 - j <= seen[i]) {
            sum[i + j][r] += walk.w[r][j] * d;
            dw[r][j] += own * walk.x[i + j][r];
          }
        }
      }
      const int done = t + i - (kWalkTaps - 1);
      if (dx != nullptr && done >= walk.begin && done < walk.end) {
        put_run(dx + done * dx_step, sum[i], add);
      }
    }
    walk.step();
#pragma unroll
    for (int j = 0; j < kWalkInputs; ++j) {
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        sum[j][r] = j + kWalkStep < kWalkInputs ? sum[j + kWalkStep][r] : 0;
      }
    }
  }
}

// partial [blocks, C K], the weight's gradient of this block's walks; null where nobody wants it.
template <typename T, int kRun>
__global__ void __launch_bounds__(kConvThreads)
    conv_walk_back_kernel(ConvChannels<T> in, ConvChannels<T> to, const float* w, const T* tail,
                          const int32_t* starts, const T* dy, float* partial, ConvSizes n,
                          ConvWalks walks) {
  // One float more than lanes, so that reading across lanes has no bank conflicts.
  __shared__ float sums[kWalkWarps][kRun * kWalkTaps][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = conv_walk_channel<kRun>();
  float dw[kRun][kWalkTaps] = {};
  if (c < n.channels) {
    for (int64_t number = first_conv_walk(); number < walks.count;
         number += int64_t{gridDim.x} * kWalkWarps) {
      ConvWalk<T, kRun> walk(in, w, tail, starts, n, walks, number, c);
      conv_walk_back(walk, to, dy, n, c, dw);
    }
  }
  if (partial == nullptr) {
    return;
  }
#pragma unroll
  for (int r = 0; r < kRun; ++r) {
#pragma unroll
    for (int j = 0; j < kWalkTaps; ++j) {
      sums[warp][r * kWalkTaps + j][lane] = dw[r][j];
    }
  }
  __syncthreads();
  constexpr int kBlockWeights = 32 * kRun * kWalkTaps;
  const int64_t weights = n.channels * kWalkTaps;
  const int64_t first = blockIdx.y * int64_t{kBlockWeights};
  for (int i = threadIdx.x; i < kBlockWeights && first + i < weights; i += kConvThreads) {
    float sum = 0;
    for (int k = 0; k < kWalkWarps; ++k) {
      sum += sums[k][i % (kRun * kWalkTaps)][i / (kRun * kWalkTaps)];
    }
    partial[blockIdx.x * weights + first + i] = sum;
  }
}

}  // namespace fwpkm
