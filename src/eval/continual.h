// Continual learning: a model reads domain after domain; after each it is tested on all of them.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/folder.h"
#include "eval/reader.h"

namespace fwpkm {

struct Domain {
  std::string name;
  std::vector<std::string> adapt, test;  // as DocumentTokens takes them
};

// The folders below `folder` that hold adapt.* and eval.*, by name.
std::vector<Domain> find_domains(const std::string& folder);

struct ContinualOptions {
  int64_t adapt_tokens = 0, test_tokens = 0;  // of each domain at most; 0: all
  int64_t segment = 4096;                     // mixers are reset after so many; 0: never
  nlohmann::json json() const;
};

// Before each text attention and GDN are reset; after each domain memories are flushed. Tests are
// read by forks that write nothing. A folder that holds a part of it already is gone on with.
//
// The result has "domains" (names, in the order of adaptation), "loss" (a row for each stage, the
// first before any adaptation; a column for each domain; nats per token), "change" (the same minus
// the first row), and "retention": of what adapting to a domain had gained on it right after, the
// share that is left at the end; over all domains but the last, null where nothing was gained.
nlohmann::json evaluate_continual(
    const std::shared_ptr<const Model>& model, const std::shared_ptr<const Tokenizer>& tokenizer,
    const std::vector<Domain>& domains, const ContinualOptions& options, EvalFolder* folder,
    const std::function<void(double done, const std::string& note)>& progress = {});

// The share described above, from rows of losses.
std::optional<double> retention(const std::vector<std::vector<double>>& loss);

}  // namespace fwpkm
