// Finds training runs and results of evaluations in folders, and puts them on a page.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "report/draw.h"
#include "report/training.h"

namespace fwpkm::report {

struct Gathered {
  std::vector<TrainingRun> runs;
  std::map<std::string, std::vector<Result>> results;  // by kind
};

// Looks into each folder and one level below it. Labels are as much of the path as tells one
// from the others, or a result's own "label". A folder in which nothing is found is an error.
Gathered gather(std::span<const std::string> folders);

void draw(Page* page, const Gathered& gathered);

}  // namespace fwpkm::report
