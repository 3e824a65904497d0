// The optimizer on a GPU: one launch for all parameters, constants in memory of the GPU, so that
// the same recorded work serves all steps.
#pragma once

#include <memory>
#include <vector>

#include "tensor/view.h"
#include "train/adamw_kernels.h"

namespace fwpkm {

class AdamWGpu {
 public:
  // One parameter: its master, its copy of 16 bits (or an empty view), gradient (float or bf16)
  // and moments; and where the number of sums of squares of the gradient and then those sums are
  // (or null): if there are any, the norm does not read the gradient. `late`: a table that the next
  // step does not read at once.
  struct Part {
    View weight, half, grad, first, second;
    bool decay;
    const double* squares;
    bool late;
  };
  explicit AdamWGpu(const std::vector<Part>& parts);
  ~AdamWGpu();

  // The numbers of the next update, once the one before is done; `keep` is for parameters that
  // decay. Gradients are multiplied by gradient_scale and by what brings their norm down to `clip`
  // (0: nothing does).
  void send(const AdamWConstants& constants, double clip);
  void enqueue_norm();
  void enqueue_update();  // of all parts that are not late
  // Waits, then starts the update of the late parts beside all that comes.
  void start_late();
  // What the calling thread asks for from now on waits for that update; in a graph, for the one
  // that was started last when the graph is.
  void await_late() const;
  // Waits.
  double norm() const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace fwpkm
