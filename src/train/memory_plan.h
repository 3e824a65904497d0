// How much memory a training run will take, before its first step.
#pragma once

#include <cstdint>
#include <string>

#include "model/config.h"
#include "tensor/pool.h"

namespace fwpkm {

struct MemoryPlan {
  int64_t weights = 0, gradients = 0, optimizer = 0;  // bytes
  int64_t activations = 0;   // most that one micro batch holds at once, workspace included
  int64_t stores = 0;        // what a GPU keeps beside tables of fast weights
  int64_t available = 0;     // what the machine has free now
  int64_t largest_rows = 0;  // rows of a micro batch that fit beside the rest
  int64_t total() const { return weights + gradients + optimizer + activations + stores; }
};

// Runs the whole step with kernels switched off, so it takes the step's own word for it and costs
// no memory to speak of.
MemoryPlan plan_memory(const ModelConfig& config, Device device, int64_t rows, int64_t seq);

// What a run on a GPU takes beside weights, gradients and optimizer; 0 elsewhere. See Parameters.
size_t room_beside(const ModelConfig& config, Device device, int64_t rows, int64_t seq);

// A table for people.
std::string describe(const MemoryPlan& plan, int64_t rows);

}  // namespace fwpkm
