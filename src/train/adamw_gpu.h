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
  // (or null): if there are any, the norm does not read the gradient.
  struct Part {
    View weight, half, grad, first, second;
    bool decay;
    const double* squares;
  };
  explicit AdamWGpu(const std::vector<Part>& parts);
  ~AdamWGpu();

  // The numbers of the next update, once the one before is done; `keep` is for parameters that
  // decay. Gradients are multiplied by gradient_scale and by what brings their norm down to `clip`
  // (0: nothing does).
  void send(const AdamWConstants& constants, double clip);
  void enqueue_norm();
  void enqueue_update();
  // Waits.
  double norm() const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace fwpkm
