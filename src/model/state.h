// What a model remembers of the tokens it has read so far: the state of its token mixers and of its
// fast-weight memories. Given to a forward pass, it is read and moved on.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
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

  // Appends k, v [B,T,kv heads,head_dim]. With a window, rows that no later query can see go when
  // there are more than kSlack of them; which ones are there never depends on the capacity.
  void append(Run& run, const Tensor& new_k, const Tensor& new_v, int64_t window);
  // After a call: no more than kSlack rows that nobody can see.
  void trim(Run& run, int64_t window);
  // The rows in use.
  Tensor keys() const { return k.part(k.view().slice(1, 0, length)); }
  Tensor values() const { return v.part(v.view().slice(1, 0, length)); }

  static constexpr int64_t kSlack = 64;
  // Rows to make room for where `length` are needed.
  static int64_t capacity(int64_t length, int64_t window) {
    return window > 0 ? std::max(length, window - 1 + kSlack) : std::max<int64_t>(64, 2 * length);
  }

 private:
  // The last `keep` rows in memory of their own, with room for `capacity`.
  void move(Run& run, int64_t keep, int64_t capacity);
  friend struct State;
};

struct LayerState {
  Tensor delta;  // GDN: [B, value heads, key_dim, value_dim]
  Tensor tail;   // GDN: [B, conv-1, channels]
  KvCache cache;
  std::vector<FastStream> fast;  // one per sequence, in layers with a memory
  LactState lact;
};

// A copy of a state is a fork: it shares all memory with the first, and whoever moves on first
// copies what it changes. Different states may be used in different threads, forks of one too.
struct State {
  int64_t batch = 0;
  int64_t position = 0;  // tokens read so far
  std::vector<LayerState> layers;

  // The state before the first token. `arenas`: of each layer, where the rows that its memory
  // writes go; null or left out: an arena of the state's own.
  static State start(const ModelConfig& config, Run& run, int64_t batch,
                     std::span<const std::shared_ptr<RowArena>> arenas = {});
  // Forgets the tokens: position, attention, GDN. Memories stay as they are.
  void reset_mixers(const ModelConfig& config, Run& run);
  // Forgets what the memories learned, and what is queued.
  void reset_memory(const ModelConfig& config, Run& run);
  // Before a call: copies what it changes in place and a fork still has. `queues`: of memories too.
  void own(Run& run, bool queues);
};

}  // namespace fwpkm
