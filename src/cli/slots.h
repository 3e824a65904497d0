// Slots as commands name and show them.
#pragma once

#include <span>
#include <utility>

#include "cli/open.h"

namespace fwpkm::cli {

// "1:4711": slot 4711 of the memory in layer 1. Whether there is one is for the session to say.
std::pair<int, int32_t> parse_slot(const std::string& text);

// Tokens as valid UTF-8 on one line.
std::string readable(std::span<const int32_t> tokens, const OpenModel& open);
// Position, strength, query, target, and the text around them, the query marked.
nlohmann::json write_json(const SlotWrite& write, const OpenModel& open);

}  // namespace fwpkm::cli
