// Fast weights in motion: what a stream has learned, what a batch is about to write, and keeping
// it.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "memory/overlay.h"
#include "model/config.h"
#include "ops/fast_mlp/fast_mlp.h"
#include "ops/fwpkm/store.h"
#include "tensor/tensor.h"

namespace fwpkm {

class Parameters;

// The memory of one layer in one stream. Weights of the model are only read; what the stream wrote
// lies here.
struct FastStream {
  Tensor keys;                // FwPKM: moved sub-keys; empty while they are the model's
  Overlay overlay;            // FwPKM: rows that were written
  std::array<Tensor, 6> mlp;  // FwMLP; empty while they are the model's
  // Tokens whose pair is not written yet: [chunk + lookahead, ..], the first `queued` count.
  Tensor q, v, g;
  int64_t queued = 0;
  int64_t updates = 0;  // so far
  int64_t written = 0;  // pairs, so far
};

// What a pass over whole sequences did in one layer's memory. Nothing has happened to the model
// yet. On streams: what was read, the gates, or an update that has happened to the stream.
struct MemoryRecord {
  int layer = 0;
  bool update = false;  // of a stream: every token wrote; reads are not counted again
  int64_t row = 0;      // of an update or a read of a stream: the sequence of the batch
  // Of an update: pairs that the stream had written before. Of a read: its first token in the call.
  int64_t first = 0;
  Tensor strengths;  // of an update: [1, pairs] the gates that the writes had; or empty
  Tensor gates;      // [B, T] or empty
  FwpkmResult fwpkm;
  FastMlpResult mlp;
};

// What the memory of one layer is to learn from tokens of a stream: [1, T, ..], g [1, T] or empty.
struct MemoryInput {
  int layer = 0;
  Tensor q, v, g;
};

// Fast weights of a layer that belong to the rows of a batch and outlive a sequence (`carry`).
struct RowMemory {
  Overlay overlay;            // FwPKM
  std::array<Tensor, 6> mlp;  // FwMLP: [rows, ..]; empty before the first write
};

// Whether token t of a sequence of `time` tokens writes in training: its pair lies in its chunk.
inline bool pair_in_chunk(int64_t t, int64_t time, int64_t chunk, int64_t lookahead) {
  return t + lookahead < std::min(time, (t / chunk + 1) * chunk);
}

// What fast weights are called under "model.layers.<l>.".
inline constexpr const char* kFwmlpNames[] = {"fwpkm.w_up",   "fwpkm.b_up",   "fwpkm.w_gate",
                                              "fwpkm.b_gate", "fwpkm.w_down", "fwpkm.b_down"};

FwpkmSettings fwpkm_settings(const ModelConfig& config);
FastMlpSettings fwmlp_settings(const ModelConfig& config);

// Puts the rows that a pass wrote over those that were there.
void put_rows(const FwpkmResult& result, Overlay* overlay);

// Keeps what a pass wrote: keys, and shared values, in the model; values of rows in `rows` (one
// entry per layer) unless it is empty or `carry` is "sequence". Shared values of a layer that has a
// store stay in it. Must come after backward: gradients need the weights that were read.
void commit(std::span<const MemoryRecord> records, const ModelConfig& config,
            Parameters* parameters, std::span<RowMemory> rows = {},
            std::span<const std::unique_ptr<FwpkmStore>> stores = {});

}  // namespace fwpkm
