// How memories are used: what training and evaluation report of them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/fast_state.h"

namespace fwpkm {

// How evenly reads spread over slots.
struct SlotUse {
  int64_t reads = 0;
  double collision = 0;  // share of reads of slots that were read more than once
  double coverage = 0;   // share of all slots that were read
  double kld = 0;        // divergence of their use from an even one, in nats
};

// `slots` are the slots read, in any order, of a table of `count`.
SlotUse slot_use(std::vector<int32_t> slots, int64_t count);

// Gathers records of passes, by layer.
class MemoryStats {
 public:
  static constexpr int kBins = 10;  // of the histogram of gates, over 0..1

  void add(const MemoryRecord& record, const ModelConfig& config);
  void clear() { layers_.clear(); }
  bool empty() const { return layers_.empty(); }

  // By layer: collision, coverage, kld, gate, gate_histogram, tokens (that had a gate),
  // memory_loss, addressing_loss; each where there is such a thing.
  nlohmann::json json() const;
  // Means over layers, for a line of text: "gate 0.31, memory loss 0.92"; empty without a memory.
  std::string brief() const;

 private:
  struct Layer {
    std::vector<int32_t> slots;
    int64_t table = 0;
    double gate_sum = 0;
    int64_t gates = 0;
    std::array<int64_t, kBins> bins{};
    double loss_sum = 0;
    int64_t losses = 0;
    double addressing_sum = 0;
    int64_t chunks = 0;
  };
  std::map<int, Layer> layers_;
};

}  // namespace fwpkm
