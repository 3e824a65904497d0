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
  } pkm;
  // A fast-weight memory before the mixer.
  struct Memory {
    Tensor q_norm, q, q_bias, v_norm, v, v_bias, gate_norm, gate, gate_bias, out_norm, out,
        out_bias;
    Tensor keys, values;        // FwPKM
    std::array<Tensor, 6> mlp;  // FwMLP
  } memory;
};

}  // namespace fwpkm
