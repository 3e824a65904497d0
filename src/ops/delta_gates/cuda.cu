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

__global__ void forward_kernel(const float* ba, const float* a_log, const float* dt_bias,
                               const int32_t* starts, float* g, float* beta, Sizes n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n.rows * n.heads;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / n.heads, h = i % n.heads, place = n.place(row, h);
    const double x = static_cast<double>(ba[place + n.group]) + static_cast<double>(dt_bias[h]);
    const double softplus = fmax(x, 0.0) + log1p(exp(-fabs(x)));
    g[i] = static_cast<float>(
        n.begins(starts, row) ? kForgetAll : -exp(static_cast<double>(a_log[h])) * softplus);
    beta[i] = static_cast<float>(1 / (1 + exp(-static_cast<double>(ba[place]))));
  }
}

struct Gradients {
  const float *dg, *dbeta;  // null where none arrived
  float* dba;               // null where nobody wants it
  bool add;
  float *da_log, *ddt_bias;  // sums of groups of rows: [heads, groups]
};

__global__ void backward_kernel(const float* ba, const float* a_log, const float* dt_bias,
                                const int32_t* starts, const float* g, const float* beta,
                                Gradients to, Sizes n, int64_t groups) {
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t item = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; item < groups * n.heads;
       item += warps) {
    const int64_t group = item / n.heads, h = item % n.heads;
    const int64_t end = min(n.rows, (group + 1) * kColumnRows);
    const float rate = expf(a_log[h]), bias = dt_bias[h];
    float for_log = 0, for_bias = 0;
    for (int64_t row = group * kColumnRows + threadIdx.x % 32; row < end; row += 32) {
      const int64_t i = row * n.heads + h, place = n.place(row, h);
      const float dg = to.dg != nullptr && !n.begins(starts, row) ? to.dg[i] : 0;
      const float dbeta = to.dbeta != nullptr ? to.dbeta[i] : 0;
      const float da = -dg * rate / (1 + expf(-(ba[place + n.group] + bias)));
      if (to.dba != nullptr) {
        put(to.dba + place, dbeta * beta[i] * (1 - beta[i]), to.add);
        put(to.dba + place + n.group, da, to.add);
      }
      for_log += dg * g[i];
      for_bias += da;
    }
    for_log = warp_sum(for_log);
    for_bias = warp_sum(for_bias);
    if (threadIdx.x % 32 == 0) {
      to.da_log[h * groups + group] = for_log;
      to.ddt_bias[h * groups + group] = for_bias;
    }
  }
}

// A block for each head.
__global__ void sum_kernel(const float* partial, int64_t groups, float* to, bool add) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < groups; i += kThreads) {
    sum += partial[blockIdx.x * groups + i];
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) {
    put(to + blockIdx.x, sum, add);
  }
}

// Floats of one of the two lists of sums, whole 256 bytes.
int64_t sums_size(const Sizes& n) {
  return ceil_div(column_groups(n.rows) * n.heads, 64) * 64;
}

}  // namespace

void delta_gates_forward_cuda(const OpArgs& args) {
  const Sizes n(args);
  if (n.rows * n.heads == 0) {
    return;
  }
  forward_kernel<<<blocks_for(n.rows * n.heads, kThreads), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), args.in[1].ptr<float>(), args.in[2].ptr<float>(),
      args.in[3].ptr<int32_t>(), args.out[0].ptr<float>(), args.out[1].ptr<float>(), n);
  check_launch("delta_gates");
}

void delta_gates_backward_cuda(const OpArgs& args) {
  const Sizes n(args);
  if (n.heads == 0) {
    return;
  }
  const int64_t groups = column_groups(n.rows);
  auto* sums = static_cast<float*>(args.workspace);
  const Gradients to = {args.dout[0].ptr<float>(),
                        args.dout[1].ptr<float>(),
                        args.din[0].ptr<float>(),
                        args.accumulate[0],
                        sums,
                        sums + sums_size(n)};
  if (groups > 0) {
    backward_kernel<<<blocks_for(groups * n.heads, kThreads / 32), kThreads, 0, this_stream()>>>(
        args.in[0].ptr<float>(), args.in[1].ptr<float>(), args.in[2].ptr<float>(),
        args.in[3].ptr<int32_t>(), args.out[0].ptr<float>(), args.out[1].ptr<float>(), to, n,
        groups);
    check_launch("delta_gates backward");
  }
  for (int i = 0; i < 2; ++i) {
    if (args.din[1 + i]) {
      sum_kernel<<<static_cast<unsigned>(n.heads), kThreads, 0, this_stream()>>>(
          i == 0 ? to.da_log : to.ddt_bias, groups, args.din[1 + i].ptr<float>(),
          args.accumulate[1 + i]);
      check_launch("delta_gates sums");
    }
  }
}

size_t delta_gates_workspace_cuda(const OpArgs& args, bool backward) {
  return backward ? static_cast<size_t>(2 * sums_size(Sizes(args))) * sizeof(float) : 0;
}

}  // namespace fwpkm
