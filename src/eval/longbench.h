// Questions on long documents: how well a model expects the reference answers after it has read the
// document.
//
// A document is read while memories write, with one flush after it. Then each of its questions is
// read by a fork, with the first reference answer behind it; nothing is written meanwhile. Only
// tokens of answers count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/reading.h"

namespace fwpkm {

struct LongbenchOptions {
  std::vector<std::filesystem::path> data;  // as in text/qa.h
  // What is read between a document and the answer; {question} stands for the question.
  std::string prompt = "\n\nQuestion: {question}\nAnswer: ";
  bool freeze = false;     // memories are only read, never written
  int64_t chunk = 0;       // tokens between updates; 0: one update, by the flush after the document
  int64_t max_tokens = 0;  // the middle of a longer document is left out; 0: nothing is
  int64_t batch = 4;       // documents at a time
  int64_t samples = 0;     // documents of each file; 0: all
  std::filesystem::path out;  // folder as in eval/folder.h; empty keeps nothing
  bool start_over = false;
};

// `about` says of what model (about_evaluated). The result is an object of kind "longbench":
//
//   tasks   for each task: task, documents, questions, answer_tokens, nll (mean over the tokens of
//           answers, in nats), perplexity, context_tokens (read), cut_tokens (left out)
//   all     the same over all tasks, without a name
//
// `progress` gets how much is done, 0 to 1, and a note.
nlohmann::json evaluate_longbench(
    const ModelWithChunk& open, const Tokenizer& tokenizer, const nlohmann::json& about,
    const LongbenchOptions& options,
    const std::function<void(double done, const std::string& note)>& progress = {});

}  // namespace fwpkm
