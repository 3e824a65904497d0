// A warp, or part of one, for each row, which it reads once; the gradients of all weights are
// summed in the same pass.
#include "ops/common/carver.h"
#include "ops/common/rows.cuh"
#include "ops/memory_norm/memory_norm.h"

namespace fwpkm {
namespace {

constexpr int kGateThreads = 256;
constexpr int kBlocks = 2;  // of backward on an SM
constexpr int64_t kMostBlocks = 132 * kBlocks;

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
    biases = carver.take<float>(backward ? kMostBlocks * kRowThreads : 0);
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
        load_run(w + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          y[i] = static_cast<float>(value[i] * r * (1 + Wide<T>(weight[i])));
        }
        store_run(out + to + at, y);
      };
      store(w_q, q);
      store(w_v, v);
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
    return dg == nullptr ? 0.0f : dg[row] * (sigmoid(logits[row]) * sigmoid(-logits[row]));
  }
};

// Sums over rows as ColumnSums has them, three at a time. That is too much for registers: each warp
// adds in its own part of shared memory, where the halves of a run lie in two planes, so that the
// lanes' words follow each other.
template <int kCount, int kHeld>
class ThreeSums {
 public:
  static constexpr int kSets = 3;
  static constexpr int kPlanes = kCount / 4;  // of four columns
  static size_t shared_bytes(const RowPlan& plan) {
    return static_cast<size_t>(kSets * (kRowThreads >> plan.log_lanes)) * plan.runs * kCount *
           sizeof(float);
  }

  __device__ ThreeSums(const RowPlan& plan, float* memory) : runs_(plan.runs) {
    const uint32_t slots = kRowThreads >> plan.log_lanes;
    all_ = reinterpret_cast<float4*>(memory);
    own_ = all_ + (threadIdx.x >> plan.log_lanes) * (kSets * kPlanes) * runs_;
    for (uint32_t i = threadIdx.x; i < slots * kSets * kPlanes * runs_; i += kRowThreads) {
      all_[i] = {0, 0, 0, 0};
    }
    __syncthreads();
  }
  // Adds to the run that begins at feature `at`.
  __device__ void add(int set, uint32_t at, const float (&values)[kCount]) {
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      float4& to = own_[(set * kPlanes + plane) * runs_ + at / kCount];
      const float4 old = to;
      to = {old.x + values[4 * plane], old.y + values[4 * plane + 1], old.z + values[4 * plane + 2],
            old.w + values[4 * plane + 3]};
    }
  }
  // At the end, in all threads of the block: its sums of a set, if somebody wants them.
  __device__ void finish(const RowPlan& plan, int set, float* partial) const {
    __syncthreads();
    const uint32_t slots = kRowThreads >> plan.log_lanes, width = runs_ * kCount;
    for (uint32_t column = threadIdx.x; column < width && partial != nullptr;
         column += kRowThreads) {
      const uint32_t plane = column % kCount / 4, run = column / kCount;
      float sum = 0;
      for (uint32_t slot = 0; slot < slots; ++slot) {
        const float4* four = all_ + ((slot * kSets + set) * kPlanes + plane) * runs_ + run;
        sum += reinterpret_cast<const float*>(four)[column % 4];
      }
      partial[int64_t{blockIdx.x} * width + column] = sum;
    }
  }

 private:
  uint32_t runs_;
  float4 *all_, *own_;
};
// Rows that are not held have their sums in global memory.
template <int kCount>
class ThreeSums<kCount, 0> {
 public:
  static size_t shared_bytes(const RowPlan&) { return 0; }
  __device__ ThreeSums(const RowPlan& plan, float* q, float* v, float* g)
      : sums_{{plan, q}, {plan, v}, {plan, g}} {}
  __device__ void add(int set, uint32_t at, float (&values)[kCount]) {
    sums_[set].add(0, at, values);
  }

 private:
  ColumnSums<kCount, 0> sums_[3];
};

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads, kBlocks)
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w_q, const float* w_v,
                    OutGrads<T> grads, const float* saved, T* dx, FastRows dx_rows, float* q_sums,
                    float* v_sums, float* g_sums, float* bias_sums, float width, bool accumulate) {
  extern __shared__ __align__(16) float memory[];
  auto sums = [&] {
    if constexpr (kHeld > 0) {
      return ThreeSums<kCount, kHeld>(plan, memory);
    } else {
      return ThreeSums<kCount, 0>(plan, q_sums, v_sums, g_sums);
    }
  }();
  float bias_sum = 0;
  const bool has_q = grads.dq != nullptr, has_v = grads.dv != nullptr, has_g = grads.dg != nullptr;
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]);
    // A gradient that is missing is not looked at: any row stands in.
    const LaneRuns<T, kCount, kHeld> dq(plan,
                                        has_q ? grads.dq + grads.dq_rows[row] : x + x_rows[row]);
    const LaneRuns<T, kCount, kHeld> dv(plan,
                                        has_v ? grads.dv + grads.dv_rows[row] : x + x_rows[row]);
    const float r = saved[row], dl = grads.dlogit(row);
    // The gradient of xhat.
    const auto full = [&](int j, uint32_t at, float(&sum)[kCount]) {
      float d[kCount], weight[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] = 0;
      }
      if (has_q) {
        dq.get(j, at, d);
        load_run(w_q + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sum[i] = d[i] * (1 + weight[i]);
        }
      }
      if (has_v) {
        dv.get(j, at, d);
        load_run(w_v + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sum[i] += d[i] * (1 + weight[i]);
        }
      }
      if (has_g) {
        load_run(grads.scaled + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sum[i] += dl * weight[i];
        }
      }
    };
    float mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], sum[kCount];
      values.get(j, at, value);
      full(j, at, sum);
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
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], sum[kCount], d[kCount];
      values.get(j, at, value);
      full(j, at, sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] *= r;
        // Rounded step by step as the plain code does: in short rows nearly everything cancels.
        sum[i] = __fmul_rn(r, sum[i] - __fmul_rn(value[i], mean));
      }
      const auto add = [&](bool has, const LaneRuns<T, kCount, kHeld>& from, int set) {
        if (has) {
          from.get(j, at, d);
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            d[i] *= value[i];
          }
          sums.add(set, at, d);
        }
      };
      add(has_q, dq, 0);
      add(has_v, dv, 1);
      if (has_g) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          d[i] = dl * value[i];
        }
        sums.add(2, at, d);
      }
      if (dx != nullptr) {
        put_run(dx + dx_rows[row] + at, sum, accumulate);
      }
    });
  });
  if (plan.lane() == 0) {
    bias_sums[plan.slot()] = bias_sum;
  }
  if constexpr (kHeld > 0) {
    sums.finish(plan, 0, q_sums);
    sums.finish(plan, 1, v_sums);
    sums.finish(plan, 2, g_sums);
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
#pragma unroll 4
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
  const bool gated = static_cast<bool>(args.in[In::gate]);
  OutGrads<T> grads{dq.ptr<T>(), dv.ptr<T>(), FastRows(dq), FastRows(dv),
                    nullptr,     nullptr,     nullptr};
  if (gated) {
    find_gate<T>(args, parts);
    grads.dg = args.dout[MemoryNormOut::g].ptr<float>();
    grads.logits = args.saved[MemoryNormSaved::logits].ptr<float>();
    grads.scaled = parts.scaled;
  }
  const auto sums_of = [&](int i, bool wanted) {
    return wanted ? parts.sums + static_cast<size_t>(i) * parts.each : nullptr;
  };
  float* q_sums = sums_of(0, args.din[In::q_norm] && dq);
  float* v_sums = sums_of(1, args.din[In::v_norm] && dv);
  float* g_sums = sums_of(2, grads.dg != nullptr);
  const bool in_runs = in_runs_of(8, {x, args.in[In::q_norm], args.in[In::v_norm], dq, dv, dx});
  with_runs<3>(width, in_runs, [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(x.rows(), width / kCount);
    auto counted = ColumnParts::of<T, kHeld>(plan);
    if (kHeld > 0) {
      counted.count = counted.blocks = plan.blocks(kMostBlocks);
    }
    if (x.size() > 0) {
      const size_t shared = ThreeSums<kCount, kHeld>::shared_bytes(plan);
      check_cuda(cudaFuncSetAttribute(&backward_kernel<T, kCount, kHeld>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)),
                 "memory_norm backward");
      backward_kernel<T, kCount, kHeld><<<counted.blocks, kRowThreads, shared, this_stream()>>>(
          plan, x.ptr<T>(), FastRows(x), args.in[In::q_norm].ptr<float>(),
          args.in[In::v_norm].ptr<float>(), grads, args.saved[MemoryNormSaved::r].ptr<float>(),
          dx.ptr<T>(), FastRows(dx), q_sums, v_sums, g_sums, parts.biases,
          static_cast<float>(width), args.accumulate[In::x]);
      check_launch("memory_norm backward");
    }
    const auto add = [&](int in, const float* sums) {
      if (sums != nullptr) {
        add_column_sums(sums, counted, args.din[in], args.accumulate[in]);
      } else if (args.din[in] && !args.accumulate[in]) {
        fill_zero(args.din[in]);
      }
    };
    add(In::q_norm, q_sums);
    add(In::v_norm, v_sums);
    if (gated) {
      constexpr int kWarps = 32;
      const GateGrads to = {args.din[In::gate_norm].ptr<float>(),
                            args.din[In::gate].ptr<float>(),
                            args.din[In::bias].ptr<float>(),
                            args.accumulate[In::gate_norm],
                            args.accumulate[In::gate],
                            args.accumulate[In::bias]};
      gate_sums_kernel<kWarps><<<static_cast<unsigned>(ceil_div(width, kWarpLanes) + 1),
                                 kWarps * kWarpLanes, 0, this_stream()>>>(
          g_sums, counted.count, static_cast<int>(width), parts.gate,
          args.in[In::gate_norm].ptr<float>(), static_cast<int>(args.in[In::gate].dim(0)), to,
          parts.biases, counted.blocks * plan.block_slots());
      check_launch("memory_norm gate");
    }
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
