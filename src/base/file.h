// Files: read-only maps, small texts, and writes that either happen whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fwpkm {

// A whole regular file mapped read-only. The bytes stay valid until the object dies, also when the
// file is replaced or removed meanwhile; only truncating it in place while it is mapped is fatal
// (the system answers with SIGBUS). An empty file is an error: no format of ours is empty.
//
// `huge_pages` is advice for a file that is read all over, again and again: what the page cache
// does not hold yet comes in as huge pages where kernel and file system have them for files.
// `keep_open`: the file can be mapped again, by descriptor(), whatever becomes of its name.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path, bool huge_pages = false,
                      bool keep_open = false);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int descriptor() const { return fd_; }  // -1 unless kept open

 private:
  void unmap();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

inline constexpr uint64_t kTextLimit = 64u << 20;

// The contents of a file, a pipe or a device. More than `limit` bytes are an error, found without
// reading further than that.
std::string read_text(const std::filesystem::path& path, uint64_t limit = kTextLimit);

// A file that appears under its name only when it is complete: bytes go to a temporary beside the
// target, and commit() puts it in the target's place, on the disk. Without commit() the target
// stays as it was and the temporary is removed.
//
// Bytes go to the system in whole blocks of 2 MiB, at multiples of that: so a file system that has
// large pages in its cache can hold the new file in huge ones, and mapping it is as good as a copy.
//
// The temporary is called <target>.<pid>-<n>.tmp. A killed process cannot remove its own, so each
// new AtomicFile first removes those of the same target whose process is gone (or had this
// process's id before it); they do not pile up. Two hosts or containers that share a directory
// must therefore not write the same target at the same time.
//
// The target must be a regular file or nothing yet; it keeps its permission bits. A symbolic link
// is replaced, not followed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Small pieces are gathered, so an error may show in a later write or in commit().
  void write(const void* data, size_t size);
  // Flush, fsync, rename, fsync of the directory. Once, as the last call.
  void commit();

 private:
  // Numbers the temporaries of this process, so that one of ours in use is told from a leftover.
  struct Ticket {
    Ticket();
    ~Ticket();
    uint64_t number;
  };

  void write_through(const std::byte* data, size_t size);
  void flush();

  Ticket ticket_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::byte> buffer_;
  int fd_ = -1;
  bool failed_ = false;  // a write went wrong; commit must not succeed after that
  bool renamed_ = false;
};

// An exclusive lock on a file, made if missing, or on a folder; held as long as this lives. The
// system lets go of it when the process ends, however it ends.
class FileLock {
 public:
  FileLock() = default;
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  // False if somebody else holds it.
  bool take(const std::filesystem::path& path);

 private:
  int fd_ = -1;
};

void write_text_atomic(const std::filesystem::path& path, std::string_view text);

}  // namespace fwpkm
