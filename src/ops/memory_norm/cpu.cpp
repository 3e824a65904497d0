#include "base/parallel.h"
#include "ops/memory_norm/plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/memory_norm/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/pair-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// Fills in the mean of the gate's rows; -> the mean of its biases.
double mean_of_gates(const OpArgs& args, const MemoryNormParts& parts) {
  const View &gate = args.in[MemoryNormIn::gate], &norm = args.in[MemoryNormIn::gate_norm];
  double bias = 0;
  for (int64_t i = 0; i < gate.dim(1); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < gate.dim(0); ++j) {
      sum += static_cast<double>(gate.ptr<float>()[j * gate.dim(1) + i]);
    }
    const double mean = sum / static_cast<double>(gate.dim(0));
    parts.gate[i] = static_cast<float>(mean);
    parts.scaled[i] = static_cast<float>(mean * (1.0 + static_cast<double>(norm.ptr<float>()[i])));
  }
  for (int64_t j = 0; j < gate.dim(0); ++j) {
    bias += static_cast<double>(args.in[MemoryNormIn::bias].ptr<float>()[j]);
  }
  return bias / static_cast<double>(gate.dim(0));
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

void forward(const OpArgs& args) {
  using In = MemoryNormIn;
  const View& x_view = args.in[In::x];
  const Rows x_rows(x_view);
  const int64_t width = x_view.dim(-1);
  const double eps = args.attr<MemoryNormSettings>().eps;
  const MemoryNormParts parts(args, false, args.workspace);
  const bool gated = static_cast<bool>(args.in[In::gate]);
  const double bias = gated ? mean_of_gates(args, parts) : 0;
  const float *w_q = args.in[In::q_norm].ptr<float>(), *w_v = args.in[In::v_norm].ptr<float>();
  float* q0 = args.out[MemoryNormOut::q].ptr<float>();
  float* v0 = args.out[MemoryNormOut::v].ptr<float>();
  float* saved = args.saved[MemoryNormSaved::r].ptr<float>();
  float* logits = args.saved[MemoryNormSaved::logits].ptr<float>();
  parallel_ranges(x_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x_view.ptr<float>() + x_rows[row];
      const double r = inverse_norm(x, width, static_cast<double>(width), eps);
      const Pair vr = pair_of(d, r);
      V32 dots = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const Pair norm = times(d, vr, load_part(d, x + i, n));
        const Pair for_q = plus(one, load_part(d, w_q + i, n));
        const Pair for_v = plus(one, load_part(d, w_v + i, n));
        store_part(d, rounded(times(d, norm, for_q)), q0 + row * width + i, n);
        store_part(d, rounded(times(d, norm, for_v)), v0 + row * width + i, n);
        if (gated) {
          dots = hn::MulAdd(rounded(norm), load_part(d, parts.scaled + i, n), dots);
        }
      });
      if (gated) {
        const double logit = bias + static_cast<double>(hn::GetLane(hn::SumOfLanes(d, dots)));
        args.out[MemoryNormOut::g].ptr<float>()[row] = static_cast<float>(sigmoid(logit));
        if (logits != nullptr) {
          logits[row] = static_cast<float>(logit);
        }
      }
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
    }
  });
}

// What all rows share.
struct Gradients {
  const OpArgs& args;
  const MemoryNormParts& parts;
  int64_t width = args.in[MemoryNormIn::x].dim(-1);
  const float* w_q = args.in[MemoryNormIn::q_norm].ptr<float>();
  const float* w_v = args.in[MemoryNormIn::v_norm].ptr<float>();
  // Null where an output was not used.
  const float* dq = args.dout[MemoryNormOut::q].ptr<float>();
  const float* dv = args.dout[MemoryNormOut::v].ptr<float>();
  bool gated = args.in[MemoryNormIn::gate] && args.dout[MemoryNormOut::g];

  double dlogit(int64_t row) const {
    if (!gated) {
      return 0;
    }
    const double logit = args.saved[MemoryNormSaved::logits].ptr<float>()[row];
    return static_cast<double>(args.dout[MemoryNormOut::g].ptr<float>()[row]) * sigmoid(logit) *
           sigmoid(-logit);
  }
};

// The gradient of one row and what it adds to the sums of its group.
void backward_row(const Gradients& g, int64_t row, const float* x, const float* dq, const float* dv,
                  int64_t group, float* dx, bool add) {
  const F32 d;
  const V32 one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  const V32 r = hn::Set(d, g.args.saved[MemoryNormSaved::r].ptr<float>()[row]);
  const V32 dl = hn::Set(d, static_cast<float>(g.dlogit(row)));
  const int64_t at = group * g.width;
  const auto full = [&](int64_t i, size_t n) {
    V32 sum = zero;
    if (dq != nullptr) {
      sum = hn::Mul(load_part(d, dq + i, n), hn::Add(one, load_part(d, g.w_q + i, n)));
    }
    if (dv != nullptr) {
      sum = hn::MulAdd(load_part(d, dv + i, n), hn::Add(one, load_part(d, g.w_v + i, n)), sum);
    }
    return g.gated ? hn::MulAdd(dl, load_part(d, g.parts.scaled + i, n), sum) : sum;
  };
  V32 dots = zero;
  for_vectors(d, g.width, [&](int64_t i, size_t n) {
    const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
    dots = hn::MulAdd(full(i, n), xhat, dots);
    if (dq != nullptr) {
      put(d, hn::Mul(load_part(d, dq + i, n), xhat), g.parts.q_sums + at + i, n, true);
    }
    if (dv != nullptr) {
      put(d, hn::Mul(load_part(d, dv + i, n), xhat), g.parts.v_sums + at + i, n, true);
    }
    if (g.gated) {
      put(d, hn::Mul(dl, xhat), g.parts.g_sums + at + i, n, true);
    }
  });
  if (dx == nullptr) {
    return;
  }
  const V32 mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dots)) / static_cast<float>(g.width));
  for_vectors(d, g.width, [&](int64_t i, size_t n) {
    const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
    put(d, hn::Mul(r, hn::NegMulAdd(xhat, mean, full(i, n))), dx + i, n, add);
  });
}

// From S = sum of dl xhat to the gate's own weights.
void backward_gate(const Gradients& g, int64_t rows) {
  using In = MemoryNormIn;
  const OpArgs& args = g.args;
  const int64_t gates = args.in[In::gate].dim(0);
  const float* norm = args.in[In::gate_norm].ptr<float>();
  const auto add = [&](int in, int64_t at, double value) {
    float& to = args.din[in].ptr<float>()[at];
    to = static_cast<float>(args.accumulate[in] ? static_cast<double>(to) + value : value);
  };
  for (int64_t i = 0; i < g.width; ++i) {
    const double sum = g.gated ? static_cast<double>(g.parts.g_sum[i]) : 0;
    if (args.din[In::gate_norm]) {
      add(In::gate_norm, i, sum * static_cast<double>(g.parts.gate[i]));
    }
    for (int64_t j = 0; j < gates && args.din[In::gate]; ++j) {
      add(In::gate, j * g.width + i,
          sum * (1 + static_cast<double>(norm[i])) / static_cast<double>(gates));
    }
  }
  if (args.din[In::bias]) {
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += g.dlogit(row);
    }
    for (int64_t j = 0; j < gates; ++j) {
      add(In::bias, j, sum / static_cast<double>(gates));
    }
  }
}

void backward(const OpArgs& args) {
  using In = MemoryNormIn;
  const View& x = args.in[In::x];
  const MemoryNormParts parts(args, true, args.workspace);
  const bool gate = static_cast<bool>(args.in[In::gate]);
  if (gate) {
    mean_of_gates(args, parts);
  }
  const Gradients g{args, parts};
  const View& dx = args.din[In::x];
  const Rows x_rows(x), dx_rows(dx ? dx : x);
  const auto rows_of = [&](int out) { return Rows(args.dout[out] ? args.dout[out] : x); };
  const Rows dq_rows = rows_of(MemoryNormOut::q), dv_rows = rows_of(MemoryNormOut::v);
  const int64_t groups = row_groups(x_rows.count());
  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      for (float* sums : {parts.q_sums, parts.v_sums, parts.g_sums}) {
        std::memset(sums + group * g.width, 0, static_cast<size_t>(g.width) * sizeof(float));
      }
      const int64_t end = HWY_MIN(x_rows.count(), (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        backward_row(g, row, x.ptr<float>() + x_rows[row],
                     g.dq == nullptr ? nullptr : g.dq + dq_rows[row],
                     g.dv == nullptr ? nullptr : g.dv + dv_rows[row], group,
                     dx ? dx.ptr<float>() + dx_rows[row] : nullptr, args.accumulate[In::x]);
      }
    }
  });
  if (args.din[In::q_norm]) {
    sum_groups(parts.q_sums, groups, g.width, args.din[In::q_norm].ptr<float>(),
               args.accumulate[In::q_norm]);
  }
  if (args.din[In::v_norm]) {
    sum_groups(parts.v_sums, groups, g.width, args.din[In::v_norm].ptr<float>(),
               args.accumulate[In::v_norm]);
  }
  if (gate) {
    sum_groups(parts.g_sums, groups, g.width, parts.g_sum, false);
    backward_gate(g, x_rows.count());
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void memory_norm_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void memory_norm_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t memory_norm_workspace_cpu(const OpArgs& args, bool backward) {
  return MemoryNormParts(args, backward, nullptr).bytes;
}

}  // namespace fwpkm
#endif
