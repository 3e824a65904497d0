// The weights of one layer; those of parts that are not there stay empty. Internal to model/.
#pragma once

#include <array>

#include "model/model.h"

namespace fwpkm {

struct Model::Layer {
  Tensor input_norm, post_norm;
  struct {
    Tensor q, k, v, o, q_norm, k_norm;
  } attention;
  struct {
    Tensor qkvz, ba, conv, dt_bias, a_log, norm, out;
  } gdn;
  struct {
    Tensor gate, up, down;
  } mlp;
  struct {
    Tensor keys, values, out, out_bias, gate, gate_bias, query, query_bias, query_norm;
    double* squares = nullptr;  // Parameters::gradient_squares of the values
  } pkm;
  // A fast-weight memory before the mixer.
  struct Memory {
    Tensor q_norm, q, q_bias, v_norm, v, v_bias, gate_norm, gate, gate_bias, out_norm, out,
        out_bias;
    Tensor keys, values;        // FwPKM
    std::array<Tensor, 6> mlp;  // FwMLP
  } memory;
};

// Rows of a batch that go on from one state, or all of them without one.
struct Model::Rows {
  State* state = nullptr;
  int64_t begin = 0, end = 0;
  Tensor cos, sin;  // at the state's position; empty if nobody rotates

  LayerState* layer(int index) const {
    return state == nullptr ? nullptr : &state->layers[static_cast<size_t>(index)];
  }
  // These rows of x [B, ..].
  Tensor of(const Tensor& x) const {
    return begin == 0 && end == x.dim(0) ? x : x.part(x.view().slice(0, begin, end));
  }
};

// fn(rows) for each, which gives tensors [rows, ..]; together as one.
template <typename Rows, typename Fn>
Tensor by_rows(Run& run, std::span<const Rows> all, Fn&& fn) {
  if (all.size() == 1) {
    return fn(all[0]);
  }
  Tensor joined;
  for (const Rows& rows : all) {
    const Tensor part = fn(rows);
    if (!joined) {
      Shape shape = part.shape();
      shape.dims[0] = all.back().end;
      joined = run.make(part.view().name, shape);
    }
    copy_view(part.view(), joined.view().slice(0, rows.begin, rows.end));
  }
  return joined;
}

}  // namespace fwpkm
