// The norms and the gate of a memory as the formula. With l the mean logit, dl = dg g (1 - g), and
// m the mean of the gate's rows:
//   G  = dq (1 + w_q) + dv (1 + w_v) + dl m (1 + w_g)
//   dx = r (G - xhat mean(G xhat))
//   dw_q = sum of dq xhat, dw_v alike; with S = sum of dl xhat:
//   dw_g = S m, each gate row S (1 + w_g) / R, each bias sum of dl / R.
#pragma once

#include <cmath>
#include <vector>

#include "ops/common/rows.h"
#include "ops/memory_norm/memory_norm.h"

namespace fwpkm {

// The mean of the gate's rows, and of its biases behind them.
template <typename T>
std::vector<T> mean_gate(const OpArgs& args) {
  const View &gate = args.in[MemoryNormIn::gate], &bias = args.in[MemoryNormIn::bias];
  const auto width = static_cast<size_t>(gate.dim(1));
  std::vector<T> mean(width + 1);
  for (int64_t j = 0; j < gate.dim(0); ++j) {
    for (size_t i = 0; i < width; ++i) {
      mean[i] += gate.ptr<T>()[j * gate.dim(1) + static_cast<int64_t>(i)] / T(gate.dim(0));
    }
    mean[width] += bias.ptr<T>()[j] / T(gate.dim(0));
  }
  return mean;
}

template <typename T>
void memory_norm_forward_reference(const OpArgs& args) {
  using In = MemoryNormIn;
  using Out = MemoryNormOut;
  const View& x_view = args.in[In::x];
  const Rows x_rows(x_view);
  const int64_t width = x_view.dim(-1);
  const bool gated = static_cast<bool>(args.in[In::gate]);
  const std::vector<T> mean = gated ? mean_gate<T>(args) : std::vector<T>();
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = x_view.ptr<T>() + x_rows[row];
    T squares = 0, logit = gated ? mean.back() : T(0);
    for (int64_t i = 0; i < width; ++i) {
      squares += x[i] * x[i];
    }
    const T r = T(1) / std::sqrt(squares / T(width) + T(args.attr<MemoryNormSettings>().eps));
    for (int64_t i = 0; i < width; ++i) {
      const T xhat = x[i] * r;
      args.out[Out::q].ptr<T>()[row * width + i] = xhat * (T(1) + args.in[In::q_norm].ptr<T>()[i]);
      args.out[Out::v].ptr<T>()[row * width + i] = xhat * (T(1) + args.in[In::v_norm].ptr<T>()[i]);
      if (gated) {
        logit += xhat * (T(1) + args.in[In::gate_norm].ptr<T>()[i]) * mean[static_cast<size_t>(i)];
      }
    }
    if (gated) {
      args.out[Out::g].ptr<T>()[row] = T(1) / (T(1) + std::exp(-logit));
    }
    if (args.saved[MemoryNormSaved::r]) {
      args.saved[MemoryNormSaved::r].ptr<T>()[row] = r;
    }
    if (args.saved[MemoryNormSaved::logits]) {
      args.saved[MemoryNormSaved::logits].ptr<T>()[row] = logit;
    }
  }
}

template <typename T>
void memory_norm_backward_reference(const OpArgs& args) {
  using In = MemoryNormIn;
  using Out = MemoryNormOut;
  const View &x_view = args.in[In::x], &dx_view = args.din[In::x];
  const Rows x_rows(x_view), dx_rows(dx_view ? dx_view : x_view);
  const int64_t width = x_view.dim(-1);
  const bool gated = static_cast<bool>(args.in[In::gate]);
  const std::vector<T> mean_row = gated ? mean_gate<T>(args) : std::vector<T>();
  std::vector<T> sums(static_cast<size_t>(width)), full(static_cast<size_t>(width));
  T bias_sum = 0;
  for (int i = 1; i < In::count; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  // A gradient of an output that nobody used is missing: 0.
  const auto gradient = [&](int out, int64_t row, int64_t i) {
    const View& d = args.dout[out];
    return d ? d.ptr<T>()[Rows(d)[row] + i] : T(0);
  };
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const T* x = x_view.ptr<T>() + x_rows[row];
    const T r = args.saved[MemoryNormSaved::r].ptr<T>()[row];
    T dl = 0, mean = 0;
    if (gated && args.dout[Out::g]) {
      const T logit = args.saved[MemoryNormSaved::logits].ptr<T>()[row];
      const T g = T(1) / (T(1) + std::exp(-logit)), rest = T(1) / (T(1) + std::exp(logit));
      dl = args.dout[Out::g].ptr<T>()[row] * g * rest;
    }
    bias_sum += dl;
    for (int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(i);
      const T dq = gradient(Out::q, row, i), dv = gradient(Out::v, row, i), xhat = x[i] * r;
      full[at] = dq * (T(1) + args.in[In::q_norm].ptr<T>()[i]) +
                 dv * (T(1) + args.in[In::v_norm].ptr<T>()[i]);
      if (gated) {
        full[at] += dl * mean_row[at] * (T(1) + args.in[In::gate_norm].ptr<T>()[i]);
      }
      mean += full[at] * xhat / T(width);
      sums[at] += dl * xhat;
      if (args.din[In::q_norm]) {
        args.din[In::q_norm].ptr<T>()[i] += dq * xhat;
      }
      if (args.din[In::v_norm]) {
        args.din[In::v_norm].ptr<T>()[i] += dv * xhat;
      }
    }
    for (int64_t i = 0; i < width && dx_view; ++i) {
      T& to = dx_view.ptr<T>()[dx_rows[row] + i];
      const T d = r * (full[static_cast<size_t>(i)] - x[i] * r * mean);
      to = args.accumulate[In::x] ? to + d : d;
    }
  }
  if (!gated) {
    return;
  }
  const int64_t gates = args.in[In::gate].dim(0);
  for (int64_t i = 0; i < width; ++i) {
    const auto at = static_cast<size_t>(i);
    if (args.din[In::gate_norm]) {
      args.din[In::gate_norm].ptr<T>()[i] += sums[at] * mean_row[at];
    }
    for (int64_t j = 0; j < gates && args.din[In::gate]; ++j) {
      args.din[In::gate].ptr<T>()[j * width + i] +=
          sums[at] * (T(1) + args.in[In::gate_norm].ptr<T>()[i]) / T(gates);
    }
  }
  for (int64_t j = 0; j < gates && args.din[In::bias]; ++j) {
    args.din[In::bias].ptr<T>()[j] += bias_sum / T(gates);
  }
}

}  // namespace fwpkm
