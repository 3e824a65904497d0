// What a model remembers of the tokens it has read so far: the state of its token mixers and of its
// fast-weight memories. Given to a forward pass, it is read and moved on.
#pragma once

#include <vector>

#include "model/config.h"
#include "model/fast_state.h"
#include "ops/lact/lact.h"
#include "tensor/tensor.h"

namespace fwpkm {

// Keys and values of one attention layer. With a window only what a later query can still see is
// sure to be kept.
struct KvCache {
  Tensor k, v;         // [B, capacity, kv heads, head_dim]
  int64_t length = 0;  // rows in use

  // Appends k, v [B,T,kv heads,head_dim]; makes room by dropping rows out of the window or by
  // growing.
  void append(Run& run, const Tensor& new_k, const Tensor& new_v, int64_t window);
  // The rows in use.
  Tensor keys() const { return k.part(k.view().slice(1, 0, length)); }
  Tensor values() const { return v.part(v.view().slice(1, 0, length)); }
};

struct LayerState {
  Tensor delta;  // GDN: [B, value heads, key_dim, value_dim]
  Tensor tail;   // GDN: [B, conv-1, channels]
  KvCache cache;
  std::vector<FastStream> fast;  // one per sequence, in layers with a memory
  LactState lact;
};

struct State {
  int64_t batch = 0;
  int64_t position = 0;  // tokens read so far
  std::vector<LayerState> layers;

  // The state before the first token.
  static State start(const ModelConfig& config, Run& run, int64_t batch);
  // Forgets the tokens: position, attention, GDN. Memories stay as they are.
  void reset_mixers(const ModelConfig& config, Run& run);
  // Forgets what the memories learned, and what is queued.
  void reset_memory(const ModelConfig& config, Run& run);
};

}  // namespace fwpkm
