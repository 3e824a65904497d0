// Training runs side by side: curves, settings, what their memories do.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "report/page.h"

namespace fwpkm::report {

struct TrainingRun {
  std::string label;
  std::filesystem::path folder;  // with metrics.jsonl and, if any is saved yet, checkpoints
};

void draw_training(Page* page, std::span<const TrainingRun> runs);

}  // namespace fwpkm::report
