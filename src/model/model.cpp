#include "model/model.h"

#include <tuple>

#include "model/layer.h"
#include "ops/attention/attention.h"
#include "ops/delta_gates/delta_gates.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/embedding/embedding.h"
#include "ops/gate/gate.h"
#include "ops/linear/linear.h"
#include "ops/norm_gate/norm_gate.h"
#include "ops/norm_rope/norm_rope.h"
#include "ops/pkm_read/pkm_read.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {
namespace {

// PKM's query norm has an epsilon of its own.
constexpr double kPkmNormEps = 1e-6;

}  // namespace

void require_tokens(std::span<const int32_t> tokens, const ModelConfig& config, bool allow_none) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    require((tokens[i] >= 0 || (allow_none && tokens[i] == -1)) && tokens[i] < config.vocab_size,
            "tokens",
            "token {} (number {} of the input) is outside the model's vocabulary 0..{}; the text "
            "was made with another tokenizer",
            tokens[i], i, config.vocab_size - 1);
  }
}

Model::Model(ModelConfig config, Device device, bool gradients, bool dry,
             std::shared_ptr<const SafeTensors> file, size_t beside)
    : config_(std::move(config)),
      parameters_(config_, device, gradients, dry, std::move(file), beside),
      pools_(std::make_shared<PoolSet>(device)) {
  const FwpkmConfig& f = config_.fwpkm;
  for (int l = 0; l < config_.layers; ++l) {
    const size_t row_bytes = static_cast<size_t>(f.value_dim) * dtype_size(device.wide());
    arenas_.push_back(config_.has_fwpkm(l)
                          ? std::make_shared<RowArena>(f.n_subkeys, row_bytes, device.kind)
                          : nullptr);
  }
  const Parameters& p = parameters_;
  final_norm_ = p.at("model.norm.weight");
  if (config_.architecture == Architecture::kLact) {
    embedding_ = p.at("model.embeddings.weight");
    lact_layers_ = lact_layers(config_, p);
    return;
  }
  embedding_ = p.at("model.embed_tokens.weight");
  for (int l = 0; l < config_.layers; ++l) {
    auto layer = std::make_shared<Layer>();
    const std::string at = fmt::format("model.layers.{}.", l);
    layer->input_norm = p.at(at + "input_layernorm.weight");
    layer->post_norm = p.at(at + "post_attention_layernorm.weight");
    if (config_.mixer(l) == Mixer::kGdn) {
      const std::string m = at + "linear_attn.";
      layer->gdn = {p.at(m + "in_proj_qkvz.weight"),
                    p.at(m + "in_proj_ba.weight"),
                    p.at(m + "conv1d.weight"),
                    p.at(m + "dt_bias"),
                    p.at(m + "A_log"),
                    p.at(m + "norm.weight"),
                    p.at(m + "out_proj.weight")};
    } else {
      const std::string m = at + "self_attn.";
      layer->attention = {p.at(m + "q_proj.weight"), p.at(m + "k_proj.weight"),
                          p.at(m + "v_proj.weight"), p.at(m + "o_proj.weight"),
                          p.at(m + "q_norm.weight"), p.at(m + "k_norm.weight")};
    }
    if (config_.has_pkm(l)) {
      const std::string m = at + "pkm.";
      layer->pkm = {p.at(m + "keys"),
                    p.at(m + "values.weight"),
                    p.at(m + "value_proj.weight"),
                    p.at(m + "value_proj.bias"),
                    p.at(m + "swilu_projection.weight"),
                    p.at(m + "swilu_projection.bias"),
                    p.at(m + "query_proj.query_mlps.0.weight"),
                    p.at(m + "query_proj.query_mlps.0.bias"),
                    config_.pkm.query_norm ? p.at(m + "query_proj.norm.weight") : Tensor(),
                    p.gradient_squares(m + "values.weight")};
    } else {
      const std::string m = at + "mlp.";
      layer->mlp = {p.at(m + "gate_proj.weight"), p.at(m + "up_proj.weight"),
                    p.at(m + "down_proj.weight")};
    }
    if (config_.has_fwpkm(l) || config_.has_fwmlp(l)) {
      Layer::Memory& m = layer->memory;
      m.q_norm = p.at(at + "fw_q_norm.weight");
      m.q = p.at(at + "fw_q_proj.weight");
      m.q_bias = p.at(at + "fw_q_proj.bias");
      m.v_norm = p.at(at + "fw_v_norm.weight");
      m.v = p.at(at + "fw_v_proj.weight");
      m.v_bias = p.at(at + "fw_v_proj.bias");
      if (config_.has_fwpkm(l) ? config_.fwpkm.gating : config_.fwmlp.gating) {
        m.gate_norm = p.at(at + "fw_out_gate_norm.weight");
        m.gate = p.at(at + "fw_out_gate.weight");
        m.gate_bias = p.at(at + "fw_out_gate.bias");
      }
      m.out_norm = p.at(at + "fw_out_norm.weight");
      m.out = p.at(at + "fw_out_proj.weight");
      m.out_bias = p.at(at + "fw_out_proj.bias");
      if (config_.has_fwpkm(l)) {
        m.keys = p.at(at + "fwpkm.keys");
        m.values = p.at(at + "fwpkm.values");
      } else {
        for (size_t i = 0; i < m.mlp.size(); ++i) {
          m.mlp[i] = p.at(at + kFwmlpNames[i]);
        }
      }
    }
    layers_.push_back(std::move(layer));
  }
}

Tensor Model::attention(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual,
                        int index, const ForwardOptions& options, std::span<const Rows> all) const {
  const auto& w = layer.attention;
  const AttentionConfig& a = config_.attention;
  const int64_t width = a.head_dim;
  const Tensor q_gate = linear(run, x, w.q);
  const View per_head = q_gate.view().split_last(a.heads, 2 * width);
  const Tensor gate = q_gate.part(per_head.slice(-1, width, 2 * width));
  const Tensor q_all = q_gate.part(per_head.slice(-1, 0, width));
  const Shape kv = {x.dim(0), x.dim(1), a.kv_heads, width};
  const Tensor k_all = linear(run, x, w.k).reshape(kv), v_all = linear(run, x, w.v).reshape(kv);

  const Tensor o = by_rows(run, all, [&](const Rows& rows) {
    const Tensor q = norm_rope(run, rows.of(q_all), w.q_norm, rows.cos, rows.sin, config_.norm_eps);
    Tensor k = norm_rope(run, rows.of(k_all), w.k_norm, rows.cos, rows.sin, config_.norm_eps);
    Tensor v = rows.of(v_all);
    AttentionSettings settings;
    settings.window =
        config_.mixer(index) == Mixer::kSwa ? config_.window(index) : options.full_attention_window;
    settings.scale = 1 / std::sqrt(static_cast<double>(width));
    if (LayerState* state = rows.layer(index)) {
      require(!run.recording(), "model", "attention cannot be recorded on top of a cache");
      KvCache& cache = state->cache;
      cache.append(run, k, v, settings.window);
      k = cache.keys();
      v = cache.values();
      settings.q_offset = cache.length - x.dim(1);
    }
    return fwpkm::attention(run, q, k, v, settings, options.starts);
  });
  const Tensor gated = sigmoid_gate(run, o, gate);
  return linear(run, gated.reshape({x.dim(0), x.dim(1), a.heads * width}), w.o, {}, residual);
}

Tensor Model::gdn(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual, int index,
                  const ForwardOptions& options, std::span<const Rows> all) const {
  const auto& w = layer.gdn;
  const GdnConfig& g = config_.gdn;
  const int64_t batch = x.dim(0), time = x.dim(1), group = g.value_heads / g.key_heads;
  const int64_t dk = g.key_dim, values = group * g.value_dim;  // per key head

  // Per key head: q, k, then v and z of its value heads.
  const Tensor qkvz = linear(run, x, w.qkvz);
  const View heads = qkvz.view().split_last(g.key_heads, 2 * dk + 2 * values);
  const auto part = [&](int64_t begin, int64_t end) {
    return qkvz.part(heads.slice(-1, begin, end));
  };
  const View z_view = heads.slice(-1, 2 * dk + values, 2 * dk + 2 * values);
  const Tensor q_in = part(0, dk), k_in = part(dk, 2 * dk), v_in = part(2 * dk, 2 * dk + values);
  const DeltaGates gates =
      delta_gates(run, linear(run, x, w.ba), w.a_log, w.dt_bias, g.key_heads, options.starts);

  const Tensor o = by_rows(run, all, [&](const Rows& rows) {
    const LayerState* state = rows.layer(index);
    const Tensor qkv = short_conv(run, rows.of(q_in), rows.of(k_in), rows.of(v_in), w.conv,
                                  state != nullptr ? state->tail : Tensor(), options.starts);
    const int64_t keys = g.key_heads * dk;
    const View whole = qkv.view();
    const Tensor q = qkv.part(whole.slice(-1, 0, keys).split_last(g.key_heads, dk));
    const Tensor k = qkv.part(whole.slice(-1, keys, 2 * keys).split_last(g.key_heads, dk));
    const Tensor v = qkv.part(whole.slice(-1, 2 * keys, 2 * keys + g.value_heads * g.value_dim)
                                  .split_last(g.value_heads, g.value_dim));
    return delta_rule(run, q, k, v, rows.of(gates.g), rows.of(gates.beta),
                      state != nullptr ? state->delta : Tensor());
  });
  const Tensor y = norm_gate(run, o.reshape({batch, time, g.key_heads, group, g.value_dim}), w.norm,
                             qkvz.part(z_view.split_last(group, g.value_dim)), config_.norm_eps);
  return linear(run, y.reshape({batch, time, g.value_heads * g.value_dim}), w.out, {}, residual);
}

Tensor Model::mlp(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual) const {
  const Tensor inner = swiglu(run, linear(run, x, layer.mlp.gate), linear(run, x, layer.mlp.up));
  return linear(run, inner, layer.mlp.down, {}, residual);
}

Tensor Model::pkm(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual,
                  const ForwardOptions& options) const {
  const auto& w = layer.pkm;
  Tensor query = linear(run, x, w.query, w.query_bias);
  if (w.query_norm) {
    query =
        rms_norm(run, query, w.query_norm, {kPkmNormEps, 0.0, config_.compat == Compat::kOfficial});
  }
  const PkmSettings settings = {config_.pkm.heads, config_.pkm.topk, config_.pkm.n_subkeys,
                                w.squares};
  if (options.await_tables) {
    options.await_tables();
  }
  const PkmRead read = pkm_read(run, query, w.keys, w.values, settings);
  const Tensor gate = linear(run, x, w.gate, w.gate_bias);
  const Tensor inner = swiglu(run, gate, read.output.reshape(gate.shape()));
  return linear(run, inner, w.out, w.out_bias, residual);
}

std::vector<Model::Rows> Model::rows_of(Run& run, const Tensor& tokens,
                                        const ForwardOptions& options) const {
  const bool lact = config_.architecture == Architecture::kLact;
  const bool rotates = config_.rotary_dim() > 0 &&
                       (config_.has_mixer(Mixer::kFa) || config_.has_mixer(Mixer::kSwa) || lact);
  std::vector<Rows> all;
  const auto add = [&](State* state, int64_t count) {
    Rows rows;
    rows.state = state;
    rows.begin = all.empty() ? 0 : all.back().end;
    rows.end = rows.begin + count;
    if (rotates) {
      std::tie(rows.cos, rows.sin) = ropes_->at(
          run,
          {config_.attention.head_dim, config_.attention.rotary_fraction,
           config_.attention.rope_theta, config_.attention.yarn_factor, config_.yarn_length()},
          state == nullptr ? 0 : state->position, tokens.dim(1));
    }
    all.push_back(std::move(rows));
  };
  if (options.states.empty()) {
    add(nullptr, tokens.dim(0));
    return all;
  }
  for (State* state : options.states) {
    state->own(run, options.write_memory);
    add(state, state->batch);
  }
  require(all.back().end == tokens.dim(0), "model",
          "the states are for {} sequences, but {} were given", all.back().end, tokens.dim(0));
  return all;
}

Tensor Model::hidden(Run& run, const Tensor& tokens, const ForwardOptions& options) const {
  const bool lact = config_.architecture == Architecture::kLact;
  const RmsNormSettings norm = {config_.norm_eps, lact ? 0.0 : 1.0, false};
  require(options.states.empty() || !options.starts, "model",
          "borders of documents can be hidden in whole sequences only, not on top of a state");
  require(
      !lact || !options.starts, "model",
      "borders of documents cannot be hidden in a LaCT model: its fast weights see all of a row");
  require(!parameters_.tables_lent() || options.await_tables, "model",
          "the tables of the memories are lent to training steps: settle those first");
  const std::vector<Rows> rows = rows_of(run, tokens, options);
  const std::span<const Rows> all(rows);

  Tensor h = embedding(run, tokens, embedding_);
  for (int l = 0; l < config_.layers; ++l) {
    if (lact) {
      h = by_rows(run, all, [&](const Rows& r) {
        return lact_layer(run, config_, lact_layers_[static_cast<size_t>(l)], r.of(h), r.cos, r.sin,
                          r.layer(l));
      });
    } else {
      const Layer& layer = *layers_[static_cast<size_t>(l)];
      if (config_.has_fwpkm(l) || config_.has_fwmlp(l)) {
        h = memory(run, layer, h, l, options);
      }
      const Tensor x = rms_norm(run, h, layer.input_norm, norm);
      h = config_.mixer(l) == Mixer::kGdn ? gdn(run, layer, x, h, l, options, all)
                                          : attention(run, layer, x, h, l, options, all);
      const Tensor y = rms_norm(run, h, layer.post_norm, norm);
      h = config_.has_pkm(l) ? pkm(run, layer, y, h, options) : mlp(run, layer, y, h);
    }
    if (run.trace) {
      run.trace(fmt::format("trace.{}.hidden", l), h);
    }
  }
  for (State* state : options.states) {
    state->position += tokens.dim(1);
    for (int l = 0; l < config_.layers; ++l) {
      state->layers[static_cast<size_t>(l)].cache.trim(run, config_.window(l));
    }
  }
  return rms_norm(run, h, final_norm_, norm);
}

Tensor Model::logits(Run& run, const Tensor& hidden) const {
  return linear(run, hidden, embedding_);
}

}  // namespace fwpkm
