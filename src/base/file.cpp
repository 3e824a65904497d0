#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // its macros do nothing in a build without the sanitizer
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 2u << 20;  // a huge page

const char* hint(int code) {
  switch (code) {
    case ENOENT:
      return "check the path; directories are not created";
    case ENOTDIR:
      return "a part of the path is a file, not a directory";
    case EISDIR:
      return "give the path of a file";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and its directory";
    case EROFS:
      return "the file system is read-only; choose another directory";
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose another disk";
    case EFBIG:
      return "a file size limit was reached; see ulimit -f";
    case EMFILE:
    case ENFILE:
      return "too many open files; see ulimit -n";
    case ENOMEM:
      return "not enough memory or address space; see ulimit -v";
    case ENAMETOOLONG:
      return "use a shorter file name";
    case ELOOP:
      return "symbolic links point at each other";
    default:
      return "check the path and the disk";
  }
}

[[noreturn]] void fail_errno(const char* operation, const fs::path& path, int code) {
  fail("file", "cannot {} '{}': {}; {}", operation, path.string(), std::strerror(code), hint(code));
}

// Calls again while a signal interrupts.
template <typename F>
auto retry(F call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int open_for_reading(const fs::path& path, int extra_flags) {
  const int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | extra_flags); });
  if (fd < 0) {
    fail_errno("open", path, errno);
  }
  return fd;
}

struct stat status_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    fail_errno("inspect", path, errno);
  }
  require(!S_ISDIR(status.st_mode), "file", "cannot read '{}': it is a directory; {}",
          path.string(), hint(EISDIR));
  return status;
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Parses "<pid>-<n>.tmp".
bool parse_suffix(std::string_view text, long* pid, uint64_t* number) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, *pid);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-' || *pid <= 0) {
    return false;
  }
  const auto second = std::from_chars(first.ptr + 1, end, *number);
  return second.ec == std::errc() && std::string_view(second.ptr, end) == ".tmp";
}

struct Tickets {
  std::mutex mutex;
  uint64_t next = 0;
  std::set<uint64_t> active;
};

Tickets& tickets() {
  static Tickets instance;
  return instance;
}

bool is_leftover(long pid, uint64_t number) {
  if (pid != ::getpid()) {
    return ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
  }
  Tickets& all = tickets();
  const std::lock_guard lock(all.mutex);
  return !all.active.contains(number);
}

// Best effort: what cannot be listed or removed stays.
void remove_leftovers(const fs::path& target) {
  const std::string prefix = target.filename().string() + ".";
  const fs::path directory = directory_of(target);
  DIR* listing = ::opendir(directory.c_str());
  if (listing == nullptr) {
    return;
  }
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view name = entry->d_name;
    long pid = 0;
    uint64_t number = 0;
    if (name.starts_with(prefix) && parse_suffix(name.substr(prefix.size()), &pid, &number) &&
        is_leftover(pid, number)) {
      ::unlink((directory / name).c_str());
    }
  }
  ::closedir(listing);
}

// Makes a rename in the directory survive a power failure, where the file system can.
void sync_directory(const fs::path& directory) {
  const Descriptor fd(
      retry([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd.get() < 0) {
    if (errno == EACCES) {
      return;  // a directory that may be written but not listed
    }
    fail_errno("open the directory", directory, errno);
  }
  if (retry([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_errno("sync the directory", directory, errno);
  }
}

// The last page of a map reads as zeros behind the file's end: a reader that goes too far would not
// be noticed there, so AddressSanitizer is told that these bytes are nobody's.
size_t bytes_behind(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (page - size % page) % page;
}

}  // namespace

MappedFile::MappedFile(const fs::path& path, bool huge_pages, bool keep_open) {
  // O_NONBLOCK: opening a pipe must fail below, not wait for a writer.
  const Descriptor fd(open_for_reading(path, O_NONBLOCK));
  const struct stat status = status_of(fd.get(), path);
  require(S_ISREG(status.st_mode), "file",
          "cannot map '{}': it is not a regular file; save it to disk first", path.string());
  require(status.st_size > 0, "file",
          "'{}' is empty; it was perhaps cut short when it was written or copied", path.string());
  size_ = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    fail_errno("map", path, errno);
  }
  if (huge_pages) {
    ::madvise(address, size_, MADV_HUGEPAGE);  // failing changes nothing
  }
  data_ = static_cast<const std::byte*>(address);
  fd_ = keep_open ? ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0) : -1;
  ASAN_POISON_MEMORY_REGION(data_ + size_, bytes_behind(size_));
}

MappedFile::~MappedFile() {
  unmap();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void MappedFile::unmap() {
  if (data_ != nullptr) {
    ASAN_UNPOISON_MEMORY_REGION(data_ + size_, bytes_behind(size_));
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

std::string read_text(const fs::path& path, uint64_t limit) {
  const Descriptor fd(open_for_reading(path, 0));
  status_of(fd.get(), path);
  std::string text;
  std::array<char, 16384> block;
  while (true) {
    const ssize_t n = retry([&] { return ::read(fd.get(), block.data(), block.size()); });
    if (n < 0) {
      fail_errno("read", path, errno);
    }
    if (n == 0) {
      return text;
    }
    require(static_cast<uint64_t>(n) <= limit - text.size(), "file",
            "'{}' is larger than {} bytes, the limit for this kind of file; is it the right one?",
            path.string(), limit);
    text.append(block.data(), static_cast<size_t>(n));
  }
}

AtomicFile::Ticket::Ticket() {
  Tickets& all = tickets();
  const std::lock_guard lock(all.mutex);
  number = all.next++;
  all.active.insert(number);
}

AtomicFile::Ticket::~Ticket() {
  Tickets& all = tickets();
  const std::lock_guard lock(all.mutex);
  all.active.erase(number);
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  require(target_.has_filename(), "file", "cannot write '{}': it names no file; {}",
          target_.string(), hint(EISDIR));
  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  require(!exists || !S_ISDIR(old.st_mode), "file", "cannot write '{}': it is a directory; {}",
          target_.string(), hint(EISDIR));
  require(!exists || S_ISREG(old.st_mode), "file",
          "cannot write '{}': it is a device or a pipe and cannot be replaced; give a file",
          target_.string());
  temporary_ = target_;
  temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), ticket_.number);
  buffer_.reserve(kBlockBytes);
  remove_leftovers(target_);
  fd_ = retry([&] {
    return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  });
  if (fd_ < 0) {
    fail_errno("create", temporary_, errno);
  }
  if (exists && ::fchmod(fd_, old.st_mode & 0777) != 0) {
    // Some file systems have no permissions; the contents matter more.
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (!renamed_) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, size_t size) {
  require(fd_ >= 0 && !failed_, "file", "cannot write '{}': it was committed or failed before",
          target_.string());
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    size_t n = std::min(size, kBlockBytes - buffer_.size());
    if (buffer_.empty() && size >= kBlockBytes) {
      n = size / kBlockBytes * kBlockBytes;
      write_through(bytes, n);
    } else {
      buffer_.insert(buffer_.end(), bytes, bytes + n);
      if (buffer_.size() == kBlockBytes) {
        flush();
      }
    }
    bytes += n;
    size -= n;
  }
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write_through(const std::byte* data, size_t size) {
  while (size > 0) {
    const ssize_t n = retry([&] { return ::write(fd_, data, size); });
    if (n <= 0) {
      failed_ = true;
      fail_errno("write", temporary_, n < 0 ? errno : ENOSPC);
    }
    data += n;
    size -= static_cast<size_t>(n);
  }
}

void AtomicFile::commit() {
  require(fd_ >= 0 && !failed_, "file", "cannot commit '{}': it was committed or failed before",
          target_.string());
  flush();
  failed_ = true;  // until all of the following went well
  if (retry([&] { return ::fsync(fd_); }) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_errno("sync", temporary_, errno);
  }
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail_errno("close", temporary_, errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail_errno("rename the finished temporary to", target_, errno);
  }
  renamed_ = true;
  sync_directory(directory_of(target_));
}

FileLock::~FileLock() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool FileLock::take(const std::filesystem::path& path) {
  const bool folder = std::filesystem::is_directory(path);
  const int flags = folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_CREAT;
  fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  require(fd_ >= 0, "file", "cannot open {}: {}", path.string(), std::strerror(errno));
  return ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
}

void write_text_atomic(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace fwpkm
