#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"
#include "cli/cli.h"
#include "train/metrics.h"

namespace fwpkm::cli {
namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::string key = "valid_loss";
  int points = 12;
};

// A number of metrics.jsonl by step.
using Curve = std::map<int64_t, double>;

Curve read_curve(const std::string& run, const std::string& key) {
  Curve curve;
  read_metrics(run, [&](int64_t step, const nlohmann::json& line) {
    if (line.contains(key) && line[key].is_number()) {
      curve[step] = line[key].get<double>();
    }
  });
  require(!curve.empty(), "curves", "the run in {} has no number '{}'; try --key loss", run, key);
  return curve;
}

int run(const Arguments& a, const Common& common) {
  std::vector<Curve> curves;
  std::vector<int64_t> steps;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const std::string& name : a.runs) {
    curves.push_back(read_curve(name, a.key));
    for (const auto& [step, value] : curves.back()) {
      steps.push_back(step);
      if (std::isfinite(value)) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  // As many steps as asked for, spread evenly, the last one among them.
  std::vector<int64_t> chosen;
  const auto count = std::min<size_t>(static_cast<size_t>(a.points), steps.size());
  for (size_t i = 1; i <= count; ++i) {
    chosen.push_back(steps[i * steps.size() / count - 1]);
  }
  constexpr int kWidth = 24;
  std::vector<std::vector<std::string>> rows = {{"step"}};
  for (const std::string& name : a.runs) {
    rows[0].push_back(std::filesystem::path(name).filename().string());
    rows[0].emplace_back("");
  }
  for (const int64_t step : chosen) {
    std::vector<std::string> row = {fmt::format("{}", step)};
    for (const Curve& curve : curves) {
      const auto it = curve.find(step);
      if (it == curve.end()) {
        row.insert(row.end(), {"", std::string(kWidth, ' ')});
        continue;
      }
      const double share = high > low ? (it->second - low) / (high - low) : 0.0;
      const auto bar = static_cast<size_t>(std::lround(share * kWidth));
      row.push_back(fmt::format("{:.4f}", it->second));
      row.push_back(std::string(bar, '#') + std::string(kWidth - bar, '.'));
    }
    rows.push_back(std::move(row));
  }
  say(common, fmt::format("{}, from {:.4f} to {:.4f}\n\n{}", a.key, low, high, table(rows)));
  nlohmann::json json = nlohmann::json::array();
  for (size_t i = 0; i < curves.size(); ++i) {
    nlohmann::json points = nlohmann::json::array();
    for (const auto& [step, value] : curves[i]) {
      points.push_back({step, value});
    }
    json.push_back({{"run", a.runs[i]}, {"points", points}});
  }
  emit(common, {{"key", a.key}, {"curves", json}});
  return 0;
}

}  // namespace

void add_curves(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand("curves", "Learning curves of training runs, side by side");
  sub->add_option("runs", a->runs, "Folders of runs")->type_name("DIR...")->required();
  sub->add_option("--key", a->key, "The number of metrics.jsonl to show")->capture_default_str();
  sub->add_option("--points", a->points, "Steps to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command(sub, [a](const Common& common) { return run(*a, common); });
}

}  // namespace fwpkm::cli
