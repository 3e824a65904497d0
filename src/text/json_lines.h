// JSON objects from a file, one on each line, perhaps compressed (.gz, .zst). Only one line is held
// at a time.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/byte_source.h"
#include "text/utf8.h"

namespace fwpkm {

inline constexpr size_t kJsonLineBytes = 256u << 20;

class JsonLines {
 public:
  // `tag` is of the errors that are thrown.
  JsonLines(std::filesystem::path path, std::string tag);

  // Takes the next line that is not blank. False at the end.
  bool next(nlohmann::json* object);
  // Of the object that came last, from 1.
  uint64_t line() const { return line_; }
  // As in "'needles.jsonl' line 3".
  std::string where() const;
  // A hash of all bytes that were read, decompressed.
  uint64_t hash() const { return hash_; }

  // Fields of the object that came last; errors name line and key.
  std::string text(const nlohmann::json& object, const char* key, bool empty_allowed = false) const;
  int64_t count(const nlohmann::json& object, const char* key) const;               // above 0
  const nlohmann::json& list(const nlohmann::json& object, const char* key) const;  // not empty

  template <typename... Args>
  void check(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
    if (!ok) [[unlikely]] {
      wrong(fmt::format(format, std::forward<Args>(args)...));
    }
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const;
  bool next_line(std::string_view* line);

  std::filesystem::path path_;
  std::string tag_;
  std::unique_ptr<ByteSource> bytes_;
  Utf8Check utf8_;
  std::string buffer_;
  size_t at_ = 0;
  bool ended_ = false;
  uint64_t line_ = 0, hash_ = 0;
};

}  // namespace fwpkm
