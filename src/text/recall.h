// The built-in recall corpus: facts, and later questions whose answers stand nowhere else.
//
// A sequence is a row of items of four tokens:
//   fact k1 k2 v        states that the value of key (k1, k2) is v
//   question k1 k2 v    asks for it; v is the answer, which only the statement tells
// then `end` tokens up to the length asked for. Tokens:
//   0 end    1 fact    2 question    3.. the key alphabet    then the values
// Keys are distinct within a sequence; both tokens of a key come from one alphabet, so neither
// alone names it. Every value is drawn evenly and on its own: guessing scores 1 / values.
// text/recall_tokenizer.h has words for the tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "text/documents.h"

namespace fwpkm {

struct RecallSettings {
  // 127 items, 3 tokens left over; with the end of text that follows a document, exactly 512.
  int64_t tokens = 511;
  // 0: 55 of 100 items (70 of 127), and no more than half of all keys.
  int64_t facts = 0;
  int64_t keys = 64;    // tokens in the key alphabet: keys * keys keys
  int64_t values = 64;  // tokens that are values
};

enum RecallToken : int32_t { kRecallEnd, kRecallFact, kRecallQuestion, kRecallFirstKey };

inline constexpr int64_t kRecallItem = 4;

// Throws unless `keys` and `values` are in range.
void check_recall_counts(const RecallSettings& settings);
int64_t recall_vocab_size(const RecallSettings& settings);
// `facts` as it is used: the setting, or what it stands for where it is 0.
int64_t recall_facts(const RecallSettings& settings);

struct RecallSequence {
  std::vector<int32_t> tokens;
  struct Mark {
    int64_t position;  // of the answer; a model predicts it from the tokens before
    int64_t distance;  // tokens back to the place where this value was last seen with its key
    int32_t answer;
    int32_t readings;  // times it was seen
  };
  std::vector<Mark> marks;  // by position
  // Tokens of one reading of the facts; 0 where facts and questions are mixed.
  int64_t reading = 0;
};

// Facts and questions mixed; sequence `index` of a seed, whatever was made before. No fact is asked
// for again unless there are more questions than facts, and then only when all that were stated
// have been asked for (`distance` is then to the last question about it). Half of the questions
// pick any open fact evenly; half aim at a distance drawn log-uniformly, so that there are near
// ones as well.
RecallSequence recall_sequence(const RecallSettings& settings, uint64_t seed, int64_t index);

// All facts, read `readings` times in the same order, and then each asked for once, in shuffled
// order; settings.tokens only says how many facts there are where settings.facts is 0. Facts and
// questions do not depend on `readings`.
RecallSequence recall_readings(const RecallSettings& settings, uint64_t seed, int64_t index,
                               int64_t readings);

// recall_sequence(settings, seed, i), endless. Training takes the even i, validation the odd.
std::unique_ptr<DocumentSource> recall_documents(const RecallSettings& settings, uint64_t seed,
                                                 Split split = Split::kTrain);

}  // namespace fwpkm
