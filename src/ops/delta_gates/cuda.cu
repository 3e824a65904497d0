// A few numbers per token, in double where decays, whose errors multiply along the sequence, are
// made. Backward: a warp for each head of a group of tokens.
#include "ops/common/device.cuh"
#include "ops/delta_gates/delta_gates.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t rows, heads, group, time;

  explicit Sizes(const OpArgs& args) {
    const auto settings = args.attr<DeltaGatesSettings>();
    rows = args.in[0].rows();
    heads = args.in[1].dim(0);
    group = heads / settings.key_heads;
    time = settings.time;
  }
  // Where the b of value head h stands in ba; its a follows `group` places later.
  __device__ int64_t place(int64_t row, int64_t h) const {
    return row * 2 * heads + h / group * 2 * group + h % group;
  }
  __device__ bool begins(const int32_t* starts, int64_t row) const {
    return starts != nullptr && row % time > 0 && starts[row] == row % time;
  }
};

template <typename T>
__global__ void forward_kernel(const T* ba, const float* a_log, const float* dt_bias,
                               const int32_t* starts, float* g, float* beta, Sizes n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n.rows * n.heads;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / n.heads, h = i % n.heads, place = n.place(row, h);
    const double x =
        static_cast<double>(to_float(ba[place + n.group])) + static_cast<double>(dt_bias[h]);
    const double softplus = fmax(x, 0.0) + log1p(exp(-fabs(x)));
    g[i] = static_cast<float>(
        n.begins(starts, row) ? kForgetAll : -exp(static_cast<double>(a_log[h])) * softplus);
    beta[i] = static_cast<float>(1 / (1 + exp(-static_cast<double>(to_float(ba[place])))));
  }
}

template <typename T>
struct Gradients {
  const float *dg, *dbeta;  // null where none arrived
  T* dba;                   // null where nobody wants it
  bool add;
  double* sums;  // of da_log, then of dt_bias, over groups of rows: [2, heads, groups]
};

template <typename T>
__global__ void backward_kernel(const T* ba, const float* a_log, const float* dt_bias,
                                const int32_t* starts, const float* g, const float* beta,
                                Gradients<T> to, Sizes n, int64_t groups) {
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t item = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; item < groups * n.heads;
       item += warps) {
    const int64_t group = item / n.heads, h = item % n.heads;
    const int64_t end = min(n.rows, (group + 1) * kColumnRows);
    const float rate = expf(a_log[h]), bias = dt_bias[h];
    double for_log = 0, for_bias = 0;  // terms of both signs
    for (int64_t row = group * kColumnRows + threadIdx.x % 32; row < end; row += 32) {
      const int64_t i = row * n.heads + h, place = n.place(row, h);
      const float dg = to.dg != nullptr && !n.begins(starts, row) ? to.dg[i] : 0;
      const float dbeta = to.dbeta != nullptr ? to.dbeta[i] : 0;
      const float da = -dg * rate / (1 + expf(-(to_float(ba[place + n.group]) + bias)));
      if (to.dba != nullptr) {
        put(to.dba + place, dbeta * beta[i] * (1 - beta[i]), to.add);
        put(to.dba + place + n.group, da, to.add);
      }
      for_log += static_cast<double>(dg) * g[i];
      for_bias += da;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      for_log += __shfl_xor_sync(0xffffffffu, for_log, step);
      for_bias += __shfl_xor_sync(0xffffffffu, for_bias, step);
    }
    if (threadIdx.x % 32 == 0) {
      to.sums[h * groups + group] = for_log;
      to.sums[(n.heads + h) * groups + group] = for_bias;
    }
  }
}

// The gradients of a_log and dt_bias; null where nobody wants them.
struct HeadGradients {
  float *a_log, *dt_bias;
  bool add_a_log, add_dt_bias;
};

// A block for each head of either.
__global__ void sum_kernel(const double* sums, int64_t groups, int64_t heads, HeadGradients all) {
  __shared__ double parts[kThreads];
  const bool first = blockIdx.x < heads;
  float* to = first ? all.a_log : all.dt_bias;
  if (to == nullptr) {
    return;
  }
  double sum = 0;
  for (int64_t i = threadIdx.x; i < groups; i += kThreads) {
    sum += sums[blockIdx.x * groups + i];
  }
  parts[threadIdx.x] = sum;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) {
      parts[threadIdx.x] += parts[threadIdx.x + step];
    }
  }
  if (threadIdx.x == 0) {
    put(to + blockIdx.x - (first ? 0 : heads), static_cast<float>(parts[0]),
        first ? all.add_a_log : all.add_dt_bias);
  }
}

template <typename T>
void forward(const OpArgs& args, const Sizes& n) {
  forward_kernel<T><<<blocks_for(n.rows * n.heads, kThreads), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<T>(), args.in[1].ptr<float>(), args.in[2].ptr<float>(),
      args.in[3].ptr<int32_t>(), args.out[0].ptr<float>(), args.out[1].ptr<float>(), n);
  check_launch("delta_gates");
}

template <typename T>
void backward(const OpArgs& args, const Sizes& n, int64_t groups, double* sums) {
  const Gradients<T> to = {args.dout[0].ptr<float>(), args.dout[1].ptr<float>(),
                           args.din[0].ptr<T>(), args.accumulate[0], sums};
  backward_kernel<T><<<blocks_for(groups * n.heads, kThreads / 32), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<T>(), args.in[1].ptr<float>(), args.in[2].ptr<float>(),
      args.in[3].ptr<int32_t>(), args.out[0].ptr<float>(), args.out[1].ptr<float>(), to, n, groups);
  check_launch("delta_gates backward");
}

}  // namespace

void delta_gates_forward_cuda(const OpArgs& args) {
  const Sizes n(args);
  if (n.rows * n.heads > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args, n); });
  }
}

void delta_gates_backward_cuda(const OpArgs& args) {
  const Sizes n(args);
  if (n.heads == 0) {
    return;
  }
  const int64_t groups = column_groups(n.rows);
  auto* sums = static_cast<double*>(args.workspace);
  if (groups > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args, n, groups, sums); });
  }
  if (args.din[1] || args.din[2]) {
    const HeadGradients to = {args.din[1].ptr<float>(), args.din[2].ptr<float>(),
                              args.accumulate[1], args.accumulate[2]};
    sum_kernel<<<static_cast<unsigned>(2 * n.heads), kThreads, 0, this_stream()>>>(sums, groups,
                                                                                   n.heads, to);
    check_launch("delta_gates sums");
  }
}

size_t delta_gates_workspace_cuda(const OpArgs& args, bool backward) {
  const Sizes n(args);
  return backward ? static_cast<size_t>(2 * n.heads * column_groups(n.rows)) * sizeof(double) : 0;
}

}  // namespace fwpkm
