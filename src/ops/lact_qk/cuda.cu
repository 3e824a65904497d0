// A block takes one token after the other, of q or of k. Its features meet in shared memory: fast
// heads are divided by their lengths, attention heads are turned, and neither fits the other.
#include <algorithm>
#include <type_traits>

#include "ops/common/rows.cuh"
#include "ops/lact_qk/lact_qk.h"
#include "ops/lact_qk/reference.h"

namespace fwpkm {
namespace {

constexpr int kMostThreads = 256;
constexpr int64_t kMostParts = 660;    // blocks that leave sums over tokens
constexpr int64_t kTokensOfBlock = 8;  // forward, at least

// One of q and k. Null: nothing came, or nobody wants it.
template <typename T>
struct Side {
  const T *x = nullptr, *dout = nullptr;
  T *y = nullptr, *dx = nullptr;
  int64_t x_row[2] = {}, dout_row[2] = {}, dx_row[2] = {};  // strides of sequences and tokens
  bool accumulate = false;
};

// What both have in common.
template <typename T>
struct Call {
  Side<T> sides[2];
  const float *scale, *offset;  // [features, 2]
  const float *cos, *sin;
  float* lengths;  // [2, tokens, heads]
  int64_t tokens;
  uint32_t features, runs, heads, head_runs;
  uint32_t half;
  FastDivisor time, turned, width;  // tokens of a sequence, features of the two kinds of heads

  Call(const OpArgs& args, const LactQkSizes& n, int count)
      : scale(args.in[2].ptr<float>()),
        offset(args.in[3].ptr<float>()),
        cos(args.in[4].ptr<float>()),
        sin(args.in[5].ptr<float>()),
        lengths(args.saved[0].ptr<float>()),
        tokens(n.tokens),
        features(static_cast<uint32_t>(n.features)),
        runs(static_cast<uint32_t>(n.features / count)),
        heads(static_cast<uint32_t>(n.heads)),
        head_runs(static_cast<uint32_t>(n.width / count)),
        half(static_cast<uint32_t>(n.half)),
        time(n.time),
        turned(n.turned_width),
        width(n.width) {
    for (int i = 0; i < 2; ++i) {
      sides[i].x = args.in[i].ptr<T>();
      set_rows(args.in[i], sides[i].x_row);
    }
  }
  static void set_rows(const View& view, int64_t (&row)[2]) {
    row[0] = view.strides[0];
    row[1] = view.strides[1];
  }
  __device__ int64_t row(uint32_t token, const int64_t (&strides)[2]) const {
    const uint32_t sequence = time.quotient(token);
    return sequence * strides[0] + (token - sequence * time.divisor) * strides[1];
  }
};

// Scale and offset of a run. A thread that has no more than one keeps them for all its tokens.
template <int kCount>
struct Channels {
  float scale[kCount], offset[kCount];

  template <typename T>
  __device__ void load(const Call<T>& call, int which, uint32_t run) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = 2 * (run * kCount + i) + which;
      scale[i] = call.scale[at];
      offset[i] = call.offset[at];
    }
  }
  __device__ float operator()(int i, float x) const {
    return x * scale[i] + offset[i];
  }
};

// Calls fn(run, channels) for the runs of a token that belong to this thread.
template <int kCount, typename T, typename Fn>
__device__ inline void for_channels(const Call<T>& call, int which, Channels<kCount>& channels,
                                    Fn&& fn) {
  for (uint32_t run = threadIdx.x; run < call.runs; run += blockDim.x) {
    if (call.runs > blockDim.x) {
      channels.load(call, which, run);
    }
    fn(run, channels);
  }
}
template <int kCount, typename T>
__device__ inline Channels<kCount> first_channels(const Call<T>& call, int which) {
  Channels<kCount> channels;
  channels.load(call, which, min(threadIdx.x, call.runs - 1));
  return channels;
}

// Adds up what the runs of each fast head left in `parts`; finish(head, sum) runs in one lane.
template <typename Sum, typename Fn>
__device__ inline void sum_heads(const Sum* parts, uint32_t heads, uint32_t head_runs,
                                 Fn&& finish) {
  const uint32_t warps = blockDim.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  for (uint32_t head = threadIdx.x / kWarpLanes; head < heads; head += warps) {
    Sum sum = 0;
    for (uint32_t run = lane; run < head_runs; run += kWarpLanes) {
      sum += parts[head * head_runs + run];
    }
#pragma unroll
    for (uint32_t step = kWarpLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (lane == 0) {
      finish(head, sum);
    }
  }
}

// Turns the run at feature `at` of a token, forwards or back; read(at, values) gives other runs.
template <int kCount, typename T, typename Read>
__device__ inline void turn(const Call<T>& call, uint32_t token, uint32_t at, bool back,
                            float (&values)[kCount], Read&& read) {
  const uint32_t within = call.turned.remainder(at);
  if (within >= 2 * call.half) {
    return;
  }
  const bool low = within < call.half;
  const int64_t first =
      int64_t{call.time.remainder(token)} * call.half + (low ? within : within - call.half);
  float other[kCount], c[kCount], s[kCount];
  read(low ? at + call.half : at - call.half, other);
  load_run(call.cos + first, c);
  load_run(call.sin + first, s);
  const float sign = low == back ? 1.0f : -1.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = values[i] * c[i] + other[i] * (sign * s[i]);
  }
}

// Short sums of floats are made in double: they are most of what is lost.
template <typename T>
using SumOf = std::conditional_t<sizeof(T) == 2, float, double>;

// Shared memory: sums of runs, a number for each head, then arrays of `features` floats.
template <typename T>
struct Shared {
  SumOf<T>* parts;  // [runs]
  float* gains;     // [2, heads]
  float* rows;      // [.., features], aligned to 16 bytes

  static __host__ __device__ uint32_t rounded(uint32_t bytes) { return (bytes + 15) / 16 * 16; }
  static size_t bytes(uint32_t runs, uint32_t heads, uint32_t features, int arrays) {
    return rounded(runs * sizeof(SumOf<T>)) + rounded(2 * heads * sizeof(float)) +
           size_t{features} * arrays * sizeof(float);
  }
  __device__ Shared(std::byte* base, const Call<T>& call) {
    parts = reinterpret_cast<SumOf<T>*>(base);
    base += rounded(call.runs * sizeof(SumOf<T>));
    gains = reinterpret_cast<float*>(base);
    rows = reinterpret_cast<float*>(base + rounded(2 * call.heads * sizeof(float)));
  }
};

template <typename T, int kCount>
__global__ void __launch_bounds__(kMostThreads) forward_kernel(Call<T> call) {
  extern __shared__ __align__(16) std::byte memory[];
  const Shared<T> shared(memory, call);
  float* y = shared.rows;
  const int which = blockIdx.y;
  const Side<T>& side = call.sides[which];
  auto channels = first_channels<kCount>(call, which);
  for (uint32_t token = blockIdx.x; token < call.tokens; token += gridDim.x) {
    const T* x = side.x + call.row(token, side.x_row);
    for_channels(call, which, channels, [&](uint32_t run, const Channels<kCount>& of) {
      float value[kCount];
      load_run(x + run * kCount, value);
      SumOf<T> squares = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = of(i, value[i]);
        value[i] = gated<T>(a, a);
        squares += static_cast<SumOf<T>>(value[i]) * static_cast<SumOf<T>>(value[i]);
      }
      store_run(y + run * kCount, value);
      shared.parts[run] = squares;
    });
    __syncthreads();
    sum_heads(shared.parts, call.heads, call.head_runs, [&](uint32_t head, SumOf<T> squares) {
      const SumOf<T> length = sqrt(squares);
      shared.gains[head] = static_cast<float>(1 / (length + static_cast<SumOf<T>>(kLactUnitEps)));
      if (call.lengths != nullptr) {
        call.lengths[(which * call.tokens + token) * call.heads + head] =
            static_cast<float>(length);
      }
    });
    __syncthreads();
    const auto unit = [&](uint32_t at, float(&value)[kCount]) {
      const float gain = shared.gains[call.width.quotient(at)];
      load_run(y + at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] *= gain;
      }
    };
    T* to = side.y + int64_t{token} * call.features;
    for (uint32_t run = threadIdx.x; run < call.runs; run += blockDim.x) {
      float value[kCount];
      unit(run * kCount, value);
      turn(call, token, run * kCount, false, value, unit);
      store_run(to + run * kCount, value);
    }
    __syncthreads();  // the next token's features go where these are
  }
}

// Each block leaves its sums over tokens for scale and offset in rows [features, 2] of its own;
// null: not wanted.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMostThreads)
    backward_kernel(Call<T> call, float* scale_parts, float* offset_parts) {
  extern __shared__ __align__(16) std::byte memory[];
  const Shared<T> shared(memory, call);
  float *dn = shared.rows, *dscale = dn + call.features, *doffset = dscale + call.features;
  const int which = blockIdx.y;
  const Side<T>& side = call.sides[which];
  // Each thread has the same features throughout, so that the sums need no barriers.
  for (uint32_t run = threadIdx.x; run < call.runs; run += blockDim.x) {
    const float zeros[kCount] = {};
    store_run(dscale + run * kCount, zeros);
    store_run(doffset + run * kCount, zeros);
  }
  auto channels = first_channels<kCount>(call, which);
  for (uint32_t token = blockIdx.x; token < call.tokens; token += gridDim.x) {
    const T* x = side.x + call.row(token, side.x_row);
    const T* dout = side.dout == nullptr ? nullptr : side.dout + call.row(token, side.dout_row);
    for_channels(call, which, channels, [&](uint32_t run, const Channels<kCount>& of) {
      float value[kCount], d[kCount] = {};
      load_run(x + run * kCount, value);
      if (dout != nullptr) {
        load_run(dout + run * kCount, d);
        turn(call, token, run * kCount, true, d,
             [&](uint32_t at, float(&other)[kCount]) { load_run(dout + at, other); });
      }
      SumOf<T> along = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = of(i, value[i]);
        along += static_cast<SumOf<T>>(gated<T>(a, a)) * static_cast<SumOf<T>>(d[i]);
      }
      store_run(dn + run * kCount, d);
      shared.parts[run] = along;
    });
    __syncthreads();
    sum_heads(shared.parts, call.heads, call.head_runs, [&](uint32_t head, SumOf<T> along) {
      const auto length =
          static_cast<SumOf<T>>(call.lengths[(which * call.tokens + token) * call.heads + head]);
      const SumOf<T> r = 1 / (length + static_cast<SumOf<T>>(kLactUnitEps));
      shared.gains[head] = static_cast<float>(r);
      shared.gains[call.heads + head] = length > 0 ? static_cast<float>(r * along / length) : 0.0f;
    });
    __syncthreads();
    for_channels(call, which, channels, [&](uint32_t run, const Channels<kCount>& of) {
      const uint32_t at = run * kCount, head = call.width.quotient(at);
      const float gain = shared.gains[head], back = shared.gains[call.heads + head];
      float value[kCount], d[kCount], dx[kCount];
      load_run(x + at, value);
      load_run(dn + at, d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = of(i, value[i]), s = gated<T>(1, a);
        const float dy = gain * (d[i] - a * s * back);
        d[i] = dy * s * (1 + a * (1 - s));
        dx[i] = d[i] * of.scale[i];
        value[i] *= d[i];
      }
      put_run(dscale + at, value, true);
      put_run(doffset + at, d, true);
      if (side.dx != nullptr) {
        put_run(side.dx + call.row(token, side.dx_row) + at, dx, side.accumulate);
      }
    });
    // No barrier: the next token's sums are read behind one, and dn stays with its thread.
  }
  for (uint32_t run = threadIdx.x; run < call.runs; run += blockDim.x) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = run * kCount + i;
      const int64_t to = (int64_t{blockIdx.x} * call.features + at) * 2 + which;
      if (scale_parts != nullptr) {
        scale_parts[to] = dscale[at];
      }
      if (offset_parts != nullptr) {
        offset_parts[to] = doffset[at];
      }
    }
  }
}

unsigned threads_for(uint32_t runs) {
  return std::min<unsigned>(kMostThreads, (runs + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
}

// More shared memory than kernels have without asking.
template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  constexpr size_t kUnasked = 48 << 10;
  if (bytes > kUnasked) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "lact_qk's shared memory");
  }
}

// Calls fn with the length of runs: 8 where all rows and both kinds of heads allow that.
template <typename Fn>
void with_count(const LactQkSizes& n, std::initializer_list<View> rows, Fn&& fn) {
  if (n.width % 8 == 0 && n.turned_width % 8 == 0 && n.half % 8 == 0 && in_runs_of(8, rows)) {
    fn(std::integral_constant<int, 8>());
  } else {
    fn(std::integral_constant<int, 1>());
  }
}

template <typename T>
void forward(const OpArgs& args) {
  const LactQkSizes n(args);
  if (n.tokens == 0) {
    return;
  }
  with_count(n, {args.in[0], args.in[1], args.in[4], args.in[5], args.out[0], args.out[1]},
             [&]<int kCount>(std::integral_constant<int, kCount>) {
               Call<T> call(args, n, kCount);
               for (int i = 0; i < 2; ++i) {
                 call.sides[i].y = args.out[i].ptr<T>();
               }
               const size_t bytes = Shared<T>::bytes(call.runs, call.heads, call.features, 1);
               allow_shared(&forward_kernel<T, kCount>, bytes);
               const dim3 blocks(blocks_for(n.tokens, kTokensOfBlock, 1 << 13), 2);
               forward_kernel<T, kCount>
                   <<<blocks, threads_for(call.runs), bytes, this_stream()>>>(call);
             });
  check_launch("lact_qk");
}

int64_t parts_of(const LactQkSizes& n) {
  return std::min(n.tokens, kMostParts);
}

template <typename T>
void backward(const OpArgs& args) {
  const LactQkSizes n(args);
  const ColumnParts parts = {static_cast<unsigned>(parts_of(n)), parts_of(n)};
  auto* sums = static_cast<float*>(args.workspace);
  float* scale_parts = args.din[2] ? sums : nullptr;
  float* offset_parts = args.din[3] ? sums + parts.count * 2 * n.features : nullptr;
  if (n.tokens > 0) {
    with_count(n,
               {args.in[0], args.in[1], args.in[4], args.in[5], args.dout[0], args.dout[1],
                args.din[0], args.din[1]},
               [&]<int kCount>(std::integral_constant<int, kCount>) {
                 Call<T> call(args, n, kCount);
                 for (int i = 0; i < 2; ++i) {
                   Side<T>& side = call.sides[i];
                   side.dout = args.dout[i].ptr<T>();
                   side.dx = args.din[i].ptr<T>();
                   side.accumulate = args.accumulate[i];
                   call.set_rows(args.dout[i], side.dout_row);
                   call.set_rows(args.din[i], side.dx_row);
                 }
                 const size_t bytes = Shared<T>::bytes(call.runs, call.heads, call.features, 3);
                 allow_shared(&backward_kernel<T, kCount>, bytes);
                 backward_kernel<T, kCount>
                     <<<dim3(parts.blocks, 2), threads_for(call.runs), bytes, this_stream()>>>(
                         call, scale_parts, offset_parts);
               });
    check_launch("lact_qk backward");
  }
  add_column_sums(scale_parts, parts, args.din[2], args.accumulate[2]);
  add_column_sums(offset_parts, parts, args.din[3], args.accumulate[3]);
}

}  // namespace

void lact_qk_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void lact_qk_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t lact_qk_workspace_cuda(const OpArgs& args, bool backward) {
  const LactQkSizes n(args);
  return backward ? static_cast<size_t>(4 * parts_of(n) * n.features) * sizeof(float) : 0;
}

}  // namespace fwpkm
