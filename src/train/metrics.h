// The numbers that a training run left in its folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

namespace fwpkm {

// Whether the folder has metrics of a training run.
bool has_metrics(const std::filesystem::path& run);

// Gives `take` each line of the run's metrics.jsonl, in order; docs/training.md says what is in
// them. A last line that was not finished is left out.
void read_metrics(const std::filesystem::path& run,
                  const std::function<void(int64_t step, const nlohmann::json& line)>& take);

}  // namespace fwpkm
