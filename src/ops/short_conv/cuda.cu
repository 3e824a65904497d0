// The short convolution on a GPU. Four taps go as walk.cuh says. For any other number there are
// plain kernels with a thread for each channel of a token. The weight's gradient is summed in
// groups of tokens, then over groups, always in one order.
#include <algorithm>

#include "ops/short_conv/channels.cuh"
#include "ops/short_conv/walk.cuh"

namespace fwpkm {
namespace {

// The sum before SiLU at time t, over inputs from `first` on; w are the channel's taps.
template <typename T>
__device__ float weighted_sum(const ConvPast<T>& past, const float* w, int64_t t, int64_t first) {
  ConvSum<T> sum = 0;
  for (int64_t j = 0; j < past.taps; ++j) {
    const int64_t from = t - (past.taps - 1) + j;
    if (from >= first) {
      sum += static_cast<ConvSum<T>>(w[j]) * static_cast<ConvSum<T>>(past[from]);
    }
  }
  return static_cast<float>(sum);
}

// The first input that counts for a token.
__device__ int64_t first_seen(const int32_t* starts, int64_t token, int64_t taps) {
  return starts == nullptr ? -taps : starts[token];
}

template <typename T>
__global__ void forward_kernel(ConvChannels<T> in, const float* w, const T* tail,
                               const int32_t* starts, T* y, ConvSizes n) {
  const int64_t c = blockIdx.y * int64_t{kConvThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const ConvPast<T> past(in, tail, n, token / n.time, c);
  const float a =
      weighted_sum(past, w + c * n.taps, token % n.time, first_seen(starts, token, n.taps));
  y[token * n.channels + c] = from_float<T>(gated<T>(a, a));
}

template <typename T>
__global__ void tail_kernel(ConvChannels<T> in, T* tail, ConvSizes n) {
  const int64_t c = blockIdx.y * int64_t{kConvThreads} + threadIdx.x, b = blockIdx.x;
  if (c < n.channels) {
    move_conv_tail<1>(ConvPast<T>(in, tail, n, b, c), tail + b * (n.taps - 1) * n.channels + c, n);
  }
}

// da, the gradient of the sums before SiLU: [tokens, channels].
template <typename T>
__global__ void sum_kernel(ConvChannels<T> in, const float* w, const T* tail, const int32_t* starts,
                           const T* dy, float* da, ConvSizes n) {
  const int64_t c = blockIdx.y * int64_t{kConvThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= n.channels) {
    return;
  }
  const ConvPast<T> past(in, tail, n, token / n.time, c);
  const float a =
      weighted_sum(past, w + c * n.taps, token % n.time, first_seen(starts, token, n.taps));
  const float s = gated<T>(1, a);
  da[token * n.channels + c] = to_float(dy[token * n.channels + c]) * s * (1 + a * (1 - s));
}

template <typename T>
__global__ void input_kernel(ConvChannels<T> to, const float* w, const int32_t* starts,
                             const float* da, ConvSizes n) {
  const int64_t c = blockIdx.y * int64_t{kConvThreads} + threadIdx.x, token = blockIdx.x;
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
template <typename T>
__global__ void weight_kernel(ConvChannels<T> in, const T* tail, const int32_t* starts,
                              const float* da, float* partial, ConvSizes n) {
  const int64_t i = blockIdx.y * int64_t{kConvThreads} + threadIdx.x;
  if (i >= n.channels * n.taps) {
    return;
  }
  const int64_t c = i / n.taps, back = n.taps - 1 - i % n.taps;
  const int64_t begin = blockIdx.x * kColumnRows, end = min(n.tokens(), begin + kColumnRows);
  float sum = 0;
  for (int64_t token = begin; token < end;) {
    const int64_t b = token / n.time, row_end = min(end, (b + 1) * n.time);
    const ConvPast<T> past(in, tail, n, b, c);
    for (; token < row_end; ++token) {
      const int64_t from = token - b * n.time - back;
      if (from >= first_seen(starts, token, n.taps)) {
        sum += da[token * n.channels + c] * past[from];
      }
    }
  }
  partial[blockIdx.x * n.channels * n.taps + i] = sum;
}

// The weight's gradient from partial [groups, weights]: warps take turns with the groups of 32
// weights.
constexpr int kSumThreads = 256;
__global__ void add_groups_kernel(const float* partial, int64_t groups, int64_t weights, float* to,
                                  bool add) {
  __shared__ float sums[kSumThreads / 32][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t i = blockIdx.x * int64_t{32} + lane;
  float sum = 0;
  if (i < weights) {
#pragma unroll 8
    for (int64_t g = warp; g < groups; g += kSumThreads / 32) {
      sum += partial[g * weights + i];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && i < weights) {
    for (int k = 1; k < kSumThreads / 32; ++k) {
      sum += sums[k][lane];
    }
    put(to + i, sum, add);
  }
}

dim3 grid_of(int64_t items, int64_t columns) {
  return {static_cast<unsigned>(items), static_cast<unsigned>(ceil_div(columns, kConvThreads))};
}

bool walks_along(const ConvSizes& n) {
  return n.taps == kWalkTaps;
}

// Short walks where there is little to do, so that there are enough of them.
ConvWalks forward_walks(const ConvSizes& n) {
  constexpr int64_t kEnough = int64_t{1} << 24;
  return ConvWalks(n, n.tokens() * n.channels >= kEnough ? 32 : 8);
}

ConvWalks backward_walks(const ConvSizes& n) {
  return ConvWalks(n, 32);
}

// Groups of tokens in which the weight's gradient is summed.
int64_t weight_groups(const ConvSizes& n) {
  constexpr int64_t kMost = 512;
  return walks_along(n) ? std::min(kMost, ceil_div(backward_walks(n).count, kWalkWarps))
                        : column_groups(n.tokens());
}

// Floats of da in the workspace, so that what follows is aligned to 256 bytes.
int64_t da_size(const ConvSizes& n) {
  return walks_along(n) ? 0 : ceil_div(n.tokens() * n.channels, 64) * 64;
}

// Calls fn with a constant: how many channels a thread takes.
template <typename Fn>
void with_run(bool in_runs, Fn&& fn) {
  if (in_runs) {
    fn(std::integral_constant<int, 4>());
  } else {
    fn(std::integral_constant<int, 1>());
  }
}

template <typename T>
void forward(const OpArgs& args, const ConvSizes& n) {
  const ConvChannels<T> in(args.in, args.in);
  const float* w = args.in[3].ptr<float>();
  const View tails = args.state.empty() ? View() : args.state[0];
  T *tail = tails.ptr<T>(), *y = args.out[0].ptr<T>();
  const int32_t* starts = args.in[4].ptr<int32_t>();
  if (tails.size() > 0 && args.saved[0]) {
    check_cuda(cudaMemcpyAsync(args.saved[0].ptr<T>(), tail, static_cast<size_t>(tails.bytes()),
                               cudaMemcpyDeviceToDevice, this_stream()),
               "short_conv tail");
  }
  if (n.tokens() * n.channels == 0) {
    return;
  }
  bool moved = false;
  if (walks_along(n)) {
    const ConvWalks walks = forward_walks(n);
    moved = walks.each == 1;
    with_run(in_runs_of(4, {args.in[0], args.in[1], args.in[2], args.in[3], args.out[0], tails}),
             [&]<int kRun>(std::integral_constant<int, kRun>) {
               const dim3 grid(static_cast<unsigned>(ceil_div(walks.count, kWalkWarps)),
                               static_cast<unsigned>(ceil_div(n.channels, 32 * kRun)));
               conv_walk_kernel<T, kRun>
                   <<<grid, kConvThreads, 0, this_stream()>>>(in, w, tail, starts, y, n, walks);
             });
  } else {
    forward_kernel<T><<<grid_of(n.tokens(), n.channels), kConvThreads, 0, this_stream()>>>(
        in, w, tail, starts, y, n);
  }
  check_launch("short_conv");
  if (tail != nullptr && n.taps > 1 && !moved) {
    tail_kernel<T><<<grid_of(n.batch, n.channels), kConvThreads, 0, this_stream()>>>(in, tail, n);
    check_launch("short_conv tail");
  }
}

// All gradients; that of the weight in groups.
template <typename T>
void walk_backward(const OpArgs& args, const ConvSizes& n, const ConvChannels<T>& to,
                   float* partial) {
  const ConvChannels<T> in(args.in, args.in);
  with_run(in_runs_of(4, {args.in[0], args.in[1], args.in[2], args.in[3], args.saved[0],
                          args.dout[0], args.din[0], args.din[1], args.din[2]}),
           [&]<int kRun>(std::integral_constant<int, kRun>) {
             const dim3 grid(static_cast<unsigned>(weight_groups(n)),
                             static_cast<unsigned>(ceil_div(n.channels, 32 * kRun)));
             conv_walk_back_kernel<T, kRun><<<grid, kConvThreads, 0, this_stream()>>>(
                 in, to, args.in[3].ptr<float>(), args.saved[0].ptr<T>(), args.in[4].ptr<int32_t>(),
                 args.dout[0].ptr<T>(), partial, n, backward_walks(n));
           });
  check_launch("short_conv backward");
}

template <typename T>
void plain_backward(const OpArgs& args, const ConvSizes& n, const ConvChannels<T>& to, float* da,
                    float* partial) {
  const ConvChannels<T> in(args.in, args.in);
  const float* w = args.in[3].ptr<float>();
  const T* tail = args.saved[0].ptr<T>();
  const int32_t* starts = args.in[4].ptr<int32_t>();
  const dim3 grid = grid_of(n.tokens(), n.channels);
  sum_kernel<T>
      <<<grid, kConvThreads, 0, this_stream()>>>(in, w, tail, starts, args.dout[0].ptr<T>(), da, n);
  check_launch("short_conv backward");
  if (args.din[0] || args.din[1] || args.din[2]) {
    input_kernel<T><<<grid, kConvThreads, 0, this_stream()>>>(to, w, starts, da, n);
    check_launch("short_conv inputs");
  }
  if (partial != nullptr) {
    weight_kernel<T>
        <<<grid_of(weight_groups(n), n.channels * n.taps), kConvThreads, 0, this_stream()>>>(
            in, tail, starts, da, partial, n);
    check_launch("short_conv weight");
  }
}

template <typename T>
void backward(const OpArgs& args, const ConvSizes& n) {
  auto* da = static_cast<float*>(args.workspace);
  float* partial = args.din[3] ? da + da_size(n) : nullptr;
  if (n.tokens() > 0) {
    ConvChannels<T> to(args.din, args.in);
    std::copy_n(args.accumulate.begin(), 3, to.add);
    if (walks_along(n)) {
      walk_backward<T>(args, n, to, partial);
    } else {
      plain_backward<T>(args, n, to, da, partial);
    }
  }
  if (args.din[3]) {
    const int64_t weights = n.channels * n.taps;
    add_groups_kernel<<<static_cast<unsigned>(ceil_div(weights, 32)), kSumThreads, 0,
                        this_stream()>>>(partial, weight_groups(n), weights,
                                         args.din[3].ptr<float>(), args.accumulate[3]);
    check_launch("short_conv weight");
  }
}

}  // namespace

void short_conv_forward_cuda(const OpArgs& args) {
  const ConvSizes n(args);
  with_real(args.out[0], [&]<typename T>(T*) { forward<T>(args, n); });
}

void short_conv_backward_cuda(const OpArgs& args) {
  const ConvSizes n(args);
  if (n.channels > 0) {
    with_real(args.out[0], [&]<typename T>(T*) { backward<T>(args, n); });
  }
}

size_t short_conv_workspace_cuda(const OpArgs& args, bool backward) {
  if (!backward) {
    return 0;
  }
  const ConvSizes n(args);
  const int64_t partial = args.din[3] ? weight_groups(n) * n.channels * n.taps : 0;
  return static_cast<size_t>(da_size(n) + partial) * sizeof(float);
}

}  // namespace fwpkm
