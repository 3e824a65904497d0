#include "text/json_lines.h"

#include "base/error.h"
#include "base/hash.h"

namespace fwpkm {
namespace {

constexpr size_t kReadBytes = 256u << 10;

}  // namespace

JsonLines::JsonLines(std::filesystem::path path, std::string tag)
    : path_(std::move(path)), tag_(std::move(tag)), utf8_("'" + path_.string() + "'") {
  require(std::filesystem::exists(path_), tag_, "'{}' does not exist; check the path",
          path_.string());
  bytes_ = open_bytes(path_);
}

std::string JsonLines::where() const {
  return fmt::format("'{}' line {}", path_.string(), line_);
}

void JsonLines::wrong(const std::string& what) const {
  fail(tag_, "{}: {}", where(), what);
}

// The line stays where it is until the next call.
bool JsonLines::next_line(std::string_view* line) {
  size_t searched = at_, end = 0;
  while ((end = buffer_.find('\n', searched)) == std::string::npos && !ended_) {
    buffer_.erase(0, at_);
    at_ = 0;
    searched = buffer_.size();
    require(searched <= kJsonLineBytes, tag_, "'{}' line {} is longer than {} MB", path_.string(),
            line_ + 1, kJsonLineBytes >> 20);
    buffer_.resize(searched + kReadBytes);
    buffer_.resize(searched + bytes_->read({buffer_.data() + searched, kReadBytes}));
    utf8_.feed(std::string_view(buffer_).substr(searched));
    ended_ = buffer_.size() == searched;
    if (ended_) {
      utf8_.finish();
    }
  }
  if (at_ == buffer_.size()) {
    return false;
  }
  end = std::min(end, buffer_.size());
  *line = std::string_view(buffer_).substr(at_, end - at_);
  at_ = std::min(end + 1, buffer_.size());
  ++line_;
  hash_ = hash_bytes(line->data(), line->size(), hash_);
  return true;
}

bool JsonLines::next(nlohmann::json* object) {
  std::string_view line;
  do {
    if (!next_line(&line)) {
      return false;
    }
  } while (line.find_first_not_of(" \t\r") == line.npos);
  try {
    *object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    check(false, "not valid JSON: {}; put one object on each line", error.what());
  }
  check(object->is_object(), "an object as in {{\"key\": ...}} must stand there");
  return true;
}

std::string JsonLines::text(const nlohmann::json& object, const char* key,
                            bool empty_allowed) const {
  const auto it = object.find(key);
  check(it != object.end() && it->is_string(), "\"{}\" must be there and be a text", key);
  auto text = it->get<std::string>();
  check(empty_allowed || !text.empty(), "\"{}\" is empty", key);
  return text;
}

int64_t JsonLines::count(const nlohmann::json& object, const char* key) const {
  const auto it = object.find(key);
  check(it != object.end() && it->is_number_integer() && it->get<int64_t>() > 0,
        "\"{}\" must be there and be a whole number above 0", key);
  return it->get<int64_t>();
}

const nlohmann::json& JsonLines::list(const nlohmann::json& object, const char* key) const {
  const auto it = object.find(key);
  check(it != object.end() && it->is_array() && !it->empty(),
        "\"{}\" must be there and be a list that is not empty", key);
  return *it;
}

}  // namespace fwpkm
