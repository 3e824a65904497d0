// A directory of its own for each test, gone afterwards.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace fwpkm {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "fwpkm-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "test", "cannot make a directory like {}", name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                             std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

// While it lives, root acts as an ordinary user, to whom `path` is given: root may do everything,
// so it could not test what permissions forbid.
class Unprivileged {
 public:
  explicit Unprivileged(const std::filesystem::path& path) : was_root_(::geteuid() == 0) {
    if (was_root_) {
      require(::chown(path.c_str(), kNobody, kNobody) == 0 && ::seteuid(kNobody) == 0, "test",
              "cannot act as an ordinary user");
    }
  }
  ~Unprivileged() {
    if (was_root_ && ::seteuid(0) != 0) {
      std::abort();
    }
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  static constexpr unsigned kNobody = 65534;
  bool was_root_;
};

// The message of the Error that `call` throws; anything else fails the test.
template <typename F>
std::string error_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

// Expects an Error whose message contains each of the texts.
template <typename F, typename... Texts>
void expect_error(F call, Texts... texts) {
  const std::string message = error_of(call);
  for (const std::string& text : {std::string(texts)...}) {
    EXPECT_NE(message.find(text), std::string::npos)
        << "'" << text << "' is not in the message: " << message;
  }
}

}  // namespace fwpkm
