#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "temp_dir.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, MapsAndMoves) {
  const TempDir dir;
  put(dir / "a", "alpha");
  put(dir / "b", "beta");
  MappedFile a(dir / "a");
  EXPECT_EQ(text_of(a), "alpha");
  MappedFile moved(std::move(a));
  EXPECT_EQ(text_of(moved), "alpha");
  EXPECT_TRUE(a.bytes().empty());
  moved = MappedFile(dir / "b", /*huge_pages=*/true);
  EXPECT_EQ(text_of(moved), "beta");
}

TEST(MappedFile, OutlivesReplacement) {
  const TempDir dir;
  put(dir / "a", "before");
  const MappedFile file(dir / "a");
  write_text_atomic(dir / "a", "after, and longer");
  EXPECT_EQ(text_of(file), "before");
  EXPECT_EQ(read_text(dir / "a"), "after, and longer");
}

TEST(MappedFile, RefusesWhatCannotBeMapped) {
  const TempDir dir;
  expect_error([&] { MappedFile(dir / "none"); }, "[file] cannot open", "none", "No such file");
  expect_error([&] { MappedFile{dir.path()}; }, "it is a directory");
  put(dir / "empty", "");
  expect_error([&] { MappedFile(dir / "empty"); }, "empty' is empty");
  put(dir / "file", "x");
  expect_error([&] { MappedFile(dir / "file" / "below"); }, "Not a directory");
  expect_error([&] { MappedFile("/dev/null"); }, "not a regular file");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_error([&] { MappedFile(dir / "pipe"); }, "not a regular file");
}

TEST(MappedFile, NamesMissingPermission) {
  const TempDir dir;
  const Unprivileged user(dir.path());
  put(dir / "secret", "x");
  fs::permissions(dir / "secret", fs::perms::none);
  expect_error([&] { MappedFile(dir / "secret"); }, "Permission denied", "check the permissions");
}

TEST(ReadText, ReadsWholeFilesUpToTheLimit) {
  const TempDir dir;
  const std::string text(50'000, 'x');
  put(dir / "a", text);
  EXPECT_EQ(read_text(dir / "a"), text);
  EXPECT_EQ(read_text(dir / "a", text.size()), text);
  expect_error([&] { read_text(dir / "a", text.size() - 1); }, "larger than 49999 bytes");
  expect_error([&] { read_text("/dev/zero", 1000); }, "larger than 1000 bytes");
  put(dir / "empty", "");
  EXPECT_EQ(read_text(dir / "empty", 0), "");
  expect_error([&] { read_text(dir.path()); }, "it is a directory");
  expect_error([&] { read_text(dir / "none"); }, "No such file");
}

constexpr size_t kBlock = 2u << 20;  // bytes that go to the system at once

TEST(AtomicFile, WritesPiecesOfAllSizes) {
  const TempDir dir;
  std::string expected;
  AtomicFile file(dir / "out");
  for (const size_t size : std::initializer_list<size_t>{0, 1, 3, kBlock - 1, kBlock, kBlock + 1, 7,
                                                         3 * kBlock + 9, 0, 5}) {
    const std::string piece(size, static_cast<char>('a' + size % 26));
    file.write(piece.data(), piece.size());
    expected += piece;
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
  file.commit();
  EXPECT_EQ(read_text(dir / "out"), expected);
  EXPECT_EQ(dir.entries(), 1u);
  expect_error([&] { file.commit(); }, "cannot commit");
  expect_error([&] { file.write("x", 1); }, "cannot write");
}

TEST(AtomicFile, WithoutCommitLeavesEverythingAsItWas) {
  const TempDir dir;
  put(dir / "out", "old");
  {
    AtomicFile file(dir / "out");
    file.write("new", 3);
    EXPECT_EQ(dir.entries(), 2u);
  }
  EXPECT_EQ(read_text(dir / "out"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, KeepsPermissionsOfTheTarget) {
  const TempDir dir;
  put(dir / "out", "old");
  fs::permissions(dir / "out", fs::perms::owner_read | fs::perms::owner_write);
  write_text_atomic(dir / "out", "new");
  EXPECT_EQ(fs::status(dir / "out").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(read_text(dir / "out"), "new");
}

TEST(AtomicFile, WorksWithRelativePathsAndEmptyTexts) {
  const TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  write_text_atomic("here", "");
  fs::current_path(before);
  EXPECT_EQ(read_text(dir / "here"), "");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, TwoWritersOfOneTargetDoNotMix) {
  const TempDir dir;
  AtomicFile first(dir / "out");
  first.write("first", 5);
  AtomicFile second(dir / "out");  // must not take the first one's temporary for a leftover
  second.write("second", 6);
  first.commit();
  EXPECT_EQ(read_text(dir / "out"), "first");
  second.commit();
  EXPECT_EQ(read_text(dir / "out"), "second");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, RemovesTemporariesOfKilledProcesses) {
  const TempDir dir;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      AtomicFile file(dir / "out");
      ::_exit(0);  // no destructors, as if killed
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(dir.entries(), 1u) << "after process " << i;
  }
  // A process that had our id before us, and files that only look similar.
  put(dir / ("out." + std::to_string(::getpid()) + "-999999.tmp"), "x");
  put(dir / "out.1234x-0.tmp", "x");
  put(dir / "out.tmp", "x");
  write_text_atomic(dir / "out", "done");
  EXPECT_EQ(dir.entries(), 3u);
  EXPECT_TRUE(fs::exists(dir / "out.1234x-0.tmp"));
  EXPECT_TRUE(fs::exists(dir / "out.tmp"));
}

TEST(AtomicFile, RefusesImpossibleTargets) {
  const TempDir dir;
  put(dir / "file", "x");
  fs::create_directory(dir / "sub");
  expect_error([&] { AtomicFile(dir / "sub"); }, "cannot write", "it is a directory");
  expect_error([&] { AtomicFile(dir / "sub" / ""); }, "it names no file");
  expect_error([&] { AtomicFile(""); }, "it names no file");
  expect_error([&] { AtomicFile(dir / "none" / "out"); }, "cannot create", "No such file",
               "directories are not created");
  expect_error([&] { AtomicFile(dir / "file" / "out"); }, "cannot create", "Not a directory");
  expect_error([&] { AtomicFile("/dev/full"); }, "a device or a pipe");
  expect_error([&] { AtomicFile(dir / std::string(255, 'n')); }, "shorter file name");
  EXPECT_EQ(dir.entries(), 2u);
}

TEST(AtomicFile, NamesReadOnlyDirectories) {
  const TempDir dir;
  const Unprivileged user(dir.path());
  fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_error([&] { AtomicFile(dir / "out"); }, "Permission denied");
  fs::permissions(dir.path(), fs::perms::owner_all);
}

TEST(AtomicFile, TargetThatBecomesADirectoryFailsOnCommit) {
  const TempDir dir;
  {
    AtomicFile file(dir / "out");
    file.write("x", 1);
    fs::create_directory(dir / "out");
    expect_error([&] { file.commit(); }, "cannot rename", "out");
    expect_error([&] { file.commit(); }, "failed before");
  }
  EXPECT_EQ(dir.entries(), 1u);
}

// Stands in for a full disk: the system takes part of a write, then refuses the rest.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  sighandler_t handler_;
};

TEST(AtomicFile, FailedWritesAreErrorsAndLeaveNothing) {
  const TempDir dir;
  put(dir / "out", "old");
  const std::string large(kBlock + 300'000, 'x');
  {
    const FileSizeLimit limit(100'000);
    AtomicFile file(dir / "out");
    expect_error([&] { file.write(large.data(), large.size()); }, "cannot write", "out",
                 "File too large", "ulimit -f");
    expect_error([&] { file.write("x", 1); }, "failed before");
    expect_error([&] { file.commit(); }, "failed before");
  }
  EXPECT_EQ(dir.entries(), 1u);
  {
    const FileSizeLimit limit(10);  // shows only when the gathered bytes go out
    expect_error([&] { write_text_atomic(dir / "out", "more than ten bytes"); }, "File too large");
  }
  EXPECT_EQ(dir.entries(), 1u);
  EXPECT_EQ(read_text(dir / "out"), "old");
}

}  // namespace
}  // namespace fwpkm
