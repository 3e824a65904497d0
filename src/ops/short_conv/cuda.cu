// The short convolution on a GPU: a thread for each channel of a token. Sums before SiLU are in
// double, since taps cancel. The weight's gradient is summed in groups of tokens, then group by
// group.
#include "ops/common/device.cuh"
#include "ops/short_conv/short_conv.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 128;

// q, k and v, or their gradients, as one row of channels.
struct Channels {
  float* data[3];
  int64_t strides[3][3];  // batch, time, head
  int64_t width[3], end[3];
  bool add[3] = {};

  // Shapes are those of the inputs; the gradient that nobody wants has no data.
  Channels(std::span<const View> views, std::span<const View> in) {
    int64_t channels = 0;
    for (int i = 0; i < 3; ++i) {
      data[i] = views[i].ptr<float>();
      width[i] = in[i].dim(3);
      channels += in[i].dim(2) * width[i];
      end[i] = channels;
      for (int d = 0; d < 3; ++d) {
        strides[i][d] = views[i].strides[d];
      }
    }
  }
  __device__ int part(int64_t c) const { return c < end[0] ? 0 : c < end[1] ? 1 : 2; }
  // Channel c of a part at time 0, and how far the next token is.
  __device__ float* start(int part, int64_t b, int64_t c) const {
    const int64_t inside = c - (part == 0 ? 0 : end[part - 1]);
    return data[part] + b * strides[part][0] + inside / width[part] * strides[part][2] +
           inside % width[part];
  }
};

struct Sizes {
  int64_t batch, time, channels, taps;

  explicit Sizes(const OpArgs& args)
      : batch(args.out[0].dim(0)),
        time(args.out[0].dim(1)),
        channels(args.out[0].dim(2)),
        taps(args.in[3].dim(2)) {}
  __host__ __device__ int64_t tokens() const { return batch * time; }
};

// What reaches a channel: the inputs of these tokens and those before them.
struct Past {
  const float* x;     // at time 0
  int64_t step;       // from token to token
  const float* tail;  // at time -(K-1), rows of all channels; or null for zeros
  int64_t channels, taps;

  __device__ Past(const Channels& in, const float* tails, const Sizes& n, int64_t b, int64_t c)
      : channels(n.channels), taps(n.taps) {
    const int part = in.part(c);
    x = in.start(part, b, c);
    step = in.strides[part][1];
    tail = tails == nullptr ? nullptr : tails + b * (taps - 1) * channels + c;
  }
  __device__ float operator[](int64_t t) const {
    if (t >= 0) {
      return x[t * step];
    }
    return tail == nullptr ? 0 : tail[(t + taps - 1) * channels];
  }
};

// The sum before SiLU at time t, over inputs from `first` on; w are the channel's taps.
__device__ float weighted_sum(const Past& past, const float* w, int64_t t, int64_t first) {
  double sum = 0;
  for (int64_t j = 0; j < past.taps; ++j) {
    const int64_t from = t - (past.taps - 1) + j;
    if (from >= first) {
      sum += static_cast<double>(w[j]) * static_cast<double>(past[from]);
    }
  }
  return static_cast<float>(sum);
}

// The first input that counts for a token.
__device__ int64_t first_seen(const int32_t* starts, int64_t token, int64_t taps) {
  return starts == nullptr ? -taps : starts[token];
}

__global__ void forward_kernel(Channels in, const float* w, const float* tail,
                               const int32_t* starts, float* y, Sizes n) {
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const Past past(in, tail, n, token / n.time, c);
  const float a =
      weighted_sum(past, w + c * n.taps, token % n.time, first_seen(starts, token, n.taps));
  y[token * n.channels + c] = a / (1 + expf(-a));
}

// Moves the tail on, oldest first: sources are not overwritten yet.
__global__ void tail_kernel(Channels in, float* tail, Sizes n) {
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x, b = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const Past past(in, tail, n, b, c);
  for (int64_t j = 0; j < n.taps - 1; ++j) {
    tail[(b * (n.taps - 1) + j) * n.channels + c] = past[n.time - (n.taps - 1) + j];
  }
}

// da, the gradient of the sums before SiLU: [tokens, channels].
__global__ void sum_kernel(Channels in, const float* w, const float* tail, const int32_t* starts,
                           const float* dy, float* da, Sizes n) {
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const Past past(in, tail, n, token / n.time, c);
  const float a =
      weighted_sum(past, w + c * n.taps, token % n.time, first_seen(starts, token, n.taps));
  const float s = 1 / (1 + expf(-a));
  da[token * n.channels + c] = dy[token * n.channels + c] * s * (1 + a * (1 - s));
}

__global__ void input_kernel(Channels to, const float* w, const int32_t* starts, const float* da,
                             Sizes n) {
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const int part = to.part(c);
  if (to.data[part] == nullptr) {
    return;
  }
  const int64_t b = token / n.time, t = token % n.time;
  float sum = 0;
  for (int64_t j = 0; j < n.taps; ++j) {
    const int64_t later = t + n.taps - 1 - j;  // the token that this tap carries to
    if (later < n.time && (starts == nullptr || t >= starts[b * n.time + later])) {
      sum += w[c * n.taps + j] * da[(b * n.time + later) * n.channels + c];
    }
  }
  put(to.start(part, b, c) + t * to.strides[part][1], sum, to.add[part]);
}

// A thread for each weight and group of tokens: partial [groups, C K].
__global__ void weight_kernel(Channels in, const float* tail, const int32_t* starts,
                              const float* da, float* partial, Sizes n) {
  const int64_t i = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (i >= n.channels * n.taps) {
    return;
  }
  const int64_t c = i / n.taps, back = n.taps - 1 - i % n.taps;
  const int64_t begin = blockIdx.x * kColumnRows, end = min(n.tokens(), begin + kColumnRows);
  float sum = 0;
  for (int64_t token = begin; token < end;) {
    const int64_t b = token / n.time, row_end = min(end, (b + 1) * n.time);
    const Past past(in, tail, n, b, c);
    for (; token < row_end; ++token) {
      const int64_t from = token - b * n.time - back;
      if (from >= first_seen(starts, token, n.taps)) {
        sum += da[token * n.channels + c] * past[from];
      }
    }
  }
  partial[blockIdx.x * n.channels * n.taps + i] = sum;
}

dim3 grid_of(int64_t items, int64_t columns) {
  return {static_cast<unsigned>(items), static_cast<unsigned>(ceil_div(columns, kThreads))};
}

// Floats of da in the workspace, so that what follows is aligned to 256 bytes.
int64_t da_size(const Sizes& n) {
  return ceil_div(n.tokens() * n.channels, 64) * 64;
}

}  // namespace

void short_conv_forward_cuda(const OpArgs& args) {
  const Sizes n(args);
  const Channels in(args.in, args.in);
  float* tail = args.state.empty() ? nullptr : args.state[0].ptr<float>();
  if (tail != nullptr && args.saved[0] && args.state[0].size() > 0) {
    check_cuda(cudaMemcpyAsync(args.saved[0].data, tail, static_cast<size_t>(args.state[0].bytes()),
                               cudaMemcpyDeviceToDevice, this_stream()),
               "short_conv tail");
  }
  if (n.tokens() * n.channels == 0) {
    return;
  }
  forward_kernel<<<grid_of(n.tokens(), n.channels), kThreads, 0, this_stream()>>>(
      in, args.in[3].ptr<float>(), tail, args.in[4].ptr<int32_t>(), args.out[0].ptr<float>(), n);
  check_launch("short_conv");
  if (tail != nullptr && n.taps > 1) {
    tail_kernel<<<grid_of(n.batch, n.channels), kThreads, 0, this_stream()>>>(in, tail, n);
    check_launch("short_conv tail");
  }
}

void short_conv_backward_cuda(const OpArgs& args) {
  const Sizes n(args);
  const Channels in(args.in, args.in);
  const float* w = args.in[3].ptr<float>();
  const float* tail = args.saved[0].ptr<float>();
  const int32_t* starts = args.in[4].ptr<int32_t>();
  auto* da = static_cast<float*>(args.workspace);
  const bool any = n.tokens() * n.channels > 0;
  if (any) {
    sum_kernel<<<grid_of(n.tokens(), n.channels), kThreads, 0, this_stream()>>>(
        in, w, tail, starts, args.dout[0].ptr<float>(), da, n);
    check_launch("short_conv backward");
  }
  if (any && (args.din[0] || args.din[1] || args.din[2])) {
    Channels to(args.din, args.in);
    for (int i = 0; i < 3; ++i) {
      to.add[i] = args.accumulate[i];
    }
    input_kernel<<<grid_of(n.tokens(), n.channels), kThreads, 0, this_stream()>>>(to, w, starts, da,
                                                                                  n);
    check_launch("short_conv inputs");
  }
  if (args.din[3] && n.channels > 0) {
    const int64_t groups = column_groups(n.tokens()), weights = n.channels * n.taps;
    float* partial = da + da_size(n);
    if (groups > 0) {
      weight_kernel<<<grid_of(groups, weights), kThreads, 0, this_stream()>>>(in, tail, starts, da,
                                                                              partial, n);
      check_launch("short_conv weight");
    }
    add_column_groups(partial, groups, weights, args.din[3].ptr<float>(), args.accumulate[3]);
  }
}

size_t short_conv_workspace_cuda(const OpArgs& args, bool backward) {
  if (!backward) {
    return 0;
  }
  const Sizes n(args);
  const int64_t partial = args.din[3] ? column_groups(n.tokens()) * n.channels * n.taps : 0;
  return static_cast<size_t>(da_size(n) + partial) * sizeof(float);
}

}  // namespace fwpkm
