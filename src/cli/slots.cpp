#include "cli/slots.h"

#include <charconv>

#include "base/error.h"

namespace fwpkm::cli {

std::string readable(std::span<const int32_t> tokens, const OpenModel& open) {
  StreamDecoder decoder(open.tokenizer);
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0 && token < open.tokenizer->vocab_size()) {
      text += decoder.push(token);
    }
  }
  text += decoder.finish();
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += "\\t";
    } else {
      line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return line;
}

std::pair<int, int32_t> parse_slot(const std::string& text) {
  int layer = -1;
  int32_t slot = -1;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, layer);
  const bool colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto second = colon ? std::from_chars(first.ptr + 1, end, slot) : first;
  require(colon && second.ec == std::errc() && second.ptr == end, "slot",
          "'{}' is not LAYER:SLOT, as in 1:4711", text);
  return {layer, slot};
}

nlohmann::json write_json(const SlotWrite& write, const OpenModel& open) {
  const auto lookahead = open.model->config().fwpkm.lookahead;
  const std::span<const int32_t> all(write.tokens);
  const int32_t query[] = {write.query()}, target[] = {write.target(lookahead)};
  return {{"position", write.position},
          {"strength", write.strength},
          {"query", readable(query, open)},
          {"target", readable(target, open)},
          {"query_token", write.query()},
          {"target_token", write.target(lookahead)},
          {"text", fmt::format("{}[{}]{}", readable(all.subspan(0, SlotWrite::kBefore), open),
                               readable(query, open),
                               readable(all.subspan(SlotWrite::kBefore + 1), open))}};
}

}  // namespace fwpkm::cli
