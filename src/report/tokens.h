// A text as tokens, and the slots of a memory that they read and wrote.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fwpkm::report {

struct SlotRead {
  std::string slot{};  // a Slot's key
  double weight = 0;
};

struct Token {
  std::string text{};
  int64_t id = -1;                 // in the vocabulary; -1: not shown
  int64_t needs = -1;              // the id of the token that it should have found in the memory
  std::string mark{};              // such as "HIT": shown beside the token; same marks, same colour
  std::string note{};              // a line for the panel
  std::vector<double> strength{};  // one for each layer, or none; NaN: nothing known
  std::vector<SlotRead> reads{};
};

// A write into a slot: `query` found it, and it was moved towards the value of `target`.
struct Write {
  std::string query{}, target{};
  int64_t target_id = -1;  // a HIT for tokens that need this id
  int64_t position = -1;   // of the query's token
  double strength = 0;
  std::string before{}, after{};  // text around the query's token, which is not in it
  std::string text{};             // the name of the Tokens that the position counts in
};

struct Slot {
  std::string key{};            // unique in its memory, such as "1:4711"
  int64_t count = -1;           // writes that it has seen in all; -1: not known
  std::vector<Write> writes{};  // the last ones, newest first
};

// Fast weights were updated before this token.
struct Update {
  size_t before = 0;  // index of a token; tokens.size(): at the end
  int64_t number = 0;
};

// Several texts on a page may share a memory: slots that any of them brings are known to all, so
// that an answer's slots lead back to the text that wrote them.
struct Tokens {
  std::string title{};
  std::string name{};                 // what writes call this text
  std::string memory{};               // whose slots these are
  int64_t first = 0;                  // position of the first token
  std::string strength_label{};       // what the colour means, such as "gate"
  std::vector<std::string> layers{};  // names, such as "layer 1"
  double low = 0, high = 1;           // strengths of the palest and of the strongest colour
  std::vector<Token> tokens{};
  std::vector<Update> updates{};
  std::vector<Slot> slots{};
};

nlohmann::json to_json(const Tokens& tokens);

}  // namespace fwpkm::report
