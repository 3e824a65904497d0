#include "report/gather.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json_fields.h"
#include "train/metrics.h"

namespace fwpkm::report {
namespace {

namespace fs = std::filesystem;

// Names of folders that differ: their last parts, as many as it takes.
std::vector<std::string> labels_of(const std::vector<fs::path>& folders) {
  std::vector<std::string> labels;
  size_t longest = 1;
  for (const fs::path& folder : folders) {
    longest = std::max(longest, static_cast<size_t>(std::distance(folder.begin(), folder.end())));
  }
  for (size_t parts = 1; parts <= longest; ++parts) {
    labels.clear();
    for (const fs::path& folder : folders) {
      const auto count = static_cast<size_t>(std::distance(folder.begin(), folder.end()));
      fs::path label;
      for (auto it = std::next(folder.begin(),
                               static_cast<std::ptrdiff_t>(count - std::min(count, parts)));
           it != folder.end(); ++it) {
        label /= *it;
      }
      labels.push_back(label.string());
    }
    if (std::set<std::string>(labels.begin(), labels.end()).size() == labels.size()) {
      break;
    }
  }
  return labels;
}

bool has_result(const fs::path& folder) {
  return fs::is_regular_file(folder / "result.json");
}

// The folder and those directly in it that hold something to draw, in the order of their names.
std::vector<fs::path> search(const fs::path& folder) {
  require(fs::is_directory(folder), "report", "{} is not a folder", folder.string());
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) {
      all.push_back(entry.path());
    }
  }
  std::sort(all.begin(), all.end());
  all.insert(all.begin(), folder);
  std::erase_if(all, [](const fs::path& path) { return !has_metrics(path) && !has_result(path); });
  require(!all.empty(), "report",
          "there is nothing to show in {}: neither it nor a folder in it has metrics.jsonl (of "
          "`fwpkm train --out`) or result.json (of an evaluation)",
          folder.string());
  return all;
}

}  // namespace

Gathered gather(std::span<const std::string> folders) {
  std::vector<fs::path> found;
  for (const std::string& folder : folders) {
    // A path that ends in "/" or is "." has no last part to be a name.
    fs::path path = fs::weakly_canonical(fs::absolute(folder));
    for (fs::path& one : search(path)) {
      if (std::find(found.begin(), found.end(), one) == found.end()) {
        found.push_back(std::move(one));
      }
    }
  }
  Gathered gathered;
  std::vector<fs::path> runs;
  std::map<std::string, std::vector<fs::path>> results;
  for (const fs::path& folder : found) {
    if (has_metrics(folder)) {
      runs.push_back(folder);
    }
    if (has_result(folder)) {
      nlohmann::json data = read_json_file(folder / "result.json");
      require(data.is_object() && data.contains("kind") && data["kind"].is_string(), "report",
              "{} has no \"kind\"; it must be the object that an evaluation wrote",
              (folder / "result.json").string());
      const std::string kind = data["kind"];
      results[kind].push_back(folder);
      gathered.results[kind].push_back({"", std::move(data), folder});
    }
  }
  const std::vector<std::string> names = labels_of(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    gathered.runs.push_back({names[i], runs[i]});
  }
  for (auto& [kind, list] : gathered.results) {
    const std::vector<std::string> labels = labels_of(results[kind]);
    for (size_t i = 0; i < list.size(); ++i) {
      const nlohmann::json own = list[i].data.value("label", nlohmann::json());
      list[i].label = own.is_string() ? own.get<std::string>() : labels[i];
    }
  }
  return gathered;
}

void draw(Page* page, const Gathered& gathered) {
  std::vector<std::string> kinds;
  for (const auto& [kind, results] : gathered.results) {
    kinds.push_back(kind);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const std::string& a, const std::string& b) {
    return drawing_rank(a) < drawing_rank(b);
  });
  for (const std::string& kind : kinds) {
    draw_results(page, kind, gathered.results.at(kind));
  }
  if (!gathered.runs.empty()) {
    draw_training(page, gathered.runs);
  }
}

}  // namespace fwpkm::report
