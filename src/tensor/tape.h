// The tape: the list of op calls of a forward pass, and their replay backward.
#pragma once

#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace fwpkm {

class Tape {
 public:
  struct Call {
    const Op* op;
    std::vector<Tensor> in, out, saved;
    Attributes attributes;
    bool late = false;                           // forward may have left work,
    std::shared_ptr<Block> workspace = nullptr;  // and this is where
  };

  Tape() = default;
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  void record(Call call) { calls_.push_back(std::move(call)); }
  size_t size() const { return calls_.size(); }

  // Replays all calls backward. `seeds` are gradients of outputs, given as tensors of the same
  // shape. Gradients of parameters are added to; those of activations live only as long as they
  // are needed, and values are freed on the way. The tape is empty afterwards.
  void backward(Pool& pool, std::span<const std::pair<Tensor, Tensor>> seeds);
  void backward(Pool& pool, const Tensor& output, const Tensor& seed);
  void clear();

  // Keeps the gradient of an activation so that it can be read after backward.
  void keep_grad(const Tensor& tensor) { kept_.push_back(tensor); }

 private:
  std::vector<Call> calls_;
  std::vector<Tensor> kept_;
};

}  // namespace fwpkm
