// What the fuzz targets share. A target takes bytes as if they were somebody's file: the first byte
// says what to do with the rest (see each target), so that one corpus covers all ways in.
//
// The right answer to a bad file is an Error. Every other exception, a report of a sanitizer, a
// failed check() and more than a second of processor time are findings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace fwpkm::fuzz {

inline void check(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "[fuzz] does not hold: %s\n", what);
    std::abort();
  }
}

// Hands out the input from front to back; zeros and empty texts when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  uint8_t byte() {
    const std::string one = text(1);
    return one.empty() ? 0 : static_cast<uint8_t>(one[0]);
  }
  uint16_t word() {
    const auto low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }
  std::string text(size_t most) {
    const std::string front(left_.substr(0, most));
    left_.remove_prefix(front.size());
    return front;
  }
  std::string rest() { return text(left_.size()); }

 private:
  std::string_view left_;
};

// The inverse of Input, for seeds: a text that follows its length as a word.
inline std::string sized(const std::string& text) {
  const auto size = static_cast<uint16_t>(text.size());
  return std::string{static_cast<char>(size & 255), static_cast<char>(size >> 8)} + text;
}

// Numbers inside files; they lie anywhere and are little-endian.
template <typename T>
T load(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <typename T>
void store(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// A folder in memory that belongs to this process. Readers take paths, so inputs become files here.
class Scratch {
 public:
  Scratch() {
    const char* given = std::getenv("TMPDIR");
    std::string name = std::string(given != nullptr ? given : "/dev/shm") + "/fwpkm-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "fuzz", "cannot make a folder like {}", name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // In place of what the name held before, which nobody may have mapped any more.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
    file << bytes;
    require(file.flush().good(), "fuzz", "cannot write {}", (path_ / name).string());
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline const Scratch& scratch() {
  static const Scratch folder;
  return folder;
}

inline double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// What `call` returns; nothing where it was refused with an Error.
template <typename F>
auto accepted(F&& call) -> std::optional<decltype(call())> {
  try {
    return call();
  } catch (const Error&) {
    return std::nullopt;
  }
}
template <typename F>
bool refused(F&& call) {
  return !accepted([&] {
    call();
    return true;
  });
}

// One input. Refusing is the target's to expect where it may happen: an Error that gets here is a
// finding. Processor time, because the machine may be busy with other things.
template <typename F>
int run(const uint8_t* data, size_t size, F&& target) {
  scratch();
  const double start = cpu_seconds();
  target(Input(data, size));
  check(cpu_seconds() - start < 1, "an input takes less than a second");
  return 0;
}

}  // namespace fwpkm::fuzz
