// What is inside a Memory.
#pragma once

#include <memory>
#include <vector>

#include "memory/overlay.h"
#include "memory_api/memory.h"
#include "ops/fwpkm/fwpkm.h"
#include "tensor/tensor.h"

namespace fwpkm {

// Throws if a memory of these settings cannot be.
void check_settings(const Memory::Settings& settings);

struct Memory::State {
  explicit State(const Settings& settings);
  State(const State& other);

  void draw_keys();
  // Reads `count` keys; writes the values v too, unless they are null. The result must not outlive
  // what the run's pool owns.
  FwpkmResult call(Run& run, const float* q, const float* v, const float* g, int64_t count) const;
  void read(std::span<const float> keys, float* values, Reading* more) const;

  Settings settings;
  std::vector<float> keys;   // [2 * n_subkeys, key_dim / 2]
  std::vector<float> zeros;  // [value_dim]: what a slot holds that nobody wrote
  Overlay overlay;
  mutable PoolSet pools{Device::cpu()};
};

}  // namespace fwpkm
