// Looking at memories while a session reads: gates, and slots with what they stored.
#pragma once

#include <span>
#include <vector>

#include "session/session.h"

namespace fwpkm {

// How open the gates are at each token of a text.
struct GateTrace {
  std::vector<int> layers;                 // that have a memory with a gate
  std::vector<std::vector<double>> gates;  // of each of them, for each token
  struct Update {
    int64_t before = 0;  // the token, counted from the text's first, that came next
    int64_t number = 0;  // counted from 1, of the session
  };
  std::vector<Update> updates;
};

// Lets the session read a text.
GateTrace trace_gates(Session* session, std::span<const int32_t> tokens, bool learn = true);

// What one token found in the memories, and what these slots hold.
struct Probe {
  int32_t token = -1;     // that was read
  int32_t needs = -1;     // that should come next: the expected one, else the one that was drawn
  int32_t said = -1;      // that was drawn next
  int64_t position = -1;  // of the token in its session
  struct Read {
    int layer = 0;
    int32_t slot = 0;
    double weight = 0;
    SlotHistory history;  // empty if the session keeps none
    bool hit = false;     // the last write stored the token that is needed
  };
  std::vector<Read> reads;  // by layer, then by falling weight
};

// Reads a prompt and goes on for `tokens` tokens, the likeliest each time; nothing is written. A
// probe for each token that was made: of the token before it, whose reads helped to make it.
// `expected`: what should be said; where it ends, what is said counts.
std::vector<Probe> probe_slots(Session* session, std::span<const int32_t> prompt, int64_t tokens,
                               std::span<const int32_t> expected = {});

}  // namespace fwpkm
