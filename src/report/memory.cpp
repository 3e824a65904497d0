#include "report/memory.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace fwpkm::report {
namespace {

constexpr const char *kSource = "source", *kMemory = "memory";

std::string spelled(int32_t token, const Tokenizer& tokenizer) {
  if (token < 0 || token >= tokenizer.vocab_size()) {
    return "";
  }
  return token == tokenizer.end_of_text() ? "<|endoftext|>"
                                          : std::string(tokenizer.bytes_of(token));
}

std::string spelled(std::span<const int32_t> tokens, const Tokenizer& tokenizer) {
  std::string text;
  for (const int32_t token : tokens) {
    text += spelled(token, tokenizer);
  }
  return text;
}

std::string key_of(int layer, int32_t slot) {
  return fmt::format("{}:{}", layer, slot);
}

}  // namespace

Tokens gate_text(const GateTrace& trace, std::span<const int32_t> tokens,
                 const Tokenizer& tokenizer) {
  Tokens text{.title = "Gates over the text", .strength_label = "gate"};
  for (const int layer : trace.layers) {
    text.layers.push_back(fmt::format("layer {}", layer));
  }
  for (size_t t = 0; t < tokens.size(); ++t) {
    Token& token = text.tokens.emplace_back();
    token.text = spelled(tokens[t], tokenizer);
    token.id = tokens[t];
    for (const std::vector<double>& gates : trace.gates) {
      token.strength.push_back(gates[t]);
    }
  }
  for (const GateTrace::Update& update : trace.updates) {
    text.updates.push_back({.before = static_cast<size_t>(update.before), .number = update.number});
  }
  return text;
}

Tokens source_text(std::span<const int32_t> tokens, int64_t first, const Tokenizer& tokenizer) {
  Tokens text{
      .title = "The text that was read", .name = kSource, .memory = kMemory, .first = first};
  for (const int32_t token : tokens) {
    text.tokens.push_back({.text = spelled(token, tokenizer), .id = token});
  }
  return text;
}

Tokens probe_text(std::span<const Probe> probes, int64_t lookahead, const Tokenizer& tokenizer) {
  Tokens text{.title = "What was said, and the slots that each token was made from",
              .memory = kMemory,
              .strength_label = "share of reads that hit"};
  text.layers.emplace_back("all memories");
  std::map<std::string, const SlotHistory*> slots;
  for (const Probe& probe : probes) {
    Token& token = text.tokens.emplace_back();
    token.text = spelled(probe.said, tokenizer);
    token.id = probe.said;
    token.needs = probe.needs;
    double hits = 0;
    for (const Probe::Read& read : probe.reads) {
      hits += read.hit ? 1 : 0;
      token.reads.push_back({.slot = key_of(read.layer, read.slot), .weight = read.weight});
      slots[token.reads.back().slot] = &read.history;
    }
    token.mark = hits > 0 ? "HIT" : "";
    token.note = fmt::format("made after \"{}\"; {} of {} slots stored \"{}\"",
                             spelled(probe.token, tokenizer), hits, probe.reads.size(),
                             spelled(probe.needs, tokenizer));
    token.strength.push_back(probe.reads.empty() ? std::numeric_limits<double>::quiet_NaN()
                                                 : hits / static_cast<double>(probe.reads.size()));
  }
  for (const auto& [key, history] : slots) {
    Slot& slot = text.slots.emplace_back();
    slot.key = key;
    slot.count = history->count;
    for (const SlotWrite& write : history->kept()) {
      const std::span<const int32_t> around(write.tokens);
      slot.writes.push_back({.query = spelled(write.query(), tokenizer),
                             .target = spelled(write.target(lookahead), tokenizer),
                             .target_id = write.target(lookahead),
                             .position = write.position,
                             .strength = write.strength,
                             .before = spelled(around.first(SlotWrite::kBefore), tokenizer),
                             .after = spelled(around.subspan(SlotWrite::kBefore + 1), tokenizer),
                             .text = kSource});
    }
  }
  return text;
}

}  // namespace fwpkm::report
