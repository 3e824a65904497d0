// Products by cuBLAS. In float, bias and residual go into the output before it, which the product
// is added to; in bf16 the product's epilogue adds them.
#include "ops/common/row_teams.cuh"
#include "ops/linear/linear.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__global__ void start_kernel(const float* bias, const float* residual, float* y, int64_t size,
                             int64_t width) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = (bias != nullptr ? bias[i % width] : 0) + (residual != nullptr ? residual[i] : 0);
  }
}

template <typename T>
__global__ void add_kernel(const T* from, T* to, int64_t size, bool accumulate) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    put(to + i, to_float(from[i]), accumulate);
  }
}

// Rows that one partial sum of the bias's gradient covers: few sums for many rows.
constexpr int64_t kMostGroups = 512;
int64_t bias_rows(int64_t rows) {
  return std::max<int64_t>(kColumnRows, ceil_div(rows, kMostGroups));
}

int64_t bias_groups(int64_t rows) {
  return std::max<int64_t>(1, ceil_div(rows, bias_rows(rows)));
}

template <typename T>
__global__ void bias_kernel(const T* dy, float* partial, int64_t rows, int64_t width,
                            int64_t group) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (column >= width) {
    return;
  }
  const int64_t begin = blockIdx.y * group, end = min(rows, begin + group);
  float sum = 0;
#pragma unroll 4
  for (int64_t row = begin; row < end; ++row) {
    sum += to_float(dy[row * width + column]);
  }
  partial[blockIdx.y * width + column] = sum;
}

// The same for rows that can be taken in runs: the sums of each block. A thread has kTeamRows of
// its rows on their way at once.
constexpr int kTeamRows = 8;
template <typename T>
__global__ void __launch_bounds__(kRowThreads, TeamPlan::kBlocks)
    team_bias_kernel(TeamPlan plan, const T* dy, float* partial) {
  constexpr int kRun = TeamPlan::kRun;
  float sums[kRun] = {};
  dy += plan.at();
  for_team_rows<kTeamRows>(plan, [&](uint32_t first) {
    if (!plan.has_run()) {
      return;
    }
    HeldRun<T, kRun> held[kTeamRows];
#pragma unroll
    for (int k = 0; k < kTeamRows; ++k) {
      held[k].load(dy + int64_t{min(first + k, plan.rows - 1)} * plan.runs * kRun);
    }
#pragma unroll
    for (int k = 0; k < kTeamRows; ++k) {
      float values[kRun];
      held[k].get(values);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        sums[i] += first + k < plan.rows ? values[i] : 0;
      }
    }
  });
  put_team_columns<false>(plan, sums, partial);
}

// The gradient of the bias.
template <typename T>
void sum_columns(const View& dy, float* partial, const View& to, bool accumulate) {
  const int64_t rows = dy.rows(), width = dy.dim(-1);
  if (rows > 0 && TeamPlan::fits(width) && in_runs_of(TeamPlan::kRun, {dy})) {
    TeamPlan plan(rows, width);
    plan.fill_block();
    const ColumnParts parts = plan.parts<kTeamRows>();
    team_bias_kernel<<<parts.blocks, plan.block_threads(), 0, this_stream()>>>(plan, dy.ptr<T>(),
                                                                               partial);
    check_launch("linear bias");
    add_column_sums(partial, parts, to, accumulate);
    return;
  }
  const dim3 blocks(static_cast<unsigned>(ceil_div(width, 128)),
                    static_cast<unsigned>(bias_groups(rows)));
  bias_kernel<<<blocks, 128, 0, this_stream()>>>(dy.ptr<T>(), partial, rows, width,
                                                 bias_rows(rows));
  check_launch("linear bias");
  add_column_sums(partial, bias_groups(rows), to, accumulate);
}

template <typename T>
void forward(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  T* y = args.out[0].ptr<T>();
  GpuGemm product = {
      .transpose_b = true, .m = rows, .n = outs, .k = ins, .lda = ins, .ldb = ins, .ldc = outs};
  if constexpr (sizeof(T) == 2) {
    product.beta = args.in[3] ? 1.0f : 0.0f;
    product.add = args.in[3].data;
    product.bias = args.in[2].template ptr<T>();
  } else if (args.in[2] || args.in[3]) {
    product.beta = 1;
    if (rows > 0) {
      start_kernel<<<blocks_for(rows * outs, kThreads), kThreads, 0, this_stream()>>>(
          args.in[2].ptr<float>(), args.in[3].ptr<float>(), y, rows * outs, outs);
      check_launch("linear");
    }
  }
  gpu_gemm(product, args.in[0].ptr<T>(), args.in[1].ptr<T>(), y);
}

template <typename T>
void backward(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  const T* dy = args.dout[0].ptr<T>();
  if (args.din[0]) {
    gpu_gemm({.m = rows,
              .n = ins,
              .k = outs,
              .lda = outs,
              .ldb = ins,
              .ldc = ins,
              .beta = args.accumulate[0] ? 1.0f : 0.0f},
             dy, args.in[1].ptr<T>(), args.din[0].ptr<T>());
  }
  if (args.din[1]) {
    gpu_gemm({.transpose_a = true,
              .m = outs,
              .n = ins,
              .k = rows,
              .lda = outs,
              .ldb = ins,
              .ldc = ins,
              .beta = args.accumulate[1] ? 1.0f : 0.0f},
             dy, args.in[0].ptr<T>(), args.din[1].ptr<float>());
  }
  if (args.din[2]) {
    sum_columns<T>(args.dout[0].reshape({rows, outs}), static_cast<float*>(args.workspace),
                   args.din[2], args.accumulate[2]);
  }
  if (args.din[3] && args.din[3].data != args.dout[0].data && rows > 0) {
    add_kernel<<<blocks_for(rows * outs, kThreads), kThreads, 0, this_stream()>>>(
        dy, args.din[3].ptr<T>(), rows * outs, args.accumulate[3]);
    check_launch("linear residual");
  }
}

}  // namespace

void linear_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void linear_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t linear_workspace_cuda(const OpArgs& args, bool backward) {
  // Either kernel leaves at most kMostGroups sums, and no more than there are rows.
  const int64_t sums = std::clamp<int64_t>(args.in[0].rows(), 1, kMostGroups);
  return backward && args.din[2] ? static_cast<size_t>(sums * args.in[1].dim(0)) * sizeof(float)
                                 : 0;
}

}  // namespace fwpkm
