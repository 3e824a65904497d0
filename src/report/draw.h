// Results of evaluations, drawn by kind. An evaluation leaves a folder with result.json, an object
// whose "kind" names the function here that draws all results of that kind side by side.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "report/page.h"

namespace fwpkm::report {

struct Result {
  std::string label;               // of its model or run, unlike the others'
  nlohmann::json data;             // result.json
  std::filesystem::path folder{};  // for what else lies there
};

// Adds blocks for results of one kind, at least one. The page has a section for them already.
using Draw = void (*)(Page* page, std::span<const Result> results);

// Where a kind stands on a page: kinds that are known come first, in an order of their own.
size_t drawing_rank(std::string_view kind);

// A kind without a function is shown as it is, with a note.
void draw_results(Page* page, const std::string& kind, std::span<const Result> results);

}  // namespace fwpkm::report
