#include "train/metrics.h"

#include <fstream>

#include "base/error.h"

namespace fwpkm {
namespace {

std::filesystem::path metrics_file(const std::filesystem::path& run) {
  return run / "metrics.jsonl";
}

}  // namespace

bool has_metrics(const std::filesystem::path& run) {
  return std::filesystem::is_regular_file(metrics_file(run));
}

void read_metrics(const std::filesystem::path& run,
                  const std::function<void(int64_t step, const nlohmann::json& line)>& take) {
  const std::filesystem::path path = metrics_file(run);
  std::ifstream file(path);
  require(static_cast<bool>(file), "metrics", "cannot read {}; give folders of training runs",
          path.string());
  std::string text;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_discarded() && file.peek() == EOF) {
      break;  // a line that a running or killed program has not finished
    }
    require(line.is_object() && line.contains("step") && line["step"].is_number_integer(),
            "metrics", "{}: line {} is not a line of metrics", path.string(), number);
    take(line["step"].get<int64_t>(), line);
  }
}

}  // namespace fwpkm
