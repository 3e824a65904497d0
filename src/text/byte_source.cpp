#include "text/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kInputBytes = 256u << 10;
constexpr int kWindowLog = 28;

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const fs::path& path)
      : path_(path.string()), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    require(fd_ >= 0, "corpus", "cannot open '{}': {}; check the path and its permissions", path_,
            std::strerror(errno));
    struct stat status {};
    if (::fstat(fd_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(fd_);
      fail("corpus", "cannot read '{}': it is a folder", path_);
    }
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainFile() override { ::close(fd_); }

  size_t read(std::span<char> out) override {
    while (true) {
      const ssize_t got = ::read(fd_, out.data(), out.size());
      if (got >= 0) {
        consumed_ += static_cast<uint64_t>(got);
        return static_cast<size_t>(got);
      }
      require(errno == EINTR, "corpus", "cannot read '{}': {}; check the disk", path_,
              std::strerror(errno));
    }
  }
  uint64_t consumed() const override { return consumed_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_;
  uint64_t consumed_ = 0;
};

// What gzip and zstd share: a block of compressed input that is refilled when it is used up.
class Compressed : public ByteSource {
 public:
  uint64_t consumed() const override { return file_.consumed(); }

 protected:
  explicit Compressed(const fs::path& path) : file_(path), input_(kInputBytes) {}

  bool refill() {
    at_ = 0;
    size_ = file_.read(input_);
    return size_ > 0;
  }
  [[noreturn]] void damaged(std::string_view what) const {
    fail("corpus",
         "cannot decompress '{}': {} (about byte {} of the file); copy or download it again",
         file_.path(), what, file_.consumed() - (size_ - at_));
  }
  [[noreturn]] void cut_short() const { damaged("it ends too early"); }

  PlainFile file_;
  std::vector<char> input_;
  size_t at_ = 0, size_ = 0;
  bool inside_ = false;  // a member or frame has begun and not ended
  bool any_ = false;     // there was one at all
};

class GzipFile final : public Compressed {
 public:
  explicit GzipFile(const fs::path& path) : Compressed(path) {
    require(::inflateInit2(&stream_, 15 + 16) == Z_OK, "corpus", "cannot start zlib");
  }
  ~GzipFile() override { ::inflateEnd(&stream_); }

  size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      if (at_ == size_ && !refill()) {
        if (inside_ || !any_) {
          cut_short();
        }
        return 0;
      }
      inside_ = any_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data() + at_);
      stream_.avail_in = static_cast<uInt>(size_ - at_);
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      at_ = size_ - stream_.avail_in;
      if (result == Z_STREAM_END) {  // another member may follow
        inside_ = false;
        ::inflateReset(&stream_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        damaged(stream_.msg != nullptr ? stream_.msg : "it is not valid gzip");
      }
    }
    return out.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
};

class ZstdFile final : public Compressed {
 public:
  explicit ZstdFile(const fs::path& path) : Compressed(path), stream_(::ZSTD_createDStream()) {
    require(stream_ != nullptr, "corpus", "cannot start zstd");
    ::ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kWindowLog);
  }
  ~ZstdFile() override { ::ZSTD_freeDStream(stream_); }

  size_t read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      // A frame can have output left without needing more input.
      if (at_ == size_ && !flushing_ && !refill()) {
        if (inside_ || !any_) {
          cut_short();
        }
        return 0;
      }
      any_ = true;
      ZSTD_inBuffer input{input_.data(), size_, at_};
      const size_t result = ::ZSTD_decompressStream(stream_, &output, &input);
      at_ = input.pos;
      if (::ZSTD_isError(result)) {
        damaged(::ZSTD_getErrorName(result));
      }
      inside_ = result != 0;
      flushing_ = inside_ && output.pos == output.size;
    }
    return output.pos;
  }

 private:
  ZSTD_DStream* stream_;
  bool flushing_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".gz") {
    return std::make_unique<GzipFile>(path);
  }
  if (extension == ".zst") {
    return std::make_unique<ZstdFile>(path);
  }
  return std::make_unique<PlainFile>(path);
}

}  // namespace fwpkm
