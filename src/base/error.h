// Errors for people: every message carries a tag, the value that was wrong and a hint.
//   [memory] topk=64 exceeds n_subkeys=32; lower memory.topk
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace fwpkm {

// The one exception type that the library throws on purpose. what() is ready to be shown.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// The system has no more memory. Nothing else is wrong, so a caller may free some and try again.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

template <typename... Args>
[[noreturn]] void fail(std::string_view tag, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format("[{}] {}", tag, fmt::format(format, std::forward<Args>(args)...)));
}

// Throws unless `ok`. The message states what must hold and what came.
template <typename... Args>
void require(bool ok, std::string_view tag, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) [[unlikely]] {
    fail(tag, format, std::forward<Args>(args)...);
  }
}

}  // namespace fwpkm
