// What commands share that let a model read long texts: see eval/reading.h.
#pragma once

#include <memory>
#include <string>

#include "cli/cli.h"
#include "eval/reading.h"

namespace fwpkm::cli {

struct ReadingArguments {
  std::string model, tokenizer, out, chunk;
};

struct Evaluated {
  ModelWithChunk with_chunk;
  std::shared_ptr<const Tokenizer> tokenizer;
  nlohmann::json about;
};

Evaluated open_evaluated(const ReadingArguments& a, const Common& common);
// 0 for `whole`, the name of a chunk that holds all of a text.
int64_t parse_chunk(const std::string& text, const std::string& whole);

// The result as a page in its folder, if it has one.
void write_page(const std::string& folder, const nlohmann::json& result, const Common& common);

// --model, --tokenizer, --chunk, --freeze, --out and --start-over.
void add_reading_options(CLI::App* app, ReadingArguments* a, const std::string& whole, bool* freeze,
                         bool* start_over);

}  // namespace fwpkm::cli
