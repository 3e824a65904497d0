// da = -dg exp(A_log) sigmoid(a + dt_bias), ddt_bias = sum of da, dA_log = sum of dg g,
// db = dbeta beta (1 - beta).
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/delta_gates/delta_gates.h"

namespace fwpkm {

template <typename T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

template <typename T>
T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// Where the b of value head h stands in a row of ba; its a follows `group` places later.
inline int64_t delta_gate_place(int64_t h, int64_t group) {
  return h / group * 2 * group + h % group;
}

// True where a document begins within the sequence: nothing of what came before may stay.
inline bool begins_document(const OpArgs& args, int64_t row, int64_t time) {
  const int32_t* starts = args.in[3].ptr<int32_t>();
  return starts != nullptr && row % time > 0 && starts[row] == row % time;
}

// in: ba, a_log, dt_bias, starts. out: g, beta. Computes in `Inner`.
template <typename T, typename Inner = T>
void delta_gates_forward_rows(const OpArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.in[1].dim(0),
                group = heads / args.attr<DeltaGatesSettings>().key_heads;
  const T* a_log = args.in[1].ptr<T>();
  const T* dt_bias = args.in[2].ptr<T>();
  for (int64_t row = begin; row < end; ++row) {
    const T* ba = args.in[0].ptr<T>() + row * 2 * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t place = delta_gate_place(h, group);
      const Inner b = ba[place], a = ba[place + group];
      const Inner g = -std::exp(Inner(a_log[h])) * softplus(a + Inner(dt_bias[h]));
      args.out[0].ptr<T>()[row * heads + h] =
          begins_document(args, row, args.attr<DeltaGatesSettings>().time) ? T(kForgetAll) : T(g);
      args.out[1].ptr<T>()[row * heads + h] = T(sigmoid_of(b));
    }
  }
}

template <typename T>
void delta_gates_forward_reference(const OpArgs& args) {
  delta_gates_forward_rows<T>(args, 0, args.in[0].rows());
}

// The part of backward that belongs to rows begin..end: writes dba, adds to the sums given.
template <typename T>
void delta_gates_backward_rows(const OpArgs& args, int64_t begin, int64_t end, T* da_log,
                               T* ddt_bias) {
  const int64_t heads = args.in[1].dim(0),
                group = heads / args.attr<DeltaGatesSettings>().key_heads;
  const T* a_log = args.in[1].ptr<T>();
  const T* dt_bias = args.in[2].ptr<T>();
  for (int64_t row = begin; row < end; ++row) {
    const T* ba = args.in[0].ptr<T>() + row * 2 * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t place = delta_gate_place(h, group);
      const T beta = args.out[1].ptr<T>()[row * heads + h];
      const bool begins = begins_document(args, row, args.attr<DeltaGatesSettings>().time);
      const T dg = args.dout[0] && !begins ? args.dout[0].ptr<T>()[row * heads + h] : T(0);
      const T dbeta = args.dout[1] ? args.dout[1].ptr<T>()[row * heads + h] : T(0);
      const T da = -dg * std::exp(a_log[h]) * sigmoid_of(ba[place + group] + dt_bias[h]);
      const T db = dbeta * beta * (T(1) - beta);
      if (args.din[0]) {
        T* dba = args.din[0].ptr<T>() + row * 2 * heads;
        dba[place] = args.accumulate[0] ? dba[place] + db : db;
        dba[place + group] = args.accumulate[0] ? dba[place + group] + da : da;
      }
      if (da_log != nullptr) {
        da_log[h] += dg * args.out[0].ptr<T>()[row * heads + h];
      }
      if (ddt_bias != nullptr) {
        ddt_bias[h] += da;
      }
    }
  }
}

template <typename T>
void delta_gates_backward_reference(const OpArgs& args) {
  for (int i = 1; i < 3; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  delta_gates_backward_rows<T>(args, 0, args.in[0].rows(), args.din[1].ptr<T>(),
                               args.din[2].ptr<T>());
}

}  // namespace fwpkm
