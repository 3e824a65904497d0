#include "eval/folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

using nlohmann::json;

json about(int seed = 1) {
  return {{"kind", "test"}, {"settings", {{"seed", seed}}}};
}

TEST(EvalFolder, GoesOnBehindItsLastWholeLine) {
  const TempDir dir;
  const auto path = dir / "out";
  {
    EvalFolder folder(path, about());
    EXPECT_TRUE(folder.done().empty());
    folder.add({{"n", 1}});
    folder.add({{"n", 2}});
    EXPECT_THROW(EvalFolder(path, about()), Error);  // two at a time
  }
  std::ofstream(path / "done.jsonl", std::ios::app) << "{\"n\": 3";  // killed here
  {
    EvalFolder folder(path, about());
    ASSERT_EQ(folder.done().size(), 2u);
    folder.add({{"n", 4}});
  }
  {
    EvalFolder folder(path, about());
    ASSERT_EQ(folder.done().size(), 3u);
    EXPECT_EQ(folder.done()[2].at("n"), 4);
    folder.keep_lines(1);
    folder.add({{"n", 5}});
    const json result = folder.finish({{"sum", 6}});
    EXPECT_EQ(result.at("kind"), "test");
    EXPECT_EQ(json::parse(read_text(path / "result.json")), result);
  }
  EvalFolder folder(path, about());
  ASSERT_EQ(folder.done().size(), 2u);
  EXPECT_EQ(folder.done()[1].at("n"), 5);
}

TEST(EvalFolder, RefusesAnotherEvaluation) {
  const TempDir dir;
  const auto path = dir / "out";
  { EvalFolder(path, about()).add({{"n", 1}}); }
  try {
    EvalFolder folder(path, about(2));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("settings.seed was 1, now it is 2"), std::string::npos)
        << error.what();
  }
  json more = about();
  more["extra"] = 1;
  try {
    EvalFolder folder(path, more);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("extra is new"), std::string::npos) << error.what();
  }
  EvalFolder folder(path, about(2), true);
  EXPECT_TRUE(folder.done().empty());
}

// A model is known by its fingerprint, wherever it lies.
TEST(EvalFolder, GoesOnWhenTheModelHasMoved) {
  const TempDir dir;
  const auto with = [](const char* folder, const char* fingerprint) {
    json all = about();
    all["models"] = {{{"folder", folder}, {"fingerprint", fingerprint}}};
    return all;
  };
  { EvalFolder(dir / "out", with("/a", "1")).add({{"n", 1}}); }
  { EXPECT_EQ(EvalFolder(dir / "out", with("/b", "1")).done().size(), 1u); }
  EXPECT_THROW(EvalFolder(dir / "out", with("/a", "2")), Error);
}

TEST(EvalFolder, WhatIsFoundOfModelsGoesToEach) {
  const json models = {{{"name", "a"}}, {{"name", "b"}}};
  const EvalFolder folder("", {{"kind", "test"}, {"models", models}});
  const json result = folder.finish({{"models", {{{"ppl", 1}}, {{"ppl", 2}}}}});
  EXPECT_EQ(result.at("models").at(1), (json{{"name", "b"}, {"ppl", 2}}));
}

TEST(EvalFolder, WithoutAPathNothingIsKept) {
  EvalFolder folder("", about());
  folder.add({{"n", 1}});
  EXPECT_EQ(folder.done().size(), 1u);
  EXPECT_EQ(folder.finish({{"sum", 1}}).at("sum"), 1);
}

}  // namespace
}  // namespace fwpkm
