// How many facts of the built-in recall corpus a model can tell again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/memory_stats.h"
#include "model/model.h"
#include "text/recall.h"

namespace fwpkm {

struct RecallOptions {
  RecallSettings corpus;
  std::vector<int64_t> readings = {1, 2, 4};  // may be empty
  bool freeze = false;                        // memories are only read, never written
  int64_t sequences = 32;
  int64_t batch = 8;  // streams at a time
  uint64_t seed = 1;  // held-out sequences of training with this seed
  int64_t show = 0;   // questions to keep as examples: beyond the window, and written
};

struct RecallShare {
  int64_t questions = 0;
  int64_t right = 0;
  // Nothing without questions.
  std::optional<double> recall() const {
    return questions == 0
               ? std::nullopt
               : std::optional(static_cast<double>(right) / static_cast<double>(questions));
  }
  void add(bool is_right) {
    ++questions;
    right += is_right ? 1 : 0;
  }
};

struct RecallResult {
  int64_t window = -1;  // tokens that attention sees; 0 without, -1: all
  int64_t chunk = 0;    // pairs between updates of a memory
  double chance = 0;    // of a guess
  RecallShare within_window;
  // Beyond the window, and written before the question was read.
  RecallShare beyond_window;
  // Beyond the window, but still queued.
  RecallShare not_written;
  struct Distance {
    int64_t from, to;  // tokens back to the fact, both counted
    RecallShare share;
  };
  std::vector<Distance> by_distance;
  struct Readings {
    int64_t readings;
    RecallShare all, beyond_window;
  };
  std::vector<Readings> by_readings;
  struct Example {
    int32_t key[2];    // tokens
    int32_t answer;    // what was stated
    int32_t expected;  // what the model says
    int64_t distance;
  };
  std::vector<Example> examples;
  MemoryStats memory;  // of the mixed sequences
};

// Each sequence is a stream of its own with a memory that starts as the model's. First sequences as
// in training, facts and questions mixed, read once. Then, for each number of readings: all facts
// so many times, mixers cleared before each reading and memories flushed after it, then a question
// on each, while nothing is written.
RecallResult evaluate_recall(const Model& model, const RecallOptions& options,
                             const std::function<void(double done)>& progress = {});

}  // namespace fwpkm
