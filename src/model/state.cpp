#include "model/state.h"

#include <algorithm>

namespace fwpkm {

void KvCache::append(Run& run, const Tensor& new_k, const Tensor& new_v, int64_t window) {
  const int64_t time = new_k.dim(1);
  const int64_t capacity = k ? k.dim(1) : 0;
  if (length + time > capacity) {
    // A later query sees at most window-1 of the rows here now.
    const int64_t keep = window > 0 ? std::min(length, window - 1) : length;
    const int64_t grown = std::max<int64_t>(64, 2 * (keep + time));
    const auto move = [&](Tensor* cache, const char* name) {
      Shape shape = new_k.shape();
      shape.dims[1] = grown;
      Tensor bigger = run.make(name, shape);
      if (keep > 0) {
        copy_view(cache->view().slice(1, length - keep, length), bigger.view().slice(1, 0, keep));
      }
      *cache = bigger;
    };
    move(&k, "cache.k");
    move(&v, "cache.v");
    length = keep;
  }
  copy_view(new_k.view(), k.view().slice(1, length, length + time));
  copy_view(new_v.view(), v.view().slice(1, length, length + time));
  length += time;
}

State State::start(const ModelConfig& config, Run& run, int64_t batch) {
  State state;
  state.batch = batch;
  state.layers.resize(static_cast<size_t>(config.layers));
  state.reset_mixers(config, run);
  state.reset_memory(config, run);
  return state;
}

void State::reset_mixers(const ModelConfig& config, Run& run) {
  const GdnConfig& g = config.gdn;
  position = 0;
  for (int l = 0; l < config.layers; ++l) {
    LayerState& layer = layers[static_cast<size_t>(l)];
    layer.cache = KvCache();
    if (config.mixer(l) == Mixer::kLact) {
      layer.lact = LactState::make(run, batch, config.lact.heads,
                                   config.hidden_size / config.lact.heads, config.lact.chunk);
    }
    if (config.mixer(l) != Mixer::kGdn) {
      continue;
    }
    layer.delta = run.make("state.delta", {batch, g.value_heads, g.key_dim, g.value_dim});
    layer.tail =
        run.make("state.tail",
                 {batch, g.conv - 1, 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim});
    fill_zero(layer.delta.view());
    fill_zero(layer.tail.view());
  }
}

void State::reset_memory(const ModelConfig& config, Run& run) {
  for (int l = 0; l < config.layers; ++l) {
    if (!config.has_fwpkm(l) && !config.has_fwmlp(l)) {
      continue;
    }
    FastStream fresh;
    if (config.has_fwpkm(l)) {
      fresh.overlay = Overlay(1, config.fwpkm.n_subkeys, config.fwpkm.value_dim, run.device());
    }
    layers[static_cast<size_t>(l)].fast.assign(static_cast<size_t>(batch), fresh);
  }
}

}  // namespace fwpkm
