// The folder of a training run: its lock, its metrics and its checkpoints.
//
//   DIR/lock                     held while a run is writing here
//   DIR/metrics.jsonl            a line a step
//   DIR/checkpoints/step-000120/ a model folder with the optimizer and the run's state beside it
//   DIR/best                     a link to the checkpoint with the lowest validation loss
//
// A checkpoint is written under a temporary name, synced, and renamed: it is there whole or not at
// all, whatever kills the process.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/file.h"
#include "model/model.h"
#include "train/adamw.h"

namespace fwpkm {

// A file that goes into every checkpoint.
struct ExtraFile {
  std::string name;
  std::string content;
};

struct Checkpoint {
  int64_t step = 0;
  std::filesystem::path path;
};

class RunFolder {
 public:
  // Makes the folder and takes its lock. A second run in one folder is refused.
  explicit RunFolder(std::filesystem::path path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Complete checkpoints, oldest first.
  std::vector<Checkpoint> checkpoints() const;
  // True if there is anything of an earlier run here.
  bool has_run() const;
  // Removes metrics and checkpoints of an earlier run, and what killed writers left.
  void start_over();

  // Writes a checkpoint of `step`, points `best` at it if `best_step` is this step, and removes
  // all but the newest `keep` and the best. `state` is anything that the run needs to go on, as
  // JSON. `files` are written beside the model, and `extra` may write more into the folder.
  void save(int64_t step, const Model& model, const AdamW& optimizer, const nlohmann::json& state,
            const std::vector<ExtraFile>& files, int keep, int64_t best_step,
            const std::function<void(const std::filesystem::path&)>& extra = {});
  // Loads weights and optimizer of a checkpoint and returns its state.
  nlohmann::json restore(const Checkpoint& checkpoint, Model* model, AdamW* optimizer) const;

  // Drops the lines of metrics past `step` (and a last line that was cut short), then appends.
  void open_metrics(int64_t step);
  void add_metrics(const nlohmann::json& line);

 private:
  std::filesystem::path path_;
  FileLock lock_;
  std::FILE* metrics_ = nullptr;
};

// The folder to load a model from: `folder` itself if it holds one, else the newest checkpoint of
// the run in it.
std::filesystem::path find_model(const std::filesystem::path& folder);

}  // namespace fwpkm
