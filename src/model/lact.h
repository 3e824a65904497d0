// The layers of a LaCT model: window attention and fast weights side by side on one projection,
// then an MLP. Norms have plain weights here.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/parameters.h"
#include "model/state.h"
#include "tensor/tensor.h"

namespace fwpkm {

struct LactLayer {
  Tensor attn_norm, qkv, out;
  Tensor w0_left, w0_right, w1, w2_left, w2_right;
  Tensor qk_scale, qk_offset;
  Tensor lr, lr_bias, momentum, momentum_bias, scale, scale_bias;
  Tensor fast_norm;
  Tensor mlp_norm, gate, up, down;
};

std::vector<LactLayer> lact_layers(const ModelConfig& config, const Parameters& parameters);

// h [B,T,D] -> h after the layer. cos and sin as in norm_rope.h; `state` as in ForwardOptions.
Tensor lact_layer(Run& run, const ModelConfig& config, const LactLayer& layer, const Tensor& h,
                  const Tensor& cos, const Tensor& sin, LayerState* state);

}  // namespace fwpkm
