// Files of named sections, each with a checksum: what session files are made of.
//
//   0   16 bytes   the format's name, padded with zeros
//   16  8 bytes    version
//   24  8 bytes    bytes of the header
//   32  8 bytes    checksum of the header
//   40  8 bytes    bytes of the file
//   48  16 bytes   zeros
//   64  header     JSON: {"about": .., "sections": [{"name", "offset", "bytes", "checksum"}, ..]}
//       sections   from the next multiple of 4,096 on: those that are to be mapped at multiples
//                  of that, the others at multiples of 64
//
// Numbers are little-endian. A file is written front to back, and appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace fwpkm {

// A checksum of bytes that come in pieces; where the pieces end does not matter.
class Checksum {
 public:
  void add(const void* data, size_t size);
  uint64_t value() const;

 private:
  static constexpr size_t kBlock = 4096;
  std::vector<std::byte> rest_;
  uint64_t hash_ = 0, size_ = 0;
};

class SectionWriter {
 public:
  using Sink = std::function<void(const void* data, size_t size)>;
  // Calls the sink with the bytes of a section, front to back. Called twice; must do the same.
  using Source = std::function<void(const Sink& sink)>;

  // `mapped`: it can be mapped by itself.
  void add(std::string name, Source source, bool mapped = false);
  // The bytes must stay where they are until write().
  void add(std::string name, std::span<const std::byte> bytes);
  void write(const std::filesystem::path& path, const char* format, uint64_t version,
             const nlohmann::json& about) const;

 private:
  struct Section {
    std::string name;
    Source source;
    size_t align;
  };
  std::vector<Section> sections_;
};

// An open file, mapped. The header is checked when it is opened, a section when it is asked for.
class SectionReader {
 public:
  static constexpr size_t kAlign = 64, kMapAlign = 4096;

  // `what` is what the file should be, for messages: "a session".
  SectionReader(const std::filesystem::path& path, const char* format, uint64_t version,
                const char* what);

  const nlohmann::json& about() const { return about_; }
  std::string name() const { return path_.string(); }
  std::vector<std::string> names() const;
  // The bytes of a section, whose checksum was right.
  std::span<const std::byte> section(const std::string& name);
  // The same, which must be as many bytes.
  std::span<const std::byte> section(const std::string& name, size_t bytes);
  // Where it lies in the file, and the file.
  size_t offset(const std::string& name) const { return sections_.at(name).offset; }
  int file() const { return file_.descriptor(); }
  // Refuses sections that nobody asked for: they are of something that is not understood.
  void require_all_read() const;

 private:
  struct Section {
    size_t offset = 0, bytes = 0;
    uint64_t checksum = 0;
    bool read = false;
  };

  std::filesystem::path path_;
  MappedFile file_;
  nlohmann::json about_;
  std::map<std::string, Section> sections_;
};

}  // namespace fwpkm
