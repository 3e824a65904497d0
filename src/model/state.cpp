#include "model/state.h"

#include <algorithm>

namespace fwpkm {

namespace {

// Makes a tensor that is changed in place this handle's alone.
void own_tensor(Run& run, Tensor* t) {
  if (*t && !t->sole()) {
    *t = run.keep(t->view());
  }
}

}  // namespace

void KvCache::move(Run& run, int64_t keep, int64_t capacity) {
  for (Tensor* cache : {&k, &v}) {
    Shape shape = cache->shape();
    shape.dims[1] = capacity;
    const Tensor moved = run.make_kept(cache->view().name, shape, cache->view().dtype);
    if (keep > 0) {
      copy_view(cache->view().slice(1, length - keep, length), moved.view().slice(1, 0, keep));
    }
    *cache = moved;
  }
  length = keep;
}

void KvCache::append(Run& run, const Tensor& new_k, const Tensor& new_v, int64_t window) {
  const int64_t time = new_k.dim(1);
  if (!k) {
    Shape shape = new_k.shape();
    shape.dims[1] = capacity(time, window);
    k = run.make_kept("cache.k", shape, new_k.view().dtype);
    v = run.make_kept("cache.v", shape, new_v.view().dtype);
  }
  // A later query sees at most window-1 of the rows here now.
  int64_t keep = length;
  if (window > 0 && length + time > window - 1 + kSlack) {
    keep = std::min(length, window - 1);
  }
  if (keep < length || keep + time > k.dim(1)) {
    move(run, keep, capacity(keep + time, window));
  }
  copy_view(new_k.view(), k.view().slice(1, length, length + time));
  copy_view(new_v.view(), v.view().slice(1, length, length + time));
  length += time;
}

void KvCache::trim(Run& run, int64_t window) {
  if (window > 0 && length > window - 1 + kSlack) {
    move(run, window - 1, capacity(window - 1, window));
  }
}

State State::start(const ModelConfig& config, Run& run, int64_t batch,
                   std::span<const std::shared_ptr<RowArena>> arenas) {
  State state;
  state.batch = batch;
  state.layers.resize(static_cast<size_t>(config.layers));
  state.reset_mixers(config, run);
  for (int l = 0; l < config.layers; ++l) {
    if (config.has_fwpkm(l)) {
      const auto& f = config.fwpkm;
      const bool given = !arenas.empty() && arenas[static_cast<size_t>(l)];
      FastStream fresh;
      fresh.overlay = given ? Overlay(1, arenas[static_cast<size_t>(l)], run.device())
                            : Overlay(1, f.n_subkeys, f.value_dim, run.device());
      state.layers[static_cast<size_t>(l)].fast.assign(static_cast<size_t>(batch), fresh);
    } else if (config.has_fwmlp(l)) {
      state.layers[static_cast<size_t>(l)].fast.resize(static_cast<size_t>(batch));
    }
  }
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
    layer.delta =
        run.make_kept("state.delta", {batch, g.value_heads, g.key_dim, g.value_dim}, run.wide());
    layer.tail = run.make_kept(
        "state.tail",
        {batch, g.conv - 1, 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim},
        run.device().real);
    fill_zero(layer.delta.view());
    fill_zero(layer.tail.view());
  }
}

void State::reset_memory(const ModelConfig&, Run& run) {
  for (LayerState& layer : layers) {
    for (FastStream& stream : layer.fast) {
      FastStream fresh;
      if (stream.overlay.owners() > 0) {
        fresh.overlay = Overlay(1, stream.overlay.arena(), run.device());
      }
      stream = std::move(fresh);
    }
  }
}

void State::own(Run& run, bool queues) {
  for (LayerState& layer : layers) {
    for (Tensor* t : {&layer.delta, &layer.tail, &layer.lact.weights, &layer.lact.momentum,
                      &layer.lact.norms, &layer.lact.pending}) {
      own_tensor(run, t);
    }
    if (layer.cache.k && !(layer.cache.k.sole() && layer.cache.v.sole())) {
      layer.cache.move(run, layer.cache.length, layer.cache.k.dim(1));
    }
    for (FastStream& stream : layer.fast) {
      for (Tensor* t : {&stream.q, &stream.v, &stream.g}) {
        if (queues) {
          own_tensor(run, t);
        }
      }
    }
  }
}

}  // namespace fwpkm
