// Needles in haystacks: does a model find a number that stood somewhere in a long text, after it
// has read the text once or several times?
//
// A sample is read n times: the state of attention and GDN is cleared before each reading, and
// memories write while reading and are flushed after it. What is left after the n-th reading, of
// mixers too, reads the question and answers greedily; nothing is written meanwhile. One pass
// serves all n: questions are asked to forks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/reading.h"

namespace fwpkm {

struct NiahOptions {
  std::filesystem::path data;                    // as in text/haystack.h
  std::vector<int64_t> readings = {1, 2, 3, 4};  // how often contexts were read when asked
  bool freeze = false;                           // memories are only read, never written
  bool carry = false;   // memories are not reset between samples, which come one after the other
  int64_t chunk = 0;    // tokens between updates; 0: one update, by the flush after each reading
  int64_t batch = 0;    // samples at a time; 0: by their length
  int64_t samples = 0;  // of each length; 0: all
  std::filesystem::path out;  // folder as in eval/folder.h; empty keeps nothing
  bool start_over = false;
};

struct NiahScore {
  bool exact = false, candidate = false;
  double digit = 0;
};
// What an answer is worth. `losses`: how unlikely each needle's value is; the right one is number
// `own`. A tie is not found.
NiahScore judge_answer(std::string_view said, std::string_view answer,
                       std::span<const double> losses, size_t own);

// Bins of depth in the results.
inline constexpr int kDepthBins = 10;

// `about` says of what model (about_evaluated). The result is an object of kind "niah":
//
//   groups   for each length and number of readings, of all samples (depth_bin null) and of each
//            tenth of the depth that has samples: length, readings, depth_bin, samples, and
//            exact      share of answers that begin with the whole value
//            digit      share of the value's characters that are right, each in its place
//            candidate  share of samples in which the right value is likelier than that of every
//                       other needle
//   guess    what guessing would give: exact, digit, candidate
//
// `progress` gets how much is done, 0 to 1, and a note.
nlohmann::json evaluate_niah(
    const ModelWithChunk& open, const std::shared_ptr<const Tokenizer>& tokenizer,
    const nlohmann::json& about, const NiahOptions& options,
    const std::function<void(double done, const std::string& note)>& progress = {});

}  // namespace fwpkm
