// The folder of an evaluation: what is evaluated, how far it has come, and its result.
//
//   DIR/lock          held while somebody evaluates here
//   DIR/eval.json     everything that decides the result: command, model, data, settings
//   DIR/done.jsonl    a line for each piece that is done
//   DIR/result.json   the result, once there is one
//
// An evaluation that was stopped, in whatever way, goes on behind its last line.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "model/model.h"

namespace fwpkm {

class EvalFolder {
 public:
  // An empty path keeps nothing. `about` must hold "kind". A folder of an evaluation of something
  // else is refused, telling the first difference; `start_over` empties it instead.
  EvalFolder(std::filesystem::path path, nlohmann::json about, bool start_over = false);
  ~EvalFolder();
  EvalFolder(const EvalFolder&) = delete;
  EvalFolder& operator=(const EvalFolder&) = delete;

  bool keeps() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  // Lines of pieces that are done.
  const std::vector<nlohmann::json>& done() const { return done_; }
  // One more. It is with the system when the call returns, so a killed process does not lose it.
  void add(nlohmann::json line);
  // Forgets all lines but the first `count`.
  void keep_lines(size_t count);
  // Puts what was evaluated before the result, writes result.json, and gives the whole back. What
  // the result says of "models" goes to what is known of each.
  nlohmann::json finish(const nlohmann::json& result) const;

 private:
  std::filesystem::path path_;
  nlohmann::json about_;
  std::vector<nlohmann::json> done_;
  FileLock lock_;
  int fd_ = -1;
};

// What an evaluation says of the model it is of: name, fingerprint, device.
nlohmann::json about_evaluated(const Model& model, const std::filesystem::path& folder);

}  // namespace fwpkm
