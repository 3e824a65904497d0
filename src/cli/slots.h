// Slots as commands name and show them.
#pragma once

#include <utility>

#include "cli/open.h"

namespace fwpkm::cli {

// "1:4711": slot 4711 of the memory in layer 1. Whether there is one is for the session to say.
std::pair<int, int32_t> parse_slot(const std::string& text);

// Position, strength, query, target, and the text around them, the query marked.
nlohmann::json write_json(const SlotWrite& write, const OpenModel& open);

}  // namespace fwpkm::cli
