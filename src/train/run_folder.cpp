#include "train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/file.h"
#include "base/json_fields.h"
#include "model/checkpoint.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kTemporary = "writing-";

std::string step_name(int64_t step) {
  return fmt::format("step-{:08}", step);
}

// The step in a checkpoint's name, or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  const char* begin = name.data() + 5;
  const char* end = name.data() + name.size();
  if (!name.starts_with("step-") || begin == end) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end ? std::optional(step) : std::nullopt;
}

void check(bool ok, const char* what, const fs::path& path) {
  require(ok, "run", "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

void sync_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY);
  check(fd >= 0, "open", path);
  const int result = ::fsync(fd);
  ::close(fd);
  check(result == 0, "sync", path);
}

std::string moment_name(const char* kind, const std::string& parameter) {
  return fmt::format("{}.{}", kind, parameter);
}

void write_optimizer(const fs::path& file, const AdamW& optimizer) {
  SafeTensorsWriter writer(file);
  writer.set_metadata("steps", std::to_string(optimizer.steps()));
  optimizer.for_moments([&](const std::string& name, const View& first, const View& second) {
    writer.declare(moment_name("first", name), first.dtype, first.shape.list());
    writer.declare(moment_name("second", name), second.dtype, second.shape.list());
  });
  optimizer.for_moments([&](const std::string& name, const View& first, const View& second) {
    append_view(&writer, moment_name("first", name), first);
    append_view(&writer, moment_name("second", name), second);
  });
  writer.commit();
}

void read_optimizer(const fs::path& path, AdamW* optimizer) {
  const SafeTensors file = SafeTensors::open(path);
  const auto read = [&](const std::string& name, const View& to) {
    const auto count = static_cast<size_t>(to.size());
    require(file.info(name).count() == count, "run", "{}: {} has {} numbers, not {}", path.string(),
            name, file.info(name).count(), count);
    read_view(file, name, to);
  };
  optimizer->for_moments([&](const std::string& name, const View& first, const View& second) {
    read(moment_name("first", name), first);
    read(moment_name("second", name), second);
  });
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  require(!error, "run", "cannot make the folder {}: {}; choose another --out", path_.string(),
          error.message());
  require(lock_.take(path_ / "lock"), "run",
          "another run is writing to {}; wait for it or choose another --out", path_.string());
}

RunFolder::~RunFolder() {
  if (metrics_ != nullptr) {
    std::fclose(metrics_);
  }
}

std::vector<Checkpoint> RunFolder::checkpoints() const {
  std::vector<Checkpoint> list;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(path_ / kCheckpoints, missing)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      list.push_back({*step, entry.path()});
    }
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return list;
}

bool RunFolder::has_run() const {
  return !checkpoints().empty() || fs::exists(path_ / kMetrics);
}

void RunFolder::start_over() {
  fs::remove_all(path_ / kCheckpoints);
  fs::remove(path_ / "best");
  fs::remove(path_ / kMetrics);
}

void RunFolder::save(int64_t step, const Model& model, const AdamW& optimizer,
                     const nlohmann::json& state, const std::vector<ExtraFile>& files, int keep,
                     int64_t best_step, const std::function<void(const fs::path&)>& extra) {
  const fs::path all = path_ / kCheckpoints;
  std::error_code error;
  fs::create_directories(all, error);
  require(!error, "run", "cannot make {}: {}", all.string(), error.message());
  // What a killed writer left is in the way of nobody and of no use.
  for (const auto& entry : fs::directory_iterator(all)) {
    if (entry.path().filename().string().starts_with(kTemporary)) {
      fs::remove_all(entry.path());
    }
  }
  const fs::path temporary = all / (kTemporary + step_name(step)), target = all / step_name(step);
  try {
    save_model(model, temporary, model.parameters().device().wide());
    write_optimizer(temporary / "optimizer.safetensors", optimizer);
    for (const ExtraFile& file : files) {
      write_text_atomic(temporary / file.name, file.content);
    }
    if (extra) {
      extra(temporary);
    }
    write_text_atomic(temporary / "run.json", state.dump(2) + "\n");
    sync_folder(temporary);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  fs::remove_all(target);  // the same step again, after a resume: equal anyway
  check(::rename(temporary.c_str(), target.c_str()) == 0, "rename", temporary);
  sync_folder(all);
  if (best_step == step) {
    const fs::path link = path_ / "best.tmp";
    fs::remove(link);
    fs::create_directory_symlink(fs::path(kCheckpoints) / step_name(step), link);
    fs::rename(link, path_ / "best");
    sync_folder(path_);
  }
  const std::vector<Checkpoint> list = checkpoints();
  for (size_t i = 0; i + static_cast<size_t>(std::max(1, keep)) < list.size(); ++i) {
    if (list[i].step == best_step) {
      continue;
    }
    // Under a temporary name first, so that a kill in between leaves no half of a checkpoint.
    const fs::path doomed = all / (kTemporary + std::string("old-") + step_name(list[i].step));
    check(::rename(list[i].path.c_str(), doomed.c_str()) == 0, "rename", list[i].path);
    fs::remove_all(doomed);
  }
}

nlohmann::json RunFolder::restore(const Checkpoint& checkpoint, Model* model,
                                  AdamW* optimizer) const {
  const SafeTensors weights = SafeTensors::open(checkpoint.path / "model.safetensors");
  load_parameters(weights, "", model->config(), &model->parameters());
  read_optimizer(checkpoint.path / "optimizer.safetensors", optimizer);
  optimizer->set_steps(checkpoint.step);
  return read_json_file(checkpoint.path / "run.json");
}

void RunFolder::open_metrics(int64_t step) {
  const fs::path file = path_ / kMetrics;
  std::string kept;
  if (fs::exists(file)) {
    std::ifstream in(file);
    std::string line;
    while (std::getline(in, line) && !in.eof()) {  // a line without its end was cut short
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.value("step", int64_t{0}) <= step) {
        kept += line + "\n";
      }
    }
    write_text_atomic(file, kept);
  }
  metrics_ = std::fopen(file.c_str(), "a");
  check(metrics_ != nullptr, "open", file);
}

void RunFolder::add_metrics(const nlohmann::json& line) {
  const std::string text = line.dump() + "\n";
  const bool ok = std::fwrite(text.data(), 1, text.size(), metrics_) == text.size() &&
                  std::fflush(metrics_) == 0;
  check(ok, "write", path_ / kMetrics);
}

fs::path find_model(const fs::path& folder) {
  require(fs::is_directory(folder), "model",
          "{} is not a folder; give a model folder or the --out of a training run",
          folder.string());
  if (fs::exists(folder / "model.safetensors") || !fs::exists(folder / kCheckpoints)) {
    return folder;
  }
  std::vector<std::pair<int64_t, fs::path>> list;
  for (const auto& entry : fs::directory_iterator(folder / kCheckpoints)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      list.emplace_back(*step, entry.path());
    }
  }
  require(!list.empty(), "model", "the run in {} has no checkpoint yet", folder.string());
  return std::max_element(list.begin(), list.end())->second;
}

}  // namespace fwpkm
