// Forward has a warp, or part of one, for each row; backward has teams of threads that keep the
// weights and the sums of their gradients. Both read a row once.
#include "ops/common/carver.h"
#include "ops/common/row_teams.cuh"
#include "ops/memory_norm/memory_norm.h"

namespace fwpkm {
namespace {

constexpr int kGateThreads = 256;
// Blocks of kRowThreads threads on an SM, of backward's kernels of teams.
constexpr int team_blocks(bool plain) {
  return plain ? 3 : TeamPlan::kBlocks;
}
constexpr int64_t kMostSlots = 132 * team_blocks(true) * kRowThreads;  // of backward's grid

// Workspace.
struct Parts {
  float* gate;    // [D]: the mean of the gate's rows; behind it the mean of its biases
  float* scaled;  // [D]: times 1 + w_g
  float* biases;  // sums of dl, of each slot of the grid
  float* sums;    // of queries' norm, values' norm and the gate, one after the other
  size_t each;    // floats of one of them
  size_t bytes;

  Parts(const OpArgs& args, bool backward, void* workspace) {
    const View& x = args.in[MemoryNormIn::x];
    Carver carver(workspace);
    gate = carver.take<float>(x.dim(-1) + 1);
    scaled = carver.take<float>(x.dim(-1));
    biases = carver.take<float>(backward ? kMostSlots : 0);
    each = backward ? column_sums_bytes(x.rows(), x.dim(-1)) / sizeof(float) : 0;
    sums = carver.take<float>(static_cast<int64_t>(3 * each));
    bytes = carver.used();
  }
};

// The mean of the gate's rows: a thread for each column, and one for the biases.
template <typename T>
__global__ void gate_kernel(const T* gate, const T* bias, const float* norm, int gates, int width,
                            float* mean, float* scaled) {
  const int i = blockIdx.x * kGateThreads + threadIdx.x;
  if (i > width) {
    return;
  }
  double sum = 0;
  for (int j = 0; j < gates; ++j) {
    sum += to_float(i < width ? gate[j * width + i] : bias[j]);
  }
  mean[i] = static_cast<float>(sum / gates);
  if (i < width) {
    scaled[i] = static_cast<float>(sum / gates * (1.0 + norm[i]));
  }
}

template <typename T>
void find_gate(const OpArgs& args, const Parts& parts) {
  const View& gate = args.in[MemoryNormIn::gate];
  const auto width = static_cast<int>(gate.dim(1));
  gate_kernel<<<static_cast<unsigned>(ceil_div(width + 1, kGateThreads)), kGateThreads, 0,
                this_stream()>>>(gate.ptr<T>(), args.in[MemoryNormIn::bias].ptr<T>(),
                                 args.in[MemoryNormIn::gate_norm].ptr<float>(),
                                 static_cast<int>(gate.dim(0)), width, parts.gate, parts.scaled);
  check_launch("memory_norm gate");
}

// A run of a norm's weights; a norm without weights has zeros.
template <int kCount>
__device__ void load_weights(const float* w, uint32_t at, float (&weight)[kCount]) {
  if (w != nullptr) {
    load_run(w + at, weight);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    weight[i] = 0;
  }
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

// Null: no gate, or nobody wants what is saved.
struct Gate {
  const float *scaled, *bias;
  float *g, *logits;
};

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w_q, const float* w_v,
                   Gate gate, T* q, T* v, float* saved, uint32_t width, double eps) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]);
    Wide<T> squares = 0, dot = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += Wide<T>(value[i]) * value[i];
      }
      if (gate.scaled != nullptr) {
        float weight[kCount];
        load_run(gate.scaled + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          dot += Wide<T>(value[i]) * weight[i];
        }
      }
    });
    const Wide<T> r =
        wide_inverse_root<T>(lanes_sum(plan, squares) / Wide<T>(width) + Wide<T>(eps));
    const Wide<T> logit = lanes_sum(plan, dot) * r;
    if (!here) {
      return;
    }
    const int64_t to = int64_t{row} * width;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], weight[kCount], y[kCount];
      values.get(j, at, value);
      const auto store = [&](const float* w, T* out) {
        load_weights(w, at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          y[i] = static_cast<float>(value[i] * r * (1 + Wide<T>(weight[i])));
        }
        store_run(out + to + at, y);
      };
      store(w_q, q);
      if (v != nullptr) {
        store(w_v, v);
      }
    });
    if (plan.lane() == 0) {
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
      if (gate.scaled != nullptr) {
        const float whole = static_cast<float>(logit + *gate.bias);
        gate.g[row] = sigmoid(whole);
        if (gate.logits != nullptr) {
          gate.logits[row] = whole;
        }
      }
    }
  });
}

// Gradients of outputs; null where one was not used.
template <typename T>
struct OutGrads {
  const T *dq, *dv;
  FastRows dq_rows, dv_rows;
  const float *dg, *logits, *scaled;

  // The gradient of a row's logit.
  __device__ float dlogit(uint32_t row) const {
    return dg == nullptr ? 0.0f : times_slope(dg[row], logits[row]);
  }
  static __device__ float times_slope(float grad, float logit) {
    const float small = expf(-fabsf(logit));  // sigmoid's slope is even
    return grad * (small / ((1 + small) * (1 + small)));
  }
};

// How a kernel of teams takes rows.
template <int kRows, bool kPlain>
struct Teams {};

// Where backward leaves its sums over rows: of queries' norm, values' norm and the gate, null where
// nobody wants them, and of dl.
struct Sums {
  float *q, *v, *g, *biases;
};

// Three weights and three sums for each feature are twice as much as what a row brings along: they
// stay in registers. Several rows at once, so that a team waits for all of them together. kPlain:
// there is one output without weights, and what rows bring along is unpacked twice instead of kept.
template <typename T, int kRows, bool kPlain>
__global__ void __launch_bounds__(kRowThreads, team_blocks(kPlain))
    team_backward_kernel(TeamPlan plan, const T* x, FastRows x_rows, const float* w_q,
                         const float* w_v, OutGrads<T> grads, const float* saved, T* dx,
                         FastRows dx_rows, Sums sums, float width, bool accumulate) {
  constexpr int kRun = TeamPlan::kRun;
  using Run = HeldRun<T, kRun>;
  const uint32_t at = plan.at();
  float q_gain[kRun] = {}, v_gain[kRun] = {}, g_gain[kRun] = {};
  if (plan.has_run() && grads.dg != nullptr) {
    load_run(grads.scaled + at, g_gain);
  }
  if constexpr (!kPlain) {
    load_gain(plan, w_q, 1, q_gain);
    load_gain(plan, w_v, 1, v_gain);
  }
  float q_sums[kRun] = {}, v_sums[kRun] = {}, g_sums[kRun] = {}, bias_sum = 0;
  uint32_t turn = 0;
  for_team_rows<kRows>(plan, [&](uint32_t first) {
    // What is not there is 0. Nothing is looked at before all of it is on its way.
    Run values[kRows] = {}, dq[kRows] = {}, dv[kRows] = {}, old[kRows] = {};
    float r[kRows] = {}, dg[kRows] = {}, logits[kRows] = {}, mean[kRows] = {}, dl[kRows];
    float full[kPlain ? 1 : kRows][kRun];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const uint32_t row = first + k;
      if (row < plan.rows && plan.has_run()) {
        values[k].load(x + x_rows[row] + at);
        if (grads.dq != nullptr) {
          dq[k].load(grads.dq + grads.dq_rows[row] + at);
        }
        if (!kPlain && grads.dv != nullptr) {
          dv[k].load(grads.dv + grads.dv_rows[row] + at);
        }
        if (accumulate) {
          old[k].load(dx + dx_rows[row] + at);
        }
        r[k] = saved[row];
        if (grads.dg != nullptr) {
          dg[k] = grads.dg[row];
          logits[k] = grads.logits[row];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      float value[kRun], d[kRun], other[kRun];
      dl[k] = grads.times_slope(dg[k], logits[k]);
      values[k].get(value);
      dq[k].get(d);
      dv[k].get(other);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        value[i] *= r[k];
        if constexpr (kPlain) {
          mean[k] += (d[i] + dl[k] * g_gain[i]) * value[i];
        } else {
          full[k][i] = d[i] * q_gain[i] + other[i] * v_gain[i] + dl[k] * g_gain[i];
          mean[k] += full[k][i] * value[i];
          q_sums[i] += d[i] * value[i];
          v_sums[i] += other[i] * value[i];
        }
        g_sums[i] += dl[k] * value[i];
      }
      bias_sum += dl[k];
    }
    team_sums(plan, turn++, mean);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      mean[k] /= width;
      if (first + k >= plan.rows || !plan.has_run() || dx == nullptr) {
        continue;
      }
      float value[kRun], d[kRun], whole[kRun];
      values[k].get(value);
      old[k].get(d);
      dq[k].get(whole);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        whole[i] = kPlain ? whole[i] + dl[k] * g_gain[i] : full[kPlain ? 0 : k][i];
        d[i] += through_norm(whole[i], value[i] * r[k], mean[k], r[k]);
      }
      store_run(dx + dx_rows[first + k] + at, d);
    }
  });
  if (plan.run() == 0) {
    sums.biases[blockIdx.x * plan.teams + plan.team()] = bias_sum;
  }
  if constexpr (!kPlain) {
    put_team_columns(plan, q_sums, sums.q);
    put_team_columns(plan, v_sums, sums.v);
  }
  put_team_columns(plan, g_sums, sums.g);
}

// The same for rows that are too wide, or not made of runs; their sums are in global memory.
template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w_q, const float* w_v,
                    OutGrads<T> grads, const float* saved, T* dx, FastRows dx_rows, Sums sums,
                    float width, bool accumulate) {
  ColumnSums<kCount, 0> q_sums(plan, sums.q), v_sums(plan, sums.v), g_sums(plan, sums.g);
  float bias_sum = 0;
  for_rows(plan, [&](uint32_t row, bool here) {
    const float r = saved[row], dl = grads.dlogit(row);
    const T* from = x + x_rows[row];
    // A gradient of one of the outputs; 0 where it was not used.
    const auto load = [&](const T* grad, const FastRows& rows, uint32_t at, float(&d)[kCount]) {
      if (grad != nullptr) {
        load_run(grad + rows[row] + at, d);
        return;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d[i] = 0;
      }
    };
    // The gradient of xhat.
    const auto full = [&](uint32_t at, float(&sum)[kCount]) {
      float d[kCount], weight[kCount];
      load(grads.dq, grads.dq_rows, at, d);
      load_weights(w_q, at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] = d[i] * (1 + weight[i]);
      }
      load(grads.dv, grads.dv_rows, at, d);
      load_weights(w_v, at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] += d[i] * (1 + weight[i]);
      }
      if (grads.dg != nullptr) {
        load_run(grads.scaled + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sum[i] += dl * weight[i];
        }
      }
    };
    float mean = 0;
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount], sum[kCount];
      load_run(from + at, value);
      full(at, sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mean += sum[i] * value[i] * r;
      }
    });
    mean = lanes_sum(plan, mean) / width;
    if (!here) {
      return;
    }
    bias_sum += dl;
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount], sum[kCount], d[kCount], other[kCount], gate[kCount];
      load_run(from + at, value);
      full(at, sum);
      load(grads.dq, grads.dq_rows, at, d);
      load(grads.dv, grads.dv_rows, at, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float xhat = value[i] * r;
        sum[i] = through_norm(sum[i], xhat, mean, r);
        d[i] *= xhat;
        other[i] *= xhat;
        gate[i] = dl * xhat;
      }
      q_sums.add(0, at, d);
      v_sums.add(0, at, other);
      g_sums.add(0, at, gate);
      if (dx != nullptr) {
        put_run(dx + dx_rows[row] + at, sum, accumulate);
      }
    });
  });
  if (plan.lane() == 0) {
    sums.biases[plan.slot()] = bias_sum;
  }
}

// The gate's own gradients; null where nobody wants them.
struct GateGrads {
  float *norm, *gate, *bias;
  bool add_norm, add_gate, add_bias;
};

// From S = sum of dl xhat to the gate's weights: a warp's lane for each column, rows of `partial`
// dealt out to warps. The last block has the biases.
template <int kWarps>
__global__ void gate_sums_kernel(const float* partial, int64_t parts, int width, const float* mean,
                                 const float* norm, int gates, GateGrads to, const float* bias_sums,
                                 int64_t slots) {
  __shared__ float sums[kWarps][kWarpLanes];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const bool biases = blockIdx.x == gridDim.x - 1;
  const int column = blockIdx.x * kWarpLanes + lane;
  float sum = 0;
  if (biases) {
    for (int64_t slot = threadIdx.x; slot < slots; slot += kWarps * kWarpLanes) {
      sum += bias_sums[slot];
    }
  } else if (column < width && partial != nullptr) {
#pragma unroll 8
    for (int64_t part = warp; part < parts; part += kWarps) {
      sum += partial[part * width + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) {
    return;
  }
  float all = 0;
  for (int i = 0; i < kWarps; ++i) {
    all += sums[i][lane];
  }
  if (biases) {
    all = warp_sum(all) / static_cast<float>(gates);
    for (int j = lane; j < gates && to.bias != nullptr; j += kWarpLanes) {
      put(to.bias + j, all, to.add_bias);
    }
    return;
  }
  if (column >= width) {
    return;
  }
  if (to.norm != nullptr) {
    put(to.norm + column, all * mean[column], to.add_norm);
  }
  for (int j = 0; j < gates && to.gate != nullptr; ++j) {
    put(to.gate + int64_t{j} * width + column, all * (1 + norm[column]) / static_cast<float>(gates),
        to.add_gate);
  }
}

// From what backward's blocks left to the gradients of weights; `slots` have a sum of dl each.
void add_sums(const OpArgs& args, const Parts& parts, const Sums& sums, const ColumnParts& counted,
              int64_t slots) {
  using In = MemoryNormIn;
  const auto add = [&](int in, const float* partial) {
    if (partial != nullptr) {
      add_column_sums(partial, counted, args.din[in], args.accumulate[in]);
    } else if (args.din[in] && !args.accumulate[in]) {
      fill_zero(args.din[in]);
    }
  };
  add(In::q_norm, sums.q);
  add(In::v_norm, sums.v);
  const View& gate = args.in[In::gate];
  if (!gate) {
    return;
  }
  constexpr int kWarps = 32;
  const GateGrads to = {args.din[In::gate_norm].ptr<float>(),
                        args.din[In::gate].ptr<float>(),
                        args.din[In::bias].ptr<float>(),
                        args.accumulate[In::gate_norm],
                        args.accumulate[In::gate],
                        args.accumulate[In::bias]};
  gate_sums_kernel<kWarps><<<static_cast<unsigned>(ceil_div(gate.dim(1), kWarpLanes) + 1),
                             kWarps * kWarpLanes, 0, this_stream()>>>(
      sums.g, counted.count, static_cast<int>(gate.dim(1)), parts.gate,
      args.in[In::gate_norm].ptr<float>(), static_cast<int>(gate.dim(0)), to, parts.biases, slots);
  check_launch("memory_norm gate");
}

template <typename T>
void forward(const OpArgs& args) {
  using In = MemoryNormIn;
  const View &x = args.in[In::x], &q = args.out[MemoryNormOut::q], &v = args.out[MemoryNormOut::v];
  const int64_t width = x.dim(-1);
  if (x.size() == 0) {
    return;
  }
  const Parts parts(args, false, args.workspace);
  Gate gate{};
  if (args.in[In::gate]) {
    find_gate<T>(args, parts);
    gate = {parts.scaled, parts.gate + width, args.out[MemoryNormOut::g].ptr<float>(),
            args.saved[MemoryNormSaved::logits].ptr<float>()};
  }
  const bool in_runs = in_runs_of(8, {x, args.in[In::q_norm], args.in[In::v_norm], q, v});
  with_runs<3>(width, in_runs, [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(x.rows(), width / kCount);
    forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
        plan, x.ptr<T>(), FastRows(x), args.in[In::q_norm].ptr<float>(),
        args.in[In::v_norm].ptr<float>(), gate, q.ptr<T>(), v.ptr<T>(),
        args.saved[MemoryNormSaved::r].ptr<float>(), static_cast<uint32_t>(width),
        args.attr<MemoryNormSettings>().eps);
  });
  check_launch("memory_norm");
}

template <typename T>
void backward(const OpArgs& args) {
  using In = MemoryNormIn;
  const View &x = args.in[In::x], &dx = args.din[In::x];
  const View &dq = args.dout[MemoryNormOut::q], &dv = args.dout[MemoryNormOut::v];
  const int64_t width = x.dim(-1);
  const Parts parts(args, true, args.workspace);
  OutGrads<T> grads{dq.ptr<T>(), dv.ptr<T>(), FastRows(dq), FastRows(dv),
                    nullptr,     nullptr,     nullptr};
  if (args.in[In::gate]) {
    find_gate<T>(args, parts);
    grads.dg = args.dout[MemoryNormOut::g].ptr<float>();
    grads.logits = args.saved[MemoryNormSaved::logits].ptr<float>();
    grads.scaled = parts.scaled;
  }
  const auto sums_of = [&](int i, bool wanted) {
    return wanted ? parts.sums + static_cast<size_t>(i) * parts.each : nullptr;
  };
  const Sums sums = {sums_of(0, args.din[In::q_norm] && dq), sums_of(1, args.din[In::v_norm] && dv),
                     sums_of(2, grads.dg != nullptr), parts.biases};
  const auto launch = [&](auto kernel, const auto& plan, unsigned blocks, unsigned threads) {
    if (blocks > 0) {
      kernel<<<blocks, threads, 0, this_stream()>>>(
          plan, x.ptr<T>(), FastRows(x), args.in[In::q_norm].ptr<float>(),
          args.in[In::v_norm].ptr<float>(), grads, args.saved[MemoryNormSaved::r].ptr<float>(),
          dx.ptr<T>(), FastRows(dx), sums, static_cast<float>(width), dx && args.accumulate[In::x]);
      check_launch("memory_norm backward");
    }
  };
  const bool in_runs = in_runs_of(8, {x, args.in[In::q_norm], args.in[In::v_norm], dq, dv, dx});
  const auto launch_teams = [&]<int kRows, bool kPlain>(Teams<kRows, kPlain>) {
    const TeamPlan plan(x.rows(), width);
    const ColumnParts counted = plan.parts<kRows, team_blocks(kPlain)>();
    launch(&team_backward_kernel<T, kRows, kPlain>, plan, counted.blocks, plan.block_threads());
    add_sums(args, parts, sums, counted, counted.blocks * plan.teams);
  };
  if (in_runs && TeamPlan::fits(width) && args.in[In::q_norm]) {
    constexpr int kRows = sizeof(T) == 2 ? 3 : 1;
    launch_teams(Teams<kRows, false>());
    return;
  }
  if constexpr (sizeof(T) == 2) {
    if (in_runs && TeamPlan::fits(width)) {
      launch_teams(Teams<2, true>());
      return;
    }
  }
  with_runs<0>(width, in_runs, [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(x.rows(), width / kCount);
    const auto counted = ColumnParts::of<T, 0>(plan);
    launch(&backward_kernel<T, kCount>, plan, counted.blocks, kRowThreads);
    add_sums(args, parts, sums, counted, counted.count);
  });
}

}  // namespace

void memory_norm_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void memory_norm_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t memory_norm_workspace_cuda(const OpArgs& args, bool backward) {
  return Parts(args, backward, nullptr).bytes;
}

}  // namespace fwpkm
