// `fwpkm data` as a user meets it, and what happens when it is interrupted.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "corpus_files.h"
#include "sanitizer.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

class DataCli : public testing::Test {
 protected:
  struct Outcome {
    int status;
    std::string out, err;
  };

  Outcome run(const std::string& arguments, const std::string& before = "") const {
    const std::string out = (dir_ / "stdout").string(), err = (dir_ / "stderr").string();
    const std::string command =
        before + FWPKM_BINARY + " data " + arguments + " >" + out + " 2>" + err;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
  }
  void fails(const std::string& arguments, const std::string& text,
             const std::string& before = "") const {
    const Outcome outcome = run(arguments, before);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string content(const fs::path& folder) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::string all;
    for (const fs::path& file : files) {
      all += file.filename().string() + ":" + read_text(file, 1u << 30);
    }
    return all;
  }
  // Documents of about 100 KB.
  void write_corpus(const std::string& name, size_t megabytes) const {
    std::string text;
    const std::string unit = made_up_text(100000, 3);
    for (size_t i = 0; i < megabytes * 10; ++i) {
      text += fmt::format("document {}\n", i) + unit + "<|endoftext|>\n";
    }
    write_text_atomic(path(name), text);
  }

  TempDir dir_;
};

TEST_F(DataCli, TrainEncodeInfo) {
  write_text_atomic(path("a.txt"),
                    made_up_text(300000, 1) + "<|endoftext|>\n" + made_up_text(999, 2));
  const Outcome trained = run("tokenizer --vocab 500 --sample-mb 1 --seed 7 --out " +
                              path("m.model") + " --json - " + path("a.txt"));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto model = nlohmann::json::parse(trained.out);
  EXPECT_EQ(model["vocab_size"], 500);
  const Outcome encoded = run("encode --tokenizer " + path("m.model") + " --out " + path("out") +
                              " --json - " + path("a.txt"));
  ASSERT_EQ(encoded.status, 0) << encoded.err;
  const auto json = nlohmann::json::parse(encoded.out);
  EXPECT_EQ(json["documents"], 2);
  EXPECT_EQ(json["shards"], 1);
  EXPECT_EQ(read_text(path("out/tokenizer.model")), read_text(path("m.model")));
  const auto info = nlohmann::json::parse(
      run("info " + path("out") + " --verify --json - --tokenizer " + path("out/tokenizer.model"))
          .out);
  EXPECT_EQ(info["tokens"], json["tokens"]);
  EXPECT_EQ(info["fingerprint"], model["fingerprint"]);
  EXPECT_EQ(info["verified"], true);
  EXPECT_NE(run("info " + path("out")).out.find("sentencepiece"), std::string::npos);
  fails("info --tokenizer bytes " + path("out"), "another tokenizer");
}

TEST_F(DataCli, MixedFolders) {
  fs::create_directories(path("in/sub"));
  write_text_atomic(path("in/a.txt"), "a");
  write_text_atomic(path("in/sub/b.jsonl.zst"), zstd("{\"text\": \"b\"}\n{\"text\": \"c\"}\n"));
  write_text_atomic(path("in/c.txt.gz"), gzip("d\n<|endoftext|>\ne"));
  write_text_atomic(path("in/notes.md"), "x");
  const Outcome outcome =
      run("encode --tokenizer bytes --out " + path("out") + " --json - " + path("in"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("notes.md"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["documents"], 5);
}

TEST_F(DataCli, BadInputIsToldAndNothingIsLost) {
  const std::string encode = "encode --tokenizer bytes --out " + path("out") + " ";
  write_text_atomic(path("bad.txt"), "good line\ncaf\xe9\n");
  fails(encode + path("bad.txt"), "line 2, at byte 14");
  write_text_atomic(path("empty.txt"), "");
  // Nothing was finished, so nothing stands in the way of another text.
  fails(encode + path("empty.txt"), "corpus is empty");
  fails(encode + path("nowhere.txt"), "nowhere.txt");
  fails("encode --tokenizer " + path("bad.txt") + " --out " + path("out") + " " + path("bad.txt"),
        "not a SentencePiece model");
  fails("info " + path("out"), "not finished");
  fails("tokenizer --vocab 400 --out " + path("m.model") + " " + path("empty.txt"),
        "corpus is empty");
  EXPECT_FALSE(fs::exists(path("m.model")));
  write_text_atomic(path("file"), "x");
  write_text_atomic(path("a.txt"), "text");
  fails("encode --tokenizer bytes --out " + path("file") + " " + path("a.txt"), "file");
  EXPECT_EQ(run("encode --tokenizer bytes " + path("a.txt")).status, 2);
  EXPECT_EQ(
      run("encode --tokenizer bytes --out " + path("o2") + " --shard-mb 0 " + path("a.txt")).status,
      2);
}

TEST_F(DataCli, AFullDiskLosesNothing) {
  write_corpus("a.txt", 4);
  const std::string encode = "encode --tokenizer bytes --shard-mb 2 --out ";
  ASSERT_EQ(run(encode + path("whole") + " " + path("a.txt")).status, 0);
  // The limit (in blocks of 512 or 1024 bytes) leaves no room for a shard of 2 MiB.
  fails(encode + path("out") + " " + path("a.txt"), "limit", "ulimit -f 500; ");
  EXPECT_FALSE(fs::exists(path("out/index.json")));
  for (const auto& entry : fs::directory_iterator(path("out"))) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
  ASSERT_EQ(run(encode + path("out") + " " + path("a.txt")).status, 0);
  EXPECT_EQ(content(path("out")), content(path("whole")));
}

TEST_F(DataCli, OneProcessAtATimeEncodesIntoAFolder) {
  write_text_atomic(path("a.txt"), "text");
  const std::string encode = "encode --tokenizer bytes --out " + path("out") + " " + path("a.txt");
  fs::create_directory(path("out"));
  {
    FileLock lock;
    ASSERT_TRUE(lock.take(path("out")));
    fails(encode, "another process is encoding into");
    EXPECT_TRUE(fs::is_empty(path("out")));
  }
  EXPECT_EQ(run(encode).status, 0);
}

TEST_F(DataCli, AKilledEncodingGoesOnAndGivesTheSameBytes) {
  write_corpus("a.txt", 30);
  const std::vector<std::string> arguments = {FWPKM_BINARY, "data",       "encode", "--tokenizer",
                                              "bytes",      "--shard-mb", "4",      "--out",
                                              path("out"),  path("a.txt")};
  std::string encode = "encode --tokenizer bytes --shard-mb 4 --out ";
  ASSERT_EQ(run(encode + path("whole") + " " + path("a.txt")).status, 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const auto start_and_kill = [&](const std::string& when_there) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    while (!fs::exists(path(when_there)) && ::waitpid(child, nullptr, WNOHANG) == 0) {
      ::usleep(200);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  };
  // Killed at different moments. On a busy machine it may be done before that: then once more.
  bool killed = false;
  for (int attempt = 0; attempt < 10 && !killed; ++attempt) {
    fs::remove_all(path("out"));
    start_and_kill("out/shard-00000.tok");
    start_and_kill("out/shard-00003.tok");
    killed = !fs::exists(path("out/index.json"));
  }
  ASSERT_TRUE(killed);
  const Outcome outcome = run(encode + path("out") + " --json - " + path("a.txt"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(nlohmann::json::parse(outcome.out)["resumed_documents"], 0);
  EXPECT_EQ(content(path("out")), content(path("whole")));
}

TEST_F(DataCli, MemoryStaysBounded) {
  // One document, in one line, much larger than what may be held.
  std::string text = made_up_text(1 << 20, 5);
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::string large;
  for (int i = 0; i < 100; ++i) {
    large += text;
  }
  write_text_atomic(path("large.txt.zst"), zstd(large));
  const Outcome outcome =
      run("encode --tokenizer bytes --out " + path("out") + " --json - " + path("large.txt.zst"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["tokens"].get<size_t>(), large.size() + 1);
  EXPECT_EQ(json["documents"], 1);
  if (!kAddressSanitizer) {
    EXPECT_LT(json["peak_mb"].get<double>(), 100);
  }
}

}  // namespace
}  // namespace fwpkm
