// Norm, products and z-score as one op, in bf16. The norms' weights are multiplied into those of
// the products, so that both take the same rows; backward has the gradients of queries and values
// side by side, and so one product for xhat and one for the weights. README.md derives it.
#include "ops/common/carver.h"
#include "ops/common/row_teams.cuh"
#include "ops/memory_qv/memory_qv.h"
#include "ops/z_score/z_score.h"

namespace fwpkm {
namespace {

using In = MemoryQvIn;
using Out = MemoryQvOut;
using Saved = MemoryQvSaved;

// Rows that a team joins at once, and blocks of kRowThreads threads on an SM.
constexpr int kJoinedRows = 2, kJoiningBlocks = 3;

struct Sizes {
  int64_t rows, width, outs;

  explicit Sizes(const OpArgs& args)
      : rows(args.in[In::x].rows()), width(args.in[In::x].dim(-1)), outs(args.in[In::q].dim(0)) {}
};

// The call of memory_norm inside this one, whose only output is xhat.
struct NormCall {
  using N = MemoryNormIn;
  View in[N::count], out[MemoryNormOut::count], saved[MemoryNormSaved::count];
  View dout[MemoryNormOut::count], din[N::count];
  bool accumulate[N::count] = {};
  OpArgs args;

  // Of backward, if the call has gradients: `dxhat` is that of xhat.
  NormCall(const OpArgs& whole, const View& dxhat, void* workspace) {
    constexpr int kFrom[] = {In::x, -1, -1, In::gate_norm, In::gate, In::gate_bias};
    for (int i = 0; i < N::count; ++i) {
      if (kFrom[i] >= 0) {
        const auto from = static_cast<size_t>(kFrom[i]);
        in[i] = whole.in[from];
        din[i] = whole.din.empty() ? View() : whole.din[from];
        accumulate[i] = !whole.din.empty() && whole.accumulate[from];
      }
    }
    out[MemoryNormOut::q] = whole.saved[Saved::xhat];
    out[MemoryNormOut::g] = whole.out[Out::g];
    saved[MemoryNormSaved::r] = whole.saved[Saved::r];
    saved[MemoryNormSaved::logits] = whole.saved[Saved::logits];
    dout[MemoryNormOut::q] = dxhat;
    dout[MemoryNormOut::g] = whole.dout.empty() ? View() : whole.dout[Out::g];
    args.in = in;
    args.out = out;
    args.saved = saved;
    args.dout = dout;
    args.din = din;
    args.accumulate = accumulate;
    args.attributes = MemoryNormSettings{whole.attr<MemoryQvSettings>().eps};
    args.workspace = workspace;
  }
  NormCall(const NormCall&) = delete;
};

// Workspace.
struct Parts {
  std::byte* norm;  // memory_norm's
  bf16* grads;      // [rows, 2 outs]: of queries, and of values before their z-score
  bf16* dxhat;      // [rows, width]
  float* dweights;  // [2 outs, width]: of the weights that were multiplied
  float *q_sums, *v_sums;
  size_t bytes;

  Parts(const OpArgs& args, bool backward, void* workspace) {
    const Sizes s(args);
    const NormCall norm_call(args, View(), nullptr);
    Carver carver(workspace);
    norm = carver.take<std::byte>(
        static_cast<int64_t>(memory_norm_workspace_cuda(norm_call.args, backward)));
    const int64_t rows = backward ? s.rows : 0, outs = backward ? s.outs : 0;
    grads = carver.take<bf16>(rows * 2 * outs);
    dxhat = carver.take<bf16>(rows * s.width);
    dweights = carver.take<float>(2 * outs * s.width);
    const auto sums = static_cast<int64_t>(column_sums_bytes(rows, outs) / sizeof(float));
    q_sums = carver.take<float>(sums);
    v_sums = carver.take<float>(sums);
    bytes = carver.used();
  }
};

// Weights [outs, width] and [width], of queries or of values.
struct Weights {
  const bf16* weight;
  const float* norm;

  Weights(const OpArgs& args, int at_weight, int at_norm)
      : weight(args.in[at_weight].ptr<bf16>()), norm(args.in[at_norm].ptr<float>()) {}
};

// W (1 + w), of queries and behind them of values: a thread for each run of eight.
constexpr int kFoldThreads = 256;
__global__ void fold_kernel(Weights q, Weights v, bf16* to, uint32_t runs, uint32_t row_runs) {
  const uint32_t run = blockIdx.x * kFoldThreads + threadIdx.x;
  if (run >= runs) {
    return;
  }
  const Weights from = blockIdx.y == 0 ? q : v;
  const int64_t at = int64_t{run} * 8;
  float weight[8], norm[8];
  load_run(from.weight + at, weight);
  load_run(from.norm + run % row_runs * 8, norm);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    weight[i] *= 1 + norm[i];
  }
  store_run(to + blockIdx.y * int64_t{runs} * 8 + at, weight);
}

// Puts gradients side by side, to [rows, 2 outs]: those of queries as they are, those of values
// through their z-score; and leaves the sums of both over rows. dq or dv is null where none came,
// v where values have no z-score.
__global__ void __launch_bounds__(kRowThreads, kJoiningBlocks)
    join_kernel(TeamPlan plan, const bf16* dq, const bf16* dv, const bf16* v, const float* spreads,
                bf16* to, float* q_partial, float* v_partial) {
  constexpr int kRun = TeamPlan::kRun, kRows = kJoinedRows;
  const uint32_t at = plan.at(), outs = plan.runs * kRun;
  float q_sums[kRun] = {}, v_sums[kRun] = {};
  uint32_t turn = 0;
  for_team_rows<kRows>(plan, [&](uint32_t first) {
    // What is not there is 0. Nothing is looked at before all of it is on its way.
    HeldRun<bf16, kRun> q[kRows] = {}, grads[kRows] = {}, values[kRows] = {};
    float spread[kRows] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const uint32_t row = first + k;
      const int64_t from = int64_t{row} * outs + at;
      if (row < plan.rows && plan.has_run()) {
        if (dv != nullptr) {
          grads[k].load(dv + from);
        }
        if (v != nullptr) {
          values[k].load(v + from);
          spread[k] = spreads[row];
        }
        if (dq != nullptr) {
          q[k].load(dq + from);
        }
      }
    }
    // Of dv, of dv v and of v.
    float sums[kRows * 3] = {};
    if (v != nullptr) {
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        float d[kRun], value[kRun];
        grads[k].get(d);
        values[k].get(value);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          sums[3 * k] += d[i];
          sums[3 * k + 1] += d[i] * value[i];
          sums[3 * k + 2] += value[i];
        }
      }
      team_sums(plan, turn++, sums);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const uint32_t row = first + k;
      if (row >= plan.rows || !plan.has_run()) {
        continue;
      }
      float d[kRun], value[kRun], for_q[kRun];
      q[k].get(for_q);
      grads[k].get(d);
      if (v != nullptr) {
        values[k].get(value);
        const float s = spread[k], divisor = s + static_cast<float>(kZScoreEps);
        const float mean = sums[3 * k] / static_cast<float>(outs);
        const float along = sums[3 * k + 1] - mean * sums[3 * k + 2];
        const float share = s > 0 ? along * divisor / (static_cast<float>(outs - 1) * s) : 0;
        const float r = 1 / divisor;
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          d[i] = ((d[i] - mean) - value[i] * share) * r;
        }
      }
      bf16* both = to + int64_t{row} * (2 * outs) + at;
      store_run(both, for_q);
      store_run(both + outs, d);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        q_sums[i] += for_q[i];
        v_sums[i] += d[i];
      }
    }
  });
  put_team_columns(plan, q_sums, q_partial);
  put_team_columns(plan, v_sums, v_partial);
}

// Where the gradients of Weights go; null where nobody wants them.
struct WeightGrads {
  float *weight, *norm;
  bool add_weight, add_norm;

  WeightGrads(const OpArgs& args, int at_weight, int at_norm)
      : weight(args.din[at_weight].ptr<float>()),
        norm(args.din[at_norm].ptr<float>()),
        add_weight(args.accumulate[at_weight]),
        add_norm(args.accumulate[at_norm]) {}
  bool wanted() const { return weight != nullptr || norm != nullptr; }
};

// From the gradients of W (1 + w) to those of W and of w. A thread has four columns of every
// kUnfoldRows-th row, so that all it reads is on its way at once.
constexpr int kUnfoldThreads = 1024, kUnfoldQuads = 4, kUnfoldRows = kUnfoldThreads / kUnfoldQuads;
constexpr int kUnfoldColumns = 4 * kUnfoldQuads;
__global__ void __launch_bounds__(kUnfoldThreads)
    unfold_kernel(Weights q, Weights v, const float* dweights, WeightGrads dq, WeightGrads dv,
                  uint32_t outs, uint32_t width) {
  constexpr int kWarps = kUnfoldThreads / kWarpLanes;
  __shared__ __align__(16) float parts[kWarps][kUnfoldColumns];
  const uint32_t quad = threadIdx.x % kUnfoldQuads;
  const uint32_t column = blockIdx.x * kUnfoldColumns + quad * 4;
  const Weights from = blockIdx.y == 0 ? q : v;
  const WeightGrads to = blockIdx.y == 0 ? dq : dv;
  float sums[4] = {};
  if (column < width) {
    float gain[4];
    load_run(from.norm + column, gain);
    dweights += int64_t{blockIdx.y} * outs * width;
#pragma unroll 4
    for (uint32_t row = threadIdx.x / kUnfoldQuads; row < outs; row += kUnfoldRows) {
      const int64_t at = int64_t{row} * width + column;
      float d[4], weight[4];
      load_run(dweights + at, d);
      load_run(from.weight + at, weight);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] += d[i] * weight[i];
        d[i] *= 1 + gain[i];
      }
      if (to.weight != nullptr) {
        put_run(to.weight + at, d, to.add_weight);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int step = kWarpLanes / 2; step >= kUnfoldQuads; step /= 2) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
    }
  }
  if (threadIdx.x % kWarpLanes < kUnfoldQuads) {
    store_run(parts[threadIdx.x / kWarpLanes] + quad * 4, sums);
  }
  __syncthreads();
  const uint32_t own = blockIdx.x * kUnfoldColumns + threadIdx.x;
  if (threadIdx.x < kUnfoldColumns && own < width && to.norm != nullptr) {
    float sum = 0;
    for (int i = 0; i < kWarps; ++i) {
      sum += parts[i][threadIdx.x];
    }
    put(to.norm + own, sum, to.add_norm);
  }
}

// Gradients of queries and values in parts.grads, those of biases where they belong.
void join(const OpArgs& args, const Sizes& s, const Parts& parts) {
  const View &dq = args.dout[Out::q], &dv = args.dout[Out::v], &v = args.out[Out::v];
  const View& spread = args.saved[Saved::spread];
  require(in_runs_of(TeamPlan::kRun, {dq, dv, v}) && TeamPlan::fits(s.outs) &&
              (!dq || dq.contiguous()) && (!dv || dv.contiguous()),
          kMemoryQv.name, "gradients of {} rows of {} do not come in runs", s.rows, s.outs);
  const TeamPlan plan(s.rows, s.outs);
  const ColumnParts counted = plan.parts<kJoinedRows, kJoiningBlocks>();
  join_kernel<<<counted.blocks, plan.block_threads(), 0, this_stream()>>>(
      plan, dq.ptr<bf16>(), dv.ptr<bf16>(), spread ? v.ptr<bf16>() : nullptr, spread.ptr<float>(),
      parts.grads, parts.q_sums, parts.v_sums);
  check_launch("memory_qv join");
  add_column_sums(parts.q_sums, counted, args.din[In::q_bias], args.accumulate[In::q_bias]);
  add_column_sums(parts.v_sums, counted, args.din[In::v_bias], args.accumulate[In::v_bias]);
}

}  // namespace

void memory_qv_forward_cuda(const OpArgs& args) {
  const Sizes s(args);
  const Parts parts(args, false, args.workspace);
  const View &xhat = args.saved[Saved::xhat], &weights = args.saved[Saved::weights];
  const auto row_runs = static_cast<uint32_t>(s.width / 8),
             runs = row_runs * static_cast<uint32_t>(s.outs);
  fold_kernel<<<dim3(static_cast<unsigned>(ceil_div(runs, kFoldThreads)), 2), kFoldThreads, 0,
                this_stream()>>>(Weights(args, In::q, In::q_norm), Weights(args, In::v, In::v_norm),
                                 weights.ptr<bf16>(), runs, row_runs);
  check_launch("memory_qv weights");
  memory_norm_forward_cuda(NormCall(args, View(), parts.norm).args);
  const auto project = [&](int64_t first, int bias, const View& to) {
    gpu_gemm({.transpose_b = true,
              .m = s.rows,
              .n = s.outs,
              .k = s.width,
              .lda = s.width,
              .ldb = s.width,
              .ldc = s.outs,
              .bias = args.in[static_cast<size_t>(bias)].ptr<bf16>()},
             xhat.ptr<bf16>(), weights.ptr<bf16>() + first * s.width, to.ptr<bf16>());
  };
  project(0, In::q_bias, args.out[Out::q]);
  project(s.outs, In::v_bias, args.out[Out::v]);
  if (const View& spread = args.saved[Saved::spread]) {
    // In place: a row is read before it is written.
    OpArgs z;
    z.in = z.out = args.out.subspan(Out::v, 1);
    z.saved = {&spread, 1};
    z_score_forward_cuda(z);
  }
}

void memory_qv_backward_cuda(const OpArgs& args) {
  const Sizes s(args);
  const Parts parts(args, true, args.workspace);
  const bf16 *xhat = args.saved[Saved::xhat].ptr<bf16>(),
             *weights = args.saved[Saved::weights].ptr<bf16>();
  join(args, s, parts);
  const WeightGrads dq(args, In::q, In::q_norm), dv(args, In::v, In::v_norm);
  if (dq.wanted() || dv.wanted()) {
    gpu_gemm({.transpose_a = true,
              .m = 2 * s.outs,
              .n = s.width,
              .k = s.rows,
              .lda = 2 * s.outs,
              .ldb = s.width,
              .ldc = s.width},
             parts.grads, xhat, parts.dweights);
    unfold_kernel<<<dim3(static_cast<unsigned>(ceil_div(s.width, kUnfoldColumns)), 2),
                    kUnfoldThreads, 0, this_stream()>>>(
        Weights(args, In::q, In::q_norm), Weights(args, In::v, In::v_norm), parts.dweights, dq, dv,
        static_cast<uint32_t>(s.outs), static_cast<uint32_t>(s.width));
    check_launch("memory_qv weights");
  }
  View dxhat;
  if (args.din[In::x]) {
    gpu_gemm({.m = s.rows,
              .n = s.width,
              .k = 2 * s.outs,
              .lda = 2 * s.outs,
              .ldb = s.width,
              .ldc = s.width},
             parts.grads, weights, parts.dxhat);
    const View& like = args.saved[Saved::xhat];
    dxhat = View("memory_qv.dxhat", parts.dxhat, like.dtype, like.device, like.shape);
  }
  memory_norm_backward_cuda(NormCall(args, dxhat, parts.norm).args);
}

size_t memory_qv_workspace_cuda(const OpArgs& args, bool backward) {
  return Parts(args, backward, nullptr).bytes;
}

}  // namespace fwpkm
