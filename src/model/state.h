// What a model remembers of the tokens it has read so far: the state of token mixers, LaCT's fast
// weights among them, but not that of memories. Given to a forward pass, it is read and moved on.
#pragma once

#include <vector>

#include "model/config.h"
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
};

struct MixerState {
  Tensor delta;  // GDN: [B, value heads, key_dim, value_dim]
  Tensor tail;   // GDN: [B, conv-1, channels]
  KvCache cache;
  LactState lact;
};

struct State {
  int64_t batch = 0;
  int64_t position = 0;  // tokens read so far
  std::vector<MixerState> layers;

  // The state before the first token.
  static State start(const ModelConfig& config, Run& run, int64_t batch);
};

}  // namespace fwpkm
