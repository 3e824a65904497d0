#include "session/section_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_fields.h"

namespace fwpkm {
namespace {

constexpr size_t kFront = 64;
constexpr size_t kName = 16;

struct Front {
  std::array<char, kName> format{};
  uint64_t version = 0, header_bytes = 0, header_checksum = 0, file_bytes = 0;
  std::array<uint64_t, 2> zeros{};
};
static_assert(sizeof(Front) == kFront);

std::array<char, kName> name_of(std::string_view format) {
  std::array<char, kName> name{};
  std::copy_n(format.begin(), std::min(format.size(), kName), name.begin());
  return name;
}

size_t aligned(size_t offset, size_t align = SectionReader::kMapAlign) {
  return (offset + align - 1) / align * align;
}

uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.value();
}

}  // namespace

void Checksum::add(const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  size_ += size;
  if (!rest_.empty()) {
    const size_t take = std::min(size, kBlock - rest_.size());
    rest_.insert(rest_.end(), bytes, bytes + take);
    bytes += take;
    size -= take;
    if (rest_.size() < kBlock) {
      return;
    }
    hash_ = hash_bytes(rest_.data(), kBlock, hash_);
    rest_.clear();
  }
  for (; size >= kBlock; size -= kBlock, bytes += kBlock) {
    hash_ = hash_bytes(bytes, kBlock, hash_);
  }
  rest_.insert(rest_.end(), bytes, bytes + size);
}

uint64_t Checksum::value() const {
  return hash_bytes(rest_.data(), rest_.size(), hash_ + size_);
}

void SectionWriter::add(std::string name, Source source, bool mapped) {
  sections_.push_back({std::move(name), std::move(source),
                       mapped ? SectionReader::kMapAlign : SectionReader::kAlign});
}

void SectionWriter::add(std::string name, std::span<const std::byte> bytes) {
  add(std::move(name), [bytes](const Sink& sink) { sink(bytes.data(), bytes.size()); });
}

void SectionWriter::write(const std::filesystem::path& path, const char* format, uint64_t version,
                          const nlohmann::json& about) const {
  // Sizes and checksums stand in the header, which comes first; offsets count from its end, so that
  // they do not depend on its length.
  nlohmann::json list = nlohmann::json::array();
  size_t end = 0;
  for (const Section& section : sections_) {
    Checksum sum;
    size_t bytes = 0;
    section.source([&](const void* data, size_t size) {
      sum.add(data, size);
      bytes += size;
    });
    end = aligned(end, section.align);
    list.push_back(
        {{"name", section.name}, {"offset", end}, {"bytes", bytes}, {"checksum", sum.value()}});
    end += bytes;
  }
  const std::string header = nlohmann::json({{"about", about}, {"sections", list}}).dump();
  const size_t begin = aligned(kFront + header.size());
  Front front;
  front.format = name_of(format);
  front.version = version;
  front.header_bytes = header.size();
  front.header_checksum = checksum(std::as_bytes(std::span(header)));
  front.file_bytes = begin + end;

  AtomicFile file(path);
  size_t at = 0;
  const auto put = [&](const void* data, size_t size) {
    file.write(data, size);
    at += size;
  };
  const auto pad = [&](size_t align) {
    static constexpr std::array<std::byte, SectionReader::kMapAlign> kZeros{};
    put(kZeros.data(), aligned(at, align) - at);
  };
  put(&front, sizeof(front));
  put(header.data(), header.size());
  pad(SectionReader::kMapAlign);
  for (const Section& section : sections_) {
    pad(section.align);
    section.source(put);
  }
  require(at == front.file_bytes, "session", "{} changed while it was written", path.string());
  file.commit();
}

SectionReader::SectionReader(const std::filesystem::path& path, const char* format,
                             uint64_t version, const char* what)
    : path_(path), file_(path, false, true) {
  const std::span<const std::byte> bytes = file_.bytes();
  Front front, wanted;
  wanted.format = name_of(format);
  const size_t there = std::min(bytes.size(), kFront);
  std::memcpy(&front, bytes.data(), there);
  require(there >= kName && front.format == wanted.format, "session", "{} is not {}", name(), what);
  require(there == kFront && front.header_bytes <= bytes.size() - kFront, "session",
          "{} is cut off: its header does not end in the file's {} bytes", name(), bytes.size());
  require(front.version == version, "session",
          "{} is {} of version {}; this program reads version {}", name(), what, front.version,
          version);
  const auto header = bytes.subspan(kFront, front.header_bytes);
  require(checksum(header) == front.header_checksum && front.zeros == wanted.zeros, "session",
          "{} is damaged: its header does not belong to its checksum", name());
  try {
    const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
    const nlohmann::json json = nlohmann::json::parse(text);
    about_ = json.at("about");
    const size_t begin = aligned(kFront + header.size());
    for (const nlohmann::json& entry : json.at("sections")) {
      Section section;
      section.offset = entry.at("offset").get<uint64_t>();
      section.bytes = entry.at("bytes").get<uint64_t>();
      section.checksum = entry.at("checksum").get<uint64_t>();
      const auto key = entry.at("name").get<std::string>();
      require(section.offset % kAlign == 0 && section.offset <= UINT64_MAX - begin, "session",
              "{} is damaged: section '{}' begins at {}", name(), key, section.offset);
      section.offset += begin;
      require(section.offset <= bytes.size() && section.bytes <= bytes.size() - section.offset,
              "session", "{} is cut off in section '{}': the file has only {} bytes", name(), key,
              bytes.size());
      require(sections_.emplace(key, section).second, "session",
              "{} is damaged: section '{}' comes twice", name(), key);
    }
  } catch (const nlohmann::json::exception& error) {
    fail("session", "{} is damaged: its header is not as it should be: {}", name(), error.what());
  }
  require(front.file_bytes == bytes.size(), "session",
          "{} is damaged: it has {} bytes, but its header says {}", name(), bytes.size(),
          front.file_bytes);
}

std::vector<std::string> SectionReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, section] : sections_) {
    names.push_back(name);
  }
  return names;
}

std::span<const std::byte> SectionReader::section(const std::string& key) {
  const auto it = sections_.find(key);
  require(it != sections_.end(), "session", "{} is damaged: section '{}' is missing", name(), key);
  Section& section = it->second;
  const auto bytes = file_.bytes().subspan(section.offset, section.bytes);
  if (!section.read) {
    require(checksum(bytes) == section.checksum, "session",
            "{} is damaged: section '{}' does not belong to its checksum", name(), key);
    section.read = true;
  }
  return bytes;
}

std::span<const std::byte> SectionReader::section(const std::string& key, size_t wanted) {
  const auto bytes = section(key);
  require(bytes.size() == wanted, "session",
          "{} is damaged: section '{}' has {} bytes, but {} belong there", name(), key,
          bytes.size(), wanted);
  return bytes;
}

void SectionReader::require_all_read() const {
  for (const auto& [key, section] : sections_) {
    require(section.read, "session", "{} is damaged: nobody knows what section '{}' is for", name(),
            key);
  }
}

}  // namespace fwpkm
