// Perplexity of documents that are read in their order, and how memories do meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "eval/folder.h"
#include "eval/reader.h"

namespace fwpkm {

struct PplOptions {
  ReaderSettings reader;
  int64_t tokens = 0;      // to read at most; 0: all
  int64_t window = 32768;  // tokens between two looks at how slots are used
  int64_t every = 128;     // tokens between two points of the curves within documents

  nlohmann::json json() const;
};

// Lets one model read, or two that are to be compared, token by token the same text. A folder that
// holds a part of it already is gone on with. `done` is from 0 to 1.
//
// The result has
//   tokens, and in "models" for each: loss (nats per token), ppl, "windows" (for each `window`
//     tokens: ppl and, by layer, how slots were used), "gates" (by layer: mean, share of 10 bins)
//   "documents": tokens, and loss and ppl for each model
//   "curves": document, position in it, and, for each model, the perplexity from the document's
//     begin up to there
nlohmann::json evaluate_ppl(std::span<const std::shared_ptr<const Model>> models,
                            DocumentTokens* data, const PplOptions& options, EvalFolder* folder,
                            const std::function<void(double done, int64_t tokens)>& progress = {});

}  // namespace fwpkm
