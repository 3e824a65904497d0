// AdamW with decoupled decay, in PyTorch's order of operations:
//
//   p <- p (1 - lr decay);  m <- b1 m + (1-b1) g;  v <- b2 v + (1-b2) g^2
//   p <- p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/parameters.h"
#include "train/adamw_gpu.h"

namespace fwpkm {

struct AdamWSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // on matrices only
};

class AdamW {
 public:
  // Keeps two numbers per trainable parameter. `parameters` must outlive this and have gradients.
  // With `one_batch`, steps have one batch each and large gradients may have 16 bits
  // (Parameters::narrow_gradients).
  explicit AdamW(Parameters* parameters, bool one_batch = false);

  // Euclidean norm of all gradients. Summed in blocks of a fixed size, so it does not depend on
  // the number of threads.
  double gradient_norm() const;
  // One update with the gradients multiplied by `scale`. Leaves all gradients at zero or, on a GPU,
  // marked as to be overwritten: zeros would have to be written and read again.
  void step(const AdamWSettings& settings, double scale);

  // On a GPU a step can be queued without waiting for it: begin() counts it and sends its numbers,
  // enqueue() asks for the norm, for clipping to `clip` (0: none) and for the update, the same work
  // for all steps. Gradients that are not finite change nothing. last_norm() is the norm before
  // clipping, once the GPU is done.
  //
  // enqueue() leaves out PKM's tables: start_late() waits and starts their update, beside what
  // comes next, and await_late() lets what comes next wait for it (AdamWGpu). Meanwhile they count
  // as lent (Parameters::lend_tables).
  void begin(const AdamWSettings& settings, double clip);
  void enqueue();
  void start_late();  // once for each begin(); more do nothing
  void await_late() const;
  double last_norm() const;

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // Calls fn(name of the parameter, first moments, second moments) for each parameter.
  template <typename Fn>
  void for_moments(Fn&& fn) const {
    require_settled();
    for (const Slot& slot : slots_) {
      fn(parameters_->specs()[slot.index].name, slot.first, slot.second);
    }
  }
  size_t bytes() const;

 private:
  AdamWConstants constants(const AdamWSettings& settings, double scale);
  void require_settled() const;
  struct Slot {
    size_t index;  // in the parameter table
    View first, second;
  };
  Parameters* parameters_;
  Pool pool_;
  std::shared_ptr<Block> moments_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
  std::unique_ptr<AdamWGpu> gpu_;
  bool late_due_ = false;  // begin() came, start_late() did not yet
};

}  // namespace fwpkm
