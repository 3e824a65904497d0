#include "eval/probe.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace fwpkm {

GateTrace trace_gates(Session* session, std::span<const int32_t> tokens, bool learn) {
  const ModelConfig& config = session->model().config();
  std::map<int, std::vector<double>> gates;
  GateTrace trace;
  // Pairs that the memories had written before, and tokens that waited: where updates fall.
  const int64_t waiting = session->queued(), first_update = session->updates();
  int64_t written = 0;
  int first_layer = -1;
  Watch watch;
  watch.memory = [&](const MemoryRecord& record, std::span<const size_t>) {
    if (record.gates) {
      const std::vector<double> some = to_host(record.gates.view());
      gates[record.layer].insert(gates[record.layer].end(), some.begin(), some.end());
    }
    if (record.update && (first_layer < 0 || record.layer == first_layer)) {
      first_layer = record.layer;
      const bool slots = config.has_fwpkm(record.layer);
      const Tensor& losses = slots ? record.fwpkm.losses : record.mlp.losses;
      written += losses.dim(1);
      const int64_t lookahead = slots ? config.fwpkm.lookahead : config.fwmlp.lookahead;
      trace.updates.push_back({written + lookahead - waiting,
                               first_update + static_cast<int64_t>(trace.updates.size()) + 1});
    }
  };
  session->feed(tokens, learn, watch);
  for (auto& [layer, list] : gates) {
    trace.layers.push_back(layer);
    trace.gates.push_back(std::move(list));
  }
  return trace;
}

std::vector<Probe> probe_slots(Session* session, std::span<const int32_t> prompt, int64_t tokens,
                               std::span<const int32_t> expected) {
  const ModelConfig& config = session->model().config();
  require(config.has_any_fwpkm(), "probe", "{} has no memory with slots", config.name);
  require(!prompt.empty(), "probe", "there is no token to begin with; give a prompt");
  std::vector<Probe::Read> reads;  // of the last token
  Watch watch;
  watch.memory = [&](const MemoryRecord& record, std::span<const size_t>) {
    if (!record.fwpkm.slots || record.update) {
      return;
    }
    const std::vector<int32_t> slots = ints_to_host(record.fwpkm.slots.view());
    const std::vector<double> weights = to_host(record.fwpkm.weights.view());
    const auto count = static_cast<size_t>(record.fwpkm.slots.dim(2));
    const size_t last = weights.size() - count;
    std::erase_if(reads, [&](const Probe::Read& r) { return r.layer == record.layer; });
    for (size_t i = 0; i < count; ++i) {
      reads.push_back({.layer = record.layer,
                       .slot = slots[last + i],
                       .weight = weights[last + i],
                       .history = {}});
    }
  };
  std::vector<Probe> probes;
  session->feed(prompt, false, watch);
  int32_t token = prompt.back();
  for (int64_t i = 0; i < tokens; ++i) {
    Probe& probe = probes.emplace_back();
    probe.token = token;
    probe.position = session->position() - 1;
    probe.said = sample_token(session->logits(), {.temperature = 0}, 0);
    probe.needs = i < std::ssize(expected) ? expected[static_cast<size_t>(i)] : probe.said;
    probe.reads = reads;
    for (Probe::Read& read : probe.reads) {
      read.history = session->history(read.layer, read.slot);
      const auto kept = read.history.kept();
      read.hit = !kept.empty() && kept[0].target(config.fwpkm.lookahead) == probe.needs;
    }
    std::stable_sort(probe.reads.begin(), probe.reads.end(),
                     [](const Probe::Read& a, const Probe::Read& b) {
                       return a.layer != b.layer ? a.layer < b.layer : a.weight > b.weight;
                     });
    token = probe.said;
    session->feed({&token, 1}, false, watch);
  }
  return probes;
}

}  // namespace fwpkm
