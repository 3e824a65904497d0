// Sessions as commands: what a user does with them, and what can go wrong.
#include <gtest/gtest.h>

#include <fstream>

#include "base/timer.h"
#include "model/checkpoint.h"
#include "process.h"
#include "session_models.h"
#include "text/tokenizer.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class SessionCli : public testing::Test {
 protected:
  // A model of bytes with a memory that is written every 16 tokens.
  SessionCli() {
    json config = memory_model({{"vocab_size", 257},
                                {"layout", "gdn+swa"},
                                {"fwpkm", {{"chunk", 16}, {"n_subkeys", 24}, {"value_dim", 16}}}});
    make_model("model", config, 7);
    write_text_atomic(path("a.txt"), "The blue door opens with the small key under the stone. ");
    write_text_atomic(path("b.txt"), "Nobody knows who painted the red bridge last winter. ");
  }
  void make_model(const std::string& name, const json& config, uint64_t seed) {
    Model model(parse_config(config, "test"), Device::cpu(), false);
    randomize(&model.parameters(), seed);
    save_model(model, dir_ / name);
    write_text_atomic(
        dir_ / name / "tokenizer.json",
        json({{"kind", "bytes"}, {"fingerprint", load_tokenizer("bytes")->fingerprint()}}).dump());
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string fresh(const std::string& name = "s") const {
    ok("session new " + path(name) + " --model " + path("model"));
    return path(name);
  }

  TempDir dir_;
};

// Many processes make the same file as one.
TEST_F(SessionCli, GoesOnOverProcesses) {
  const std::string s = fresh(), t = fresh("t");
  ok("session feed " + s + " " + path("a.txt") + " " + path("b.txt"));
  ok("session feed " + t + " " + path("a.txt"));
  const json info = ok("session feed " + t + " " + path("b.txt"));
  EXPECT_EQ(read_text(s), read_text(t));
  EXPECT_EQ(info.at("position"), 109);
  EXPECT_EQ(info.at("updates"), 6);
  EXPECT_EQ(info.at("queued"), 13);
  EXPECT_GT(info.at("memories").at(0).at("slots"), 10);
  // Standard input is text too.
  const std::string u = fresh("u");
  EXPECT_EQ(
      run_program("session feed " + u, "cat " + path("a.txt") + " " + path("b.txt") + " | ").status,
      0);
  EXPECT_EQ(ok("session info " + u).at("position"), 109);
}

TEST_F(SessionCli, AskingLeavesNoTraceUnlessItLearns) {
  const std::string s = fresh();
  ok("session feed " + s + " " + path("a.txt"));
  const std::string before = read_text(s);
  const std::string ask = "session ask " + s + " --prompt 'The blue' --tokens 20";
  const json first = ok(ask);
  EXPECT_LE(first.at("tokens"), 20);  // fewer where it draws the end of the text
  EXPECT_EQ(first.at("learned"), false);
  EXPECT_EQ(read_text(s), before);
  EXPECT_EQ(ok(ask), first);
  const int64_t position = ok(ask + " --learn").at("position");
  EXPECT_GT(position, 56 + 8);
  EXPECT_NE(read_text(s), before);
  EXPECT_EQ(ok("session info " + s).at("position"), position);
}

TEST_F(SessionCli, MarksForksAndDiffs) {
  const std::string s = fresh();
  ok("session feed " + s + " " + path("a.txt") + " --flush");
  ok("session mark " + s + " start");
  const std::string before = read_text(s);
  ok("session fork " + s + " " + path("f"));
  ok("session feed " + s + " " + path("b.txt") + " --flush");
  const json diff = ok("session diff " + path("f") + " " + s);
  EXPECT_EQ(ok("session diff " + s + " --mark start"), diff);
  ASSERT_GT(diff.at("slots").size(), 5u);
  EXPECT_GE(diff.at("slots").at(0).at("change"), diff.at("slots").at(1).at("change"));
  bool found = false;  // the text that wrote them is told
  for (const json& slot : diff.at("slots")) {
    for (const json& write : slot.at("writes")) {
      found = found || write.at("text").get<std::string>().find("bri[d]ge") != std::string::npos;
    }
  }
  EXPECT_TRUE(found);
  ok("session rollback " + s + " start");
  EXPECT_EQ(read_text(s), before);
  EXPECT_EQ(ok("session mark " + s + " start --remove").at("marks").size(), 0u);
  fails("session rollback " + s + " start", "there is no mark 'start'; marks: none");
  fails("session fork " + s + " " + path("f"), "exists; choose another name");
  fails("session diff " + s, "give a second session, or --mark");
}

TEST_F(SessionCli, ForgetsByTextAndBySlot) {
  const std::string s = fresh();
  ok("session feed " + s + " " + path("a.txt") + " " + path("b.txt") + " --flush");
  const json found = ok("inspect slots --session " + s + " --text 'painted the red'");
  ASSERT_GT(found.at("slots").size(), 3u);
  const json& slot = found.at("slots").at(0);
  const std::string name =
      fmt::format("{}:{}", slot.at("layer").get<int>(), slot.at("slot").get<int>());
  EXPECT_EQ(ok("inspect slots --session " + s + " --slot " + name).at("slots").at(0), slot);
  const json forgot = ok("session forget " + s + " --text 'painted the red'");
  EXPECT_EQ(forgot.at("forgotten").size(), found.at("slots").size());
  EXPECT_EQ(ok("inspect slots --session " + s + " --text 'painted the red'").at("slots").size(),
            0u);
  EXPECT_EQ(ok("session forget " + s + " --slot " + name).at("forgotten").size(), 0u);
  fails("session forget " + s + " --text 'painted the red'", "no slot is known");
  fails("session forget " + s, "say what to forget");
  fails("session forget " + s + " --slot 0:1", "layer 0 has no memory");
  fails("session forget " + s + " --slot 1:999999", "outside 0..");
  fails("inspect slots --session " + s + " --slot 1:-3", "outside 0..");
  ok("session feed " + s + " " + path("a.txt"));
  fails("session forget " + s + " --text 'under the stone'", "still waits to be written");
  EXPECT_EQ(ok("session reset " + s + " --memory").at("updates"), 0);
  EXPECT_EQ(ok("session reset " + s).at("in_stream"), 0);
  ok("session new " + path("quiet") + " --no-history --model " + path("model"));
  ok("session feed " + path("quiet") + " " + path("a.txt") + " --flush");
  EXPECT_EQ(read_text(path("quiet")).find("under"), std::string::npos);
  fails("session forget " + path("quiet") + " --text door", "keeps no history");
  fails("inspect slots --session " + path("quiet"), "keeps no history");
}

TEST_F(SessionCli, GenerateGoesOnAndSaves) {
  const std::string s = fresh();
  ok("session feed " + s + " " + path("a.txt"));
  const std::string before = read_text(s);
  const json made = ok("generate --session " + s + " --prompt door --tokens 9 --save " + path("g"));
  const int64_t position = made.at("position");
  EXPECT_GT(position, 56 + 4);
  EXPECT_EQ(read_text(s), before);
  EXPECT_EQ(ok("session info " + path("g")).at("position"), position);
  ok("generate --session " + s + " --tokens 3 --read-only --save " + s);
  EXPECT_EQ(ok("session info " + s).at("queued"), 8);
  fails("generate --prompt x", "give --model");
  std::filesystem::rename(path("model"), path("moved"));
  fails("generate --session " + s + " --tokens 1", "which is not there");
  EXPECT_EQ(ok("generate --session " + s + " --tokens 1 --model " + path("moved")).at("tokens"), 1);
}

TEST_F(SessionCli, WrongFilesAreRefused) {
  const std::string s = fresh();
  fails("session info " + path("nothing"), "there is no session");
  fails("session info " + path("a.txt"), "is not a session");
  fails("session new " + s + " --model " + path("model"), "exists");
  json config = memory_model({{"vocab_size", 257},
                              {"layout", "gdn+swa"},
                              {"fwpkm", {{"chunk", 16}, {"n_subkeys", 24}, {"value_dim", 16}}}});
  make_model("other", config, 8);
  fails("session info " + s + " --model " + path("other"), "has other weights: tensor ");
  fs::rename(path("model"), path("moved"));
  fails("session info " + s, "tell where it is with --model");
  EXPECT_EQ(ok("session info " + s + " --model " + path("moved")).at("position"), 0);
  std::ofstream(path("latin.txt")) << "caf\xe9";
  fails("session feed " + s + " " + path("latin.txt") + " --model " + path("moved"), "UTF-8");
  FileLock lock;
  ASSERT_TRUE(lock.take(s));
  fails("session mark " + s + " x --model " + path("moved"), "another process is changing");
}

TEST_F(SessionCli, AFullDiskLeavesTheOldFile) {
  const std::string s = fresh();
  ok("session feed " + s + " " + path("a.txt"));
  const std::string before = read_text(s);
  const ProcessResult r = run_program("session feed " + s + " " + path("b.txt"), "ulimit -f 20; ");
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(read_text(s), before);
}

// Killed 50 times, half of them while a file is being written: the old one or the new one.
TEST_F(SessionCli, SurvivesKills) {
  std::string s = fresh();
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += fmt::format("{} Number {} of many lines that are all different. ", i * i, i);
  }
  write_text_atomic(path("long.txt"), text);
  ok("session feed " + s + " " + path("long.txt"));
  write_text_atomic(path("c.txt"), "One more line.");
  Random random(9);
  int64_t position = ok("session info " + s).at("position");
  int writing = 0;
  const auto model = std::shared_ptr<const Model>(load_model(path("model"), Device::cpu(), false));
  for (int round = 0; round < 50; ++round) {
    {
      Child child({"session", "feed", s, path("c.txt"), "--threads", "1"});
      const bool wait_for_file = round % 2 == 0;
      bool seen = !wait_for_file;
      const double start = now_seconds();
      while (!seen && child.running() && now_seconds() - start < 60) {
        for (const auto& entry : fs::directory_iterator(dir_.path())) {
          seen = seen || entry.path().extension() == ".tmp";
        }
        usleep(50);
      }
      writing += wait_for_file && seen ? 1 : 0;
      usleep(static_cast<useconds_t>(random.below(wait_for_file ? 3000 : 60000)));
    }  // killed
    const Session session = Session::load(model, s);
    ASSERT_TRUE(session.position() == position || session.position() == position + 14)
        << session.position() << " after " << position;
    position = session.position();
  }
  EXPECT_GT(writing, 5);  // a fast disk may be done before it is seen
  // The next one cleans up after the dead.
  ok("session mark " + s + " end");
  for (const auto& entry : fs::directory_iterator(dir_.path())) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

}  // namespace
}  // namespace fwpkm
