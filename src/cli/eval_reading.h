// What commands share that let a model read long texts: see eval/reading.h.
#pragma once

#include <memory>
#include <string>

#include "cli/eval.h"
#include "eval/longbench.h"
#include "eval/niah.h"
#include "eval/reading.h"

namespace fwpkm::cli {

struct ReadingArguments : EvalArguments {
  std::string chunk;  // a number, or the name of one that holds all of a text
};

struct NiahArguments {
  ReadingArguments reading;
  std::string data;
  NiahOptions options;
};
int run_niah(NiahArguments a, const Common& common);

struct LongbenchArguments {
  ReadingArguments reading;
  std::vector<std::string> data;
  std::string prompt;
  LongbenchOptions options;
};
int run_longbench(LongbenchArguments a, const Common& common);

struct Evaluated {
  ModelWithChunk with_chunk;
  std::shared_ptr<const Tokenizer> tokenizer;
  nlohmann::json about;
};

Evaluated open_evaluated(const ReadingArguments& a, const Common& common);
// 0 for `whole`, the name of a chunk that holds all of a text.
int64_t parse_chunk(const std::string& text, const std::string& whole);

// What add_eval_options adds, --chunk and --freeze.
void add_reading_options(CLI::App* app, ReadingArguments* a, const std::string& whole,
                         bool* freeze);

}  // namespace fwpkm::cli
