// Training steps on a GPU, queued without waiting for it.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tensor/cuda.h"
#include "train/step.h"

namespace fwpkm {

// A step is any number of accumulate(), then update(), then finish(). The first time that a kind of
// batch comes its kernels are started one by one, which settles memory; the second time they are
// recorded as a graph, and from then on started as one.
class GpuSteps {
 public:
  // Whether this model's steps can be queued: nothing in them needs the host.
  static bool can(const Model& model);

  // Both must outlive this. Without `graphs`, kernels are always started one by one.
  GpuSteps(Model& model, AdamW& optimizer, bool graphs = true);
  ~GpuSteps();
  GpuSteps(const GpuSteps&) = delete;
  GpuSteps& operator=(const GpuSteps&) = delete;

  // Queues forward and backward of a batch, and keeps what its memories wrote; arguments as in
  // accumulate_gradients. `window` as ForwardOptions::full_attention_window.
  void accumulate(std::span<const int32_t> tokens, int64_t batch, int64_t seq, double weight,
                  int64_t window = 0, int32_t hide_after = -1);
  // Queues clipping and the optimizer.
  void update(const AdamWSettings& settings, double clip);
  // Waits, but for the update of PKM's tables, which only starts here. The mean loss of the step's
  // batches, and the norm of their gradients before clipping: one that is not finite has changed no
  // weight.
  StepResult finish();

  // What the memories did in the batch that came last, once the GPU is done; good until the next
  // accumulate().
  std::span<const MemoryRecord> records() const { return last_->records; }

  // Gives back the tables of memories, which steps have in a form of their own (FwpkmStore) or are
  // still updating (AdamW::start_late), for others to use or save; the next step takes them again.
  void settle();

  // On the GPU, beside the model's and the optimizer's.
  size_t held_bytes() const;

 private:
  // Memory of the host that copies need not wait for.
  struct Pinned {
    explicit Pinned(size_t bytes);
    ~Pinned() { cuda::release_pinned(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void* data;
  };
  // Batches of one kind, and what is recorded of them.
  struct Kind {
    Tensor inputs, labels, starts, seed, loss;
    std::vector<MemoryRecord> records;
    std::vector<std::unique_ptr<Pinned>> staged;  // tokens of each batch of a step
    std::unique_ptr<cuda::Graph> graph;
    bool ran = false;
  };
  using Key = std::tuple<int64_t, int64_t, double, int64_t, bool, bool>;
  Kind& kind(const Key& key);
  void make_stores();
  // Takes the tables for batches of this size.
  void take_tables(int64_t batch, int64_t seq);
  void stage(Kind& kind, std::span<const int32_t> tokens, int64_t batch, int64_t seq,
             int32_t hide_after);

  Model& model_;
  AdamW& optimizer_;
  const bool graphs_;
  Pool pool_;  // its blocks are the graphs': nobody else gets any
  std::vector<std::unique_ptr<FwpkmStore>> stores_;  // by layer; empty, or null where there is none
  std::vector<FwpkmRows> stored_;                    // what they say
  std::map<Key, Kind> kinds_;
  Kind* last_ = nullptr;
  std::unique_ptr<cuda::Graph> update_;
  bool updated_ = false;
  std::vector<std::unique_ptr<Pinned>> losses_;
  size_t batches_ = 0;  // of this step
};

}  // namespace fwpkm
