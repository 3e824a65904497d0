// A stream on a GPU, token by token: the work of a token is recorded once and then started as one.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"
#include "tensor/cuda.h"

namespace fwpkm {

class TokenGraph {
 public:
  // Whether a token's work is the same wherever the stream stands: on a GPU, without attention.
  static bool can(const Model& model);

  explicit TokenGraph(const Model& model);
  ~TokenGraph();

  // Reads a token on top of the state; with `learn`, memories queue it, and write when a chunk is
  // full. Hidden state [1, 1, D], good until the next call; so are records of updates.
  const Tensor& read(State& state, int32_t token, bool learn,
                     std::vector<MemoryRecord>* records = nullptr);

 private:
  static constexpr int kSlots = 64;  // tokens on their way to the GPU

  const Model& model_;
  Pool pool_;  // its blocks are the graph's: nobody else gets any
  Tensor token_, hidden_;
  std::vector<MemoryInput> inputs_;  // of the token
  int32_t* slots_;                   // pinned
  int next_ = 0;
  std::vector<const void*> recorded_;  // where the state lay
  std::unique_ptr<cuda::Graph> graph_;
  bool ran_ = false;
};

}  // namespace fwpkm
