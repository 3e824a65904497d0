#include "model/lact.h"

#include <cmath>

#include "ops/attention/attention.h"
#include "ops/lact_out/lact_out.h"
#include "ops/lact_qk/lact_qk.h"
#include "ops/lact_rates/lact_rates.h"
#include "ops/linear/linear.h"
#include "ops/low_rank/low_rank.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {
namespace {

// The norm of the fast weights' output has an epsilon of its own.
constexpr double kFastNormEps = 1e-5;
// W0 and W2 start as low-rank matrices plus this much of the identity.
constexpr double kDiagonal = 0.5;

Tensor window_attention(Run& run, const ModelConfig& config, const Tensor& q, const Tensor& k_new,
                        const Tensor& v_new, LayerState* state) {
  AttentionSettings settings;
  settings.window = config.lact.window;
  settings.scale = 1 / std::sqrt(static_cast<double>(config.attention.head_dim));
  if (state == nullptr) {
    return attention(run, q, k_new, v_new, settings);
  }
  require(!run.recording(), "model", "attention cannot be recorded on top of a cache");
  KvCache& cache = state->cache;
  cache.append(run, k_new, v_new, settings.window);
  settings.q_offset = cache.length - q.dim(1);
  return attention(run, q, cache.keys(), cache.values(), settings);
}

Tensor fast_weights(Run& run, const ModelConfig& config, const LactLayer& w, const Tensor& x,
                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos,
                    const Tensor& sin, LayerState* state) {
  const LactQk fast = lact_qk(run, q, k, w.qk_scale, w.qk_offset, config.lact.heads, cos, sin);
  const LactRates rates = lact_rates(run, linear(run, x, w.lr, w.lr_bias),
                                     linear(run, x, w.momentum, w.momentum_bias), config.lact.lr);
  LactState* carried = state == nullptr ? nullptr : &state->lact;
  LactWeights start;
  if (carried == nullptr || carried->tokens == 0) {
    start = {low_rank(run, w.w0_left, w.w0_right, kDiagonal), w.w1,
             low_rank(run, w.w2_left, w.w2_right, kDiagonal)};
  }
  return lact(run, fast.q, fast.k, v, rates.lr, rates.momentum, start, config.lact.chunk, carried);
}

}  // namespace

std::vector<LactLayer> lact_layers(const ModelConfig& config, const Parameters& parameters) {
  std::vector<LactLayer> layers;
  for (int l = 0; l < config.layers; ++l) {
    const auto at = [&](const char* name) {
      return parameters.at(fmt::format("model.layers.{}.{}", l, name));
    };
    LactLayer layer;
    layer.attn_norm = at("attn_norm.weight");
    layer.qkv = at("attn.qkv.weight");
    layer.out = at("attn.o_proj.weight");
    layer.w0_left = at("attn.w0.w_left");
    layer.w0_right = at("attn.w0.w_right");
    layer.w1 = at("attn.w1");
    layer.w2_left = at("attn.w2.w_left");
    layer.w2_right = at("attn.w2.w_right");
    layer.qk_scale = at("attn.qk_scale");
    layer.qk_offset = at("attn.qk_offset");
    layer.lr = at("attn.lr_proj.weight");
    layer.lr_bias = at("attn.lr_proj.bias");
    layer.momentum = at("attn.momentum_proj.0.weight");
    layer.momentum_bias = at("attn.momentum_proj.0.bias");
    layer.scale = at("attn.ttt_scale_proj.weight");
    layer.scale_bias = at("attn.ttt_scale_proj.bias");
    layer.fast_norm = at("attn.ttt_norm.weight");
    layer.mlp_norm = at("mlp_norm.weight");
    layer.gate = at("mlp.gate_proj.weight");
    layer.up = at("mlp.up_proj.weight");
    layer.down = at("mlp.down_proj.weight");
    layers.push_back(std::move(layer));
  }
  return layers;
}

Tensor lact_layer(Run& run, const ModelConfig& config, const LactLayer& w, const Tensor& h,
                  const Tensor& cos, const Tensor& sin, LayerState* state) {
  const RmsNormSettings norm = {config.norm_eps, 0.0, false};
  const int64_t width = config.hidden_size;
  const Tensor x = rms_norm(run, h, w.attn_norm, norm);
  const Tensor qkv = linear(run, x, w.qkv);
  const auto part = [&](int64_t i) {
    return qkv.part(qkv.view()
                        .slice(-1, i * width, (i + 1) * width)
                        .split_last(config.attention.heads, config.attention.head_dim));
  };
  const Tensor q = part(0), k = part(1), v = part(2);
  const Tensor seen =
      window_attention(run, config, rope(run, q, cos, sin), rope(run, k, cos, sin), v, state);
  const Tensor learned = fast_weights(run, config, w, x, q, k, v, cos, sin, state);
  const Tensor scale = linear(run, x, w.scale, w.scale_bias);
  const Tensor both = lact_out(run, seen, learned, w.fast_norm, scale, kFastNormEps);
  const Tensor mixed = linear(run, both.reshape(h.shape()), w.out, {}, h);
  const Tensor y = rms_norm(run, mixed, w.mlp_norm, norm);
  const Tensor inner = swiglu(run, linear(run, y, w.gate), linear(run, y, w.up));
  return linear(run, inner, w.down, {}, mixed);
}

}  // namespace fwpkm
