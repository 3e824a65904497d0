#include "model/memory_stats.h"

#include <algorithm>
#include <cmath>

namespace fwpkm {

SlotUse slot_use(std::vector<int32_t> slots, int64_t count) {
  SlotUse use;
  use.reads = static_cast<int64_t>(slots.size());
  if (slots.empty()) {
    return use;
  }
  std::sort(slots.begin(), slots.end());
  const auto total = static_cast<double>(slots.size());
  int64_t used = 0, shared = 0;
  for (size_t begin = 0; begin < slots.size();) {
    size_t end = begin + 1;
    while (end < slots.size() && slots[end] == slots[begin]) {
      ++end;
    }
    const auto reads = static_cast<double>(end - begin);
    ++used;
    shared += end - begin > 1 ? static_cast<int64_t>(end - begin) : 0;
    use.kld += reads / total * std::log(reads / total * static_cast<double>(count));
    begin = end;
  }
  use.collision = static_cast<double>(shared) / total;
  use.coverage = static_cast<double>(used) / static_cast<double>(count);
  return use;
}

void MemoryStats::add(const MemoryRecord& record, const ModelConfig& config) {
  Layer& layer = layers_[record.layer];
  const bool fwpkm = config.has_fwpkm(record.layer);
  if (record.fwpkm.slots && !record.update) {
    layer.table = config.fwpkm.slots();
    const std::vector<int32_t> slots = ints_to_host(record.fwpkm.slots.view());
    layer.slots.insert(layer.slots.end(), slots.begin(), slots.end());
  }
  if (record.fwpkm.keys && config.fwpkm.addr_loss) {
    for (const double x : to_host(record.fwpkm.addressing.view())) {
      layer.addressing_sum += x;
      ++layer.chunks;
    }
  }
  if (record.gates) {
    for (const double g : to_host(record.gates.view())) {
      layer.gate_sum += g;
      ++layer.gates;
      ++layer.bins[static_cast<size_t>(std::clamp(static_cast<int>(g * kBins), 0, kBins - 1))];
    }
  }
  // Losses of tokens that wrote.
  const bool wrote =
      fwpkm ? static_cast<bool>(record.fwpkm.keys) : record.update || record.mlp.losses;
  const Tensor& losses = fwpkm ? record.fwpkm.losses : record.mlp.losses;
  if (wrote && losses) {
    const int64_t chunk = fwpkm ? config.fwpkm.chunk : config.fwmlp.chunk;
    const int64_t lookahead = fwpkm ? config.fwpkm.lookahead : config.fwmlp.lookahead;
    const int64_t time = losses.dim(1);
    const std::vector<double> all = to_host(losses.view());
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t t = static_cast<int64_t>(i) % time;
      if (record.update || pair_in_chunk(t, time, chunk, lookahead)) {
        layer.loss_sum += all[i];
        ++layer.losses;
      }
    }
  }
}

nlohmann::json MemoryStats::json() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [number, layer] : layers_) {
    nlohmann::json line = nlohmann::json::object();
    if (!layer.slots.empty()) {
      const SlotUse use = slot_use(layer.slots, layer.table);
      line["collision"] = use.collision;
      line["coverage"] = use.coverage;
      line["kld"] = use.kld;
    }
    if (layer.gates > 0) {
      line["tokens"] = layer.gates;
      line["gate"] = layer.gate_sum / static_cast<double>(layer.gates);
      for (const int64_t n : layer.bins) {
        line["gate_histogram"].push_back(static_cast<double>(n) / static_cast<double>(layer.gates));
      }
    }
    if (layer.losses > 0) {
      line["memory_loss"] = layer.loss_sum / static_cast<double>(layer.losses);
    }
    if (layer.chunks > 0) {
      line["addressing_loss"] = layer.addressing_sum / static_cast<double>(layer.chunks);
    }
    all[std::to_string(number)] = std::move(line);
  }
  return all;
}

std::string MemoryStats::brief() const {
  double gate = 0, loss = 0;
  int64_t gates = 0, losses = 0;
  for (const auto& [number, layer] : layers_) {
    gate += layer.gate_sum;
    gates += layer.gates;
    loss += layer.loss_sum;
    losses += layer.losses;
  }
  std::string text;
  if (gates > 0) {
    text = fmt::format("gate {:.2f}", gate / static_cast<double>(gates));
  }
  if (losses > 0) {
    text += fmt::format("{}memory loss {:.3f}", text.empty() ? "" : ", ",
                        loss / static_cast<double>(losses));
  }
  return text;
}

}  // namespace fwpkm
