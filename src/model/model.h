// The whole model, written once as a forward pass.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/fast_state.h"
#include "model/fingerprint.h"
#include "model/lact.h"
#include "model/parameters.h"
#include "model/rope_tables.h"
#include "model/state.h"
#include "tensor/tensor.h"

namespace fwpkm {

struct ForwardOptions {
  // States to go on from, which together have as many sequences as the batch has rows, in this
  // order; none reads sequences from their start. They may stand at different positions. Gradients
  // stop at a state, so recording with one is refused for attention, LaCT and memory layers.
  std::vector<State*> states;
  // pSWA: restricts full attention to a window in this pass (0: not).
  int64_t full_attention_window = 0;
  // [B,T] int32: where in its row each token's document begins. If given, no mixer sees across the
  // border of a document. Not together with a state, and not in a LaCT model.
  Tensor starts;
  // False: fast-weight memories are only read. On a stream the tokens never enter the queue.
  bool write_memory = true;
  // Without a state: what earlier sequences of the same rows left, one entry per layer; may be
  // empty.
  std::span<const RowMemory> rows;
  // Gets what the memories of this pass did; without a state, to be kept by commit().
  std::vector<MemoryRecord>* records = nullptr;
  // Without a state: of each layer, sub-keys and slots to be taken in place of the best; may be
  // empty.
  std::span<const FwpkmSelection> selections;
  // Without a state: of each layer, how its table lies while tables are lent; may be empty.
  std::span<const FwpkmRows> stored;
  // While tables are lent: called before PKM's are read, for that to wait until they are written.
  std::function<void()> await_tables;
  // With one state of one sequence: what the memories are to learn is handed out here, for
  // Model::learn, and the state's memories do not change.
  std::vector<MemoryInput>* inputs = nullptr;
};

class Model {
 public:
  // `gradients`: make room for gradients, to train. `dry`: for planning memory only; weights are
  // address space that must not be touched. `file`: where weights may stay, and `beside`: memory
  // that others will want, see Parameters.
  Model(ModelConfig config, Device device, bool gradients, bool dry = false,
        std::shared_ptr<const SafeTensors> file = nullptr, size_t beside = 0);

  const ModelConfig& config() const { return config_; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }

  // tokens [B,T] int32 -> final hidden states [B,T,D], normalised and ready for the output layer.
  // Traces "trace.<layer>.hidden" after each layer and, of a memory, what golden files hold.
  Tensor hidden(Run& run, const Tensor& tokens, const ForwardOptions& options = {}) const;
  // The state before the first token of `batch` sequences. All states of a model keep the rows they
  // write in one place, so that forks share them.
  State start(Run& run, int64_t batch = 1) const {
    return State::start(config_, run, batch, arenas_);
  }
  // Writes all complete pairs of the streams' memories as one update; the newest tokens, whose
  // pairs are not complete, stay queued. `records` as in ForwardOptions.
  void flush(Run& run, State* state, std::vector<MemoryRecord>* records = nullptr) const;
  // Queues what a pass handed out (ForwardOptions::inputs); memories whose queue is full write.
  void learn(Run& run, std::span<const MemoryInput> inputs, State* state,
             std::vector<MemoryRecord>* records = nullptr) const;
  // Pools for those who run this model on states, from any thread.
  PoolSet& pools() const { return *pools_; }
  // hidden [B,T,D] -> logits [B,T,V].
  Tensor logits(Run& run, const Tensor& hidden) const;
  // Computed once, so weights must not change after the first call; of a model with gradients at
  // each call.
  ModelFingerprint fingerprint() const { return fingerprint_->get(config_, parameters_); }
  // The table of token vectors, which is the output layer too.
  const Tensor& embedding_table() const { return embedding_; }

 private:
  struct Layer;
  struct Rows;
  Tensor attention(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual, int index,
                   const ForwardOptions& options, std::span<const Rows> rows) const;
  Tensor gdn(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual, int index,
             const ForwardOptions& options, std::span<const Rows> rows) const;
  Tensor mlp(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual) const;
  Tensor pkm(Run& run, const Layer& layer, const Tensor& x, const Tensor& residual,
             const ForwardOptions& options) const;
  std::vector<Rows> rows_of(Run& run, const Tensor& tokens, const ForwardOptions& options) const;

  // memory_layer.cpp
  struct MemoryShape {
    int64_t chunk, lookahead;
  };
  MemoryShape memory_shape(int layer) const;
  Tensor memory(Run& run, const Layer& layer, const Tensor& h, int index,
                const ForwardOptions& options) const;
  Tensor sequence_memory(Run& run, const Layer& layer, int index, const Tensor& q, const Tensor& v,
                         const Tensor& g, const ForwardOptions& options) const;
  Tensor stream_memory(Run& run, const Layer& layer, int index, const Tensor& q, const Tensor& v,
                       const Tensor& g, const ForwardOptions& options) const;
  Tensor read_stream(Run& run, const Layer& layer, int index, const FastStream& stream,
                     const Tensor& q, const Tensor& v, const ForwardOptions& options) const;
  void queue_tokens(Run& run, const Layer& layer, const MemoryInput& input, int64_t row,
                    FastStream* stream, std::vector<MemoryRecord>* records) const;
  void update_stream(Run& run, const Layer& layer, int index, int64_t row, FastStream* stream,
                     int64_t pairs, std::vector<MemoryRecord>* records) const;
  std::array<Tensor, 6> stream_mlp(Run& run, const Layer& layer, const FastStream& stream) const;
  void trace_memory(Run& run, int index, const Tensor& g, const Tensor& losses) const;

  ModelConfig config_;
  Parameters parameters_;
  Tensor embedding_, final_norm_;
  std::vector<std::shared_ptr<const Layer>> layers_;
  std::vector<LactLayer> lact_layers_;             // in place of layers_ in a LaCT model
  std::vector<std::shared_ptr<RowArena>> arenas_;  // of the layers that have a FwPKM
  std::shared_ptr<PoolSet> pools_;
  std::shared_ptr<RopeTables> ropes_ = std::make_shared<RopeTables>();
  std::shared_ptr<FingerprintOnce> fingerprint_ = std::make_shared<FingerprintOnce>();
};

// Refuses tokens outside the vocabulary, telling the first one and where it stands.
void require_tokens(std::span<const int32_t> tokens, const ModelConfig& config, bool allow_none);

}  // namespace fwpkm
