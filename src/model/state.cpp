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
  const GdnConfig& g = config.gdn;
  for (int l = 0; l < config.layers; ++l) {
    if (config.mixer(l) == Mixer::kLact) {
      state.layers[static_cast<size_t>(l)].lact = LactState::make(
          run, batch, config.lact.heads, config.hidden_size / config.lact.heads, config.lact.chunk);
    }
    if (config.mixer(l) != Mixer::kGdn) {
      continue;
    }
    MixerState& layer = state.layers[static_cast<size_t>(l)];
    layer.delta = run.make("state.delta", {batch, g.value_heads, g.key_dim, g.value_dim});
    layer.tail =
        run.make("state.tail",
                 {batch, g.conv - 1, 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim});
    fill_zero(layer.delta.view());
    fill_zero(layer.tail.view());
  }
  return state;
}

}  // namespace fwpkm
