// Makes models for the C tests of fwpkm.h, runs these, and looks at what they left.
#include <gtest/gtest.h>

#include "memory_models.h"
#include "model/checkpoint.h"
#include "process.h"
#include "session/open.h"
#include "session/session.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Capi : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    const nlohmann::json json =
        memory_model({{"name", "capi"}, {"vocab_size", 257}, {"layout", "gdn+swa"}});
    make("model", json, 1, true);
    make("other", json, 2, true);
    make("plain", json, 1, false);
    make("huge", json, 1, false);
    nlohmann::json huge = json;
    huge.merge_patch({{"fwpkm", {{"n_subkeys", 65536}, {"value_dim", 64}}}});
    write_text_atomic(*dir_ / "huge/config.json", huge.dump());
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static void make(const std::string& name, const nlohmann::json& json, uint64_t seed,
                   bool tokenizer) {
    Model model(parse_config(json, "test"), Device::cpu(), false);
    randomize(&model.parameters(), seed);
    save_model(model, *dir_ / name);
    if (tokenizer) {
      const nlohmann::json about = {{"kind", "bytes"},
                                    {"fingerprint", load_tokenizer("bytes")->fingerprint()}};
      write_text_atomic(*dir_ / name / "tokenizer.json", about.dump());
    }
  }

  // Runs one test of the C program; -> what it printed.
  static std::string run_c(const std::string& test, const std::string& before = "") {
    const ProcessResult result =
        run_command(fmt::format("{}{} {} {}", before, FWPKM_CAPI_TEST, test, folder()));
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }
  static std::string folder() { return dir_->path().string(); }

  static std::unique_ptr<TempDir> dir_;
};

std::unique_ptr<TempDir> Capi::dir_;

TEST_F(Capi, Models) {
  EXPECT_EQ("fwpkm " + run_c("models"), run_program("--version").out);
}

// The session that C saved is a session for C++ and for commands, which find its model.
TEST_F(Capi, Sessions) {
  run_c("sessions");
  const OpenModel open = open_model(*dir_ / "model", Device::cpu());
  const Session loaded = Session::load(open.model, *dir_ / "talk.session");
  Session again(open.model);
  again.feed(open.tokenizer->encode("The heron keeps the lantern. The baker keeps the violin."));
  EXPECT_EQ(loaded.settings().seed, 7);
  EXPECT_EQ(loaded.logits(), again.logits());
  EXPECT_TRUE(Session::diff(loaded.fork(), loaded).slots.empty());
  const ProcessResult info = run_program("session info --json - " + folder() + "/talk.session");
  ASSERT_EQ(info.status, 0) << info.err;
  EXPECT_EQ(nlohmann::json::parse(info.out).at("position"), loaded.position());
}

TEST_F(Capi, Together) {
  run_c("together");
}

TEST_F(Capi, Marks) {
  run_c("marks");
}

TEST_F(Capi, Slots) {
  run_c("slots");
}

TEST_F(Capi, Threads) {
  run_c("threads");
}

TEST_F(Capi, Errors) {
  run_c("errors");
}

TEST_F(Capi, Files) {
  run_c("files");
}

// The model `huge` asks for 2 TiB. Some systems promise any amount, so a limit is set; but not
// where the sanitizer has one of its own.
TEST_F(Capi, OutOfMemory) {
  run_c("memory",
        kSanitized ? "ASAN_OPTIONS=allocator_may_return_null=1 " : "ulimit -v 67108864; ");
}

}  // namespace
}  // namespace fwpkm
