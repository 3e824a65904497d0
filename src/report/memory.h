// Texts with what memories did at each token.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "eval/probe.h"
#include "report/page.h"
#include "text/tokenizer.h"

namespace fwpkm::report {

// A text with the gates of each layer as colours, and the updates.
Tokens gate_text(const GateTrace& trace, std::span<const int32_t> tokens,
                 const Tokenizer& tokenizer);

// A text that was read from token number `first` of the session on; slots lead back to it.
Tokens source_text(std::span<const int32_t> tokens, int64_t first, const Tokenizer& tokenizer);

// Tokens that were made, with the slots that each was made from.
Tokens probe_text(std::span<const Probe> probes, int64_t lookahead, const Tokenizer& tokenizer);

}  // namespace fwpkm::report
