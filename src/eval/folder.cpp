#include "eval/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json_fields.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTag = "eval";

// What two evaluations do not have in common. Where the model lies does not matter: its fingerprint
// tells which one it is.
std::string difference(const json& was, const json& is) {
  const auto skip = [](const std::string& path) { return path.ends_with("/folder"); };
  const std::string changed = changed_field(was, is, skip);
  if (!changed.empty()) {
    return changed;
  }
  const std::string more = changed_field(is, was, skip);
  return more.empty() ? "" : more.substr(0, more.find(' ')) + " is new";
}

std::vector<json> read_lines(const fs::path& path) {
  std::vector<json> lines;
  if (!fs::exists(path)) {
    return lines;
  }
  const std::string text = read_text(path, uint64_t{1} << 32);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) {
      break;  // a killed process did not finish it
    }
    lines.push_back(json::parse(text.substr(at, end - at), nullptr, false));
    require(!lines.back().is_discarded(), kTag, "{}: line {} is damaged; use --start-over",
            path.string(), lines.size());
    at = end + 1;
  }
  return lines;
}

}  // namespace

EvalFolder::EvalFolder(fs::path path, json about, bool start_over)
    : path_(std::move(path)), about_(std::move(about)) {
  if (!keeps()) {
    return;
  }
  fs::create_directories(path_);
  require(lock_.take(path_ / "lock"), kTag, "another process evaluates into {}; wait for it",
          path_.string());
  const fs::path what = path_ / "eval.json", lines = path_ / "done.jsonl";
  if (start_over) {
    for (const char* name : {"eval.json", "done.jsonl", "result.json", "report.html"}) {
      fs::remove(path_ / name);
    }
  }
  if (fs::exists(what)) {
    const std::string other = difference(read_json_file(what), about_);
    require(other.empty(), kTag,
            "{} holds another evaluation: {}; choose another --out, or give --start-over",
            path_.string(), other);
    done_ = read_lines(lines);
  } else {
    require(!fs::exists(lines), kTag,
            "{} has no eval.json, but lines of an evaluation; give "
            "--start-over",
            path_.string());
    write_text_atomic(what, about_.dump(1) + "\n");
  }
  keep_lines(done_.size());
}

EvalFolder::~EvalFolder() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void EvalFolder::keep_lines(size_t count) {
  require(count <= done_.size(), kTag, "{} lines cannot be kept of {}", count, done_.size());
  done_.resize(count);
  if (!keeps()) {
    return;
  }
  if (fd_ >= 0) {
    ::close(fd_);
  }
  std::string text;
  for (const json& line : done_) {
    text += line.dump() + "\n";
  }
  const fs::path path = path_ / "done.jsonl";
  write_text_atomic(path, text);
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  require(fd_ >= 0, kTag, "cannot write {}: {}", path.string(), std::strerror(errno));
}

void EvalFolder::add(json line) {
  if (keeps()) {
    const std::string text = line.dump() + "\n";
    const ssize_t written = ::write(fd_, text.data(), text.size());
    require(written == static_cast<ssize_t>(text.size()), kTag, "cannot write {}: {}",
            (path_ / "done.jsonl").string(), written < 0 ? std::strerror(errno) : "disk full");
  }
  done_.push_back(std::move(line));
}

json EvalFolder::finish(const json& result) const {
  json whole = about_;
  whole["version"] = FWPKM_VERSION;
  for (const auto& [key, value] : result.items()) {
    if (key != "models" || !about_.contains(key)) {
      whole[key] = value;
      continue;
    }
    for (size_t m = 0; m < value.size(); ++m) {
      whole[key].at(m).update(value.at(m));
    }
  }
  if (keeps()) {
    write_text_atomic(path_ / "result.json", whole.dump(1) + "\n");
  }
  return whole;
}

json about_evaluated(const Model& model, const fs::path& folder) {
  return {{"name", model.config().name},
          {"folder", fs::absolute(folder).lexically_normal().string()},
          {"fingerprint", model.fingerprint().hex()},
          {"device", dtype_name(model.parameters().device().real)}};
}

}  // namespace fwpkm
