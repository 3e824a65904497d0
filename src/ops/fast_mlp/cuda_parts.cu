// What forward and backward have in common: everything between the products.
#include <type_traits>

#include "ops/fast_mlp/cuda.cuh"

namespace fwpkm {
namespace {

constexpr int kThreads = FastGrid::kThreads;

template <typename T, typename Real>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(FastMlpWindow window, FastGrid grid, const T* all, int64_t width, Real* to) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t at) {
    float values[kRun];
    load_run(all + window.row(token) * width + at, values);
    store_run(to + token * width + at, values);
  });
}

template <typename Real>
__global__ void __launch_bounds__(kThreads)
    hidden_kernel(FastMlpWindow window, FastGrid grid, const float* biases, int64_t hidden,
                  bool slopes, float* up_gate, Real* a) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t at) {
    float *up = up_gate + token * 2 * hidden + at, *gate = up + hidden;
    const float* bias = biases + window.bias_of(token) + at;
    float u[kRun], g[kRun], bu[kRun], bg[kRun], product[kRun];
    load_run(up, u);
    load_run(gate, g);
    load_run(bias, bu);
    load_run(bias + hidden, bg);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const FastSilu f = fast_silu<Real>(g[i] + bg[i]);
      const float x = u[i] + bu[i];
      product[i] = x * f.value;
      u[i] = f.value;
      g[i] = x * f.slope;
    }
    store_run(a + token * hidden + at, product);
    if (slopes) {
      store_run(up, u);
      store_run(gate, g);
    }
  });
}

template <typename Real>
__global__ void __launch_bounds__(kThreads)
    through_kernel(FastGrid grid, const float* da, const float* slopes, const float* extra,
                   int64_t hidden, Real* dup_gate) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t at) {
    float d[kRun];
    load_run(da + token * hidden + at, d);
    for (int half = 0; half < 2; ++half) {
      const int64_t place = (token * 2 + half) * hidden + at;
      float slope[kRun], more[kRun] = {};
      load_run(slopes + place, slope);
      if (extra != nullptr) {
        load_run(extra + place, more);
      }
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        slope[i] = d[i] * slope[i] + more[i];
      }
      store_run(dup_gate + place, slope);
    }
  });
}

// What the target of a token is made of.
struct Targets {
  int first, last;  // tokens from itself on
  float weight;

  explicit Targets(const FastMlpSizes& s)
      : first(static_cast<int>(s.target_first(0))),
        last(static_cast<int>(s.set.lookahead)),
        weight(static_cast<float>(s.target_weight())) {}
};

// kReads: y is the read of this call. Otherwise vhat has it already.
template <typename T, typename Real, bool kReads>
__global__ void __launch_bounds__(kRowThreads)
    errors_kernel(RowPlan plan, FastMlpWindow window, Targets targets, const float* y,
                  const float* bias, const T* v, int64_t dv, float scale, T* vhat, Real* p,
                  float* losses) {
  constexpr int kRun = kFastRun<Real>;
  for_rows(plan, [&](uint32_t token, bool here) {
    const int64_t row = window.row(token);
    const bool writes = window.writes(token);
    float squares = 0;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float value[kRun];
      if constexpr (kReads) {
        float more[kRun];
        load_run(y + token * dv + at, value);
        load_run(bias + window.bias_of(token) + at, more);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          value[i] += more[i];
        }
        if (here) {
          store_run(vhat + row * dv + at, value);
        }
      } else {
        load_run(vhat + row * dv + at, value);
      }
      if (writes) {
        for (int from = targets.first; from <= targets.last; ++from) {
          float target[kRun];
          load_run(v + (row + from) * dv + at, target);
#pragma unroll
          for (int i = 0; i < kRun; ++i) {
            value[i] -= targets.weight * target[i];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float error = writes ? value[i] : 0;
        squares += error * error;
        value[i] = scale * error;
      }
      if (p != nullptr && here) {
        store_run(p + token * dv + at, value);
      }
    });
    if constexpr (kReads) {
      squares = lanes_sum(plan, squares);
      if (here && plan.lane() == 0) {
        losses[row] = squares / static_cast<float>(dv);
      }
    }
  });
}

constexpr int kSumColumns = 32, kSumLanes = 8;

// parts [sets, groups, bias] of up_gate [sets, height, 2h] and y [sets, height, dv].
template <typename Real>
__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    column_parts_kernel(const Real* up_gate, const Real* y, int64_t height, int64_t first,
                        int64_t second, float* parts) {
  using Sum = std::conditional_t<sizeof(Real) == 2, float, double>;
  __shared__ Sum sums[kSumLanes][kSumColumns];
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x;
  const int64_t begin = blockIdx.y * kFastMlpSumRows, end = min(height, begin + kFastMlpSumRows);
  const bool here = column < first + second, low = column < first;
  const int64_t width = low ? first : second;
  const Real* from = (low ? up_gate + column : y + (column - first)) + blockIdx.z * height * width;
  Sum sum = 0;
  if (here) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kSumLanes) {
      sum += static_cast<Sum>(to_float(from[row * width]));
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && here) {
    for (int i = 1; i < kSumLanes; ++i) {
      sum += sums[i][threadIdx.x];
    }
    parts[(blockIdx.z * int64_t{gridDim.y} + blockIdx.y) * (first + second) + column] =
        static_cast<float>(sum);
  }
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int64_t groups, int64_t columns, bool add, float* to) {
  const int64_t column = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (column >= columns) {
    return;
  }
  const float* from = parts + blockIdx.y * groups * columns + column;
  float sum = 0;
#pragma unroll 8
  for (int64_t group = 0; group < groups; ++group) {
    sum += from[group * columns];
  }
  put(to + blockIdx.y * columns + column, sum, add);
}

// Where the six weights begin in a packed set.
struct PartOffsets {
  int64_t at[7] = {};

  explicit PartOffsets(const FastMlpSizes& s) {
    for (int i = 0; i < 6; ++i) {
      at[i + 1] = at[i] + s.parts[i];
    }
  }
};

template <typename Real>
__global__ void __launch_bounds__(kThreads)
    load_kernel(const __grid_constant__ PartOffsets offsets, FastMlpStack stack,
                const __grid_constant__ FastMlpMasters from, const float* steps,
                const float* bias_steps, const __grid_constant__ FastMlpMasters to, Real* matrices,
                float* biases) {
  const int64_t set = blockIdx.y;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < offsets.at[6];
       i += int64_t{gridDim.x} * kThreads) {
    int part = 0;
#pragma unroll
    for (int j = 1; j < 6; ++j) {
      part += i >= offsets.at[j] ? 1 : 0;
    }
    const int64_t within = i - offsets.at[part];
    float value = from.at[part][set * from.stride[part] + within];
    const bool is_bias = part % 2 == 1;
    const int64_t place =
        within + (is_bias ? set * stack.bias + part / 2 * stack.hidden
                          : set * stack.matrix + part / 2 * stack.hidden * stack.dk);
    if (steps != nullptr) {
      value += is_bias ? bias_steps[place] : steps[place];
    }
    if (to.at[0] != nullptr) {
      to.at[part][set * to.stride[part] + within] = value;
    }
    if (is_bias && biases != nullptr) {
      biases[place] = value;
    } else if (!is_bias && matrices != nullptr) {
      matrices[place] = from_float<Real>(value);
    }
  }
}

}  // namespace

template <typename T, typename Real>
void fast_mlp_gather(const FastMlpSizes& s, const FastMlpSpan& span, const T* all, int64_t width,
                     Real* to) {
  const FastGrid grid(span.tokens(), width, kFastRun<Real>);
  gather_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(FastMlpWindow(s, span), grid, all,
                                                               width, to);
  check_launch("fast_mlp gather");
}

template <typename Real>
void fast_mlp_hidden(const FastMlpSizes& s, const FastMlpSpan& span, const float* biases,
                     bool slopes, float* up_gate, Real* a) {
  const FastGrid grid(span.tokens(), s.hidden, kFastRun<Real>);
  hidden_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(
      FastMlpWindow(s, span), grid, biases + span.set * FastMlpStack(s).bias, s.hidden, slopes,
      up_gate, a);
  check_launch("fast_mlp hidden");
}

template <typename Real>
void fast_mlp_through_hidden(const FastMlpSizes& s, const FastMlpSpan& span, const float* da,
                             const float* slopes, const float* extra, Real* dup_gate) {
  const FastGrid grid(span.tokens(), s.hidden, kFastRun<Real>);
  through_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(grid, da, slopes, extra, s.hidden,
                                                                dup_gate);
  check_launch("fast_mlp through hidden");
}

template <typename T, typename Real>
void fast_mlp_errors(const OpArgs& args, const FastMlpSizes& s, const FastMlpSpan& span,
                     const float* y, const float* biases, float scale, Real* p) {
  const FastMlpStack stack(s);
  const RowPlan plan(span.tokens(), s.dv / kFastRun<Real>);
  const FastMlpWindow window(s, span);
  const float* bias = biases + span.set * stack.bias + 2 * s.hidden;
  const auto launch = [&](auto* kernel) {
    kernel<<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
        plan, window, Targets(s), y, bias, args.in[1].ptr<T>(), s.dv, scale, args.out[0].ptr<T>(),
        p, args.out[1].ptr<float>());
  };
  launch(y != nullptr ? &errors_kernel<T, Real, true> : &errors_kernel<T, Real, false>);
  check_launch("fast_mlp errors");
}

template <typename Real>
void fast_mlp_column_sums(const FastMlpSizes& s, const FastMlpSpan& span, const Real* up_gate,
                          const Real* y, float* parts, bool add, float* to) {
  const FastMlpStack stack(s);
  const int64_t groups = ceil_div(span.height(), kFastMlpSumRows);
  const dim3 blocks(static_cast<unsigned>(ceil_div(stack.bias, kSumColumns)),
                    static_cast<unsigned>(groups), static_cast<unsigned>(span.sets));
  column_parts_kernel<<<blocks, dim3(kSumColumns, kSumLanes), 0, this_stream()>>>(
      up_gate, y, span.height(), 2 * s.hidden, s.dv, parts);
  check_launch("fast_mlp sums");
  add_parts_kernel<<<dim3(static_cast<unsigned>(ceil_div(stack.bias, kThreads)),
                          static_cast<unsigned>(span.sets)),
                     kThreads, 0, this_stream()>>>(parts, groups, stack.bias, add,
                                                   to + span.set * stack.bias);
  check_launch("fast_mlp sums");
}

template <typename Real>
void fast_mlp_load(const FastMlpSizes& s, const FastMlpMasters& from, const float* steps,
                   const float* bias_steps, const FastMlpMasters& to, Real* matrices,
                   float* biases) {
  const dim3 blocks(blocks_for(s.packed, kThreads), static_cast<unsigned>(s.sets));
  load_kernel<<<blocks, kThreads, 0, this_stream()>>>(PartOffsets(s), FastMlpStack(s), from, steps,
                                                      bias_steps, to, matrices, biases);
  check_launch("fast_mlp weights");
}

#define FWPKM_FAST_MLP_REAL(Real)                                                                  \
  template void fast_mlp_hidden<Real>(const FastMlpSizes&, const FastMlpSpan&, const float*, bool, \
                                      float*, Real*);                                              \
  template void fast_mlp_through_hidden<Real>(const FastMlpSizes&, const FastMlpSpan&,             \
                                              const float*, const float*, const float*, Real*);    \
  template void fast_mlp_column_sums<Real>(const FastMlpSizes&, const FastMlpSpan&, const Real*,   \
                                           const Real*, float*, bool, float*);                     \
  template void fast_mlp_load<Real>(const FastMlpSizes&, const FastMlpMasters&, const float*,      \
                                    const float*, const FastMlpMasters&, Real*, float*);
#define FWPKM_FAST_MLP_BOTH(T, Real)                                                             \
  template void fast_mlp_gather<T, Real>(const FastMlpSizes&, const FastMlpSpan&, const T*,      \
                                         int64_t, Real*);                                        \
  template void fast_mlp_errors<T, Real>(const OpArgs&, const FastMlpSizes&, const FastMlpSpan&, \
                                         const float*, const float*, float, Real*);
FWPKM_FAST_MLP_REAL(float)
FWPKM_FAST_MLP_REAL(bf16)
FWPKM_FAST_MLP_BOTH(float, float)
FWPKM_FAST_MLP_BOTH(bf16, float)
FWPKM_FAST_MLP_BOTH(bf16, bf16)
#undef FWPKM_FAST_MLP_REAL
#undef FWPKM_FAST_MLP_BOTH

}  // namespace fwpkm
