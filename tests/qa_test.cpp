#include "text/qa.h"

#include <gtest/gtest.h>

#include "corpus_files.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

constexpr const char* kLongbench =
    R"({"context": "A long text.", "input": "Who?", "answers": ["Ada", "her"], "dataset": "people", "length": 3, "_id": 7})"
    "\n"
    R"({"context": "Another.", "input": "", "answers": ["so"], "length": 1})"
    "\n";
constexpr const char* kLeval =
    R"({"input": "A document.", "instructions": ["What?", "Why?"], "outputs": ["It", "So"], "source": "x"})";

std::vector<QaDocument> read_all(const std::filesystem::path& path) {
  QaReader reader(path);
  std::vector<QaDocument> all;
  for (QaDocument d; reader.next(&d);) {
    all.push_back(d);
  }
  return all;
}

TEST(Qa, ReadsLongbench) {
  const TempDir dir;
  for (const std::string name : {"b.jsonl", "b.jsonl.gz", "b.jsonl.zst"}) {
    write_text_atomic(dir / name, name.ends_with("gz")    ? gzip(kLongbench)
                                  : name.ends_with("zst") ? zstd(kLongbench)
                                                          : kLongbench);
    const auto all = read_all(dir / name);
    ASSERT_EQ(all.size(), 2u) << name;
    EXPECT_EQ(all[0].task, "people");
    EXPECT_EQ(all[0].context, "A long text.");
    ASSERT_EQ(all[0].questions.size(), 1u);
    EXPECT_EQ(all[0].questions[0].question, "Who?");
    EXPECT_EQ(all[0].questions[0].answer, "Ada");
    EXPECT_EQ(all[1].task, "b");
    EXPECT_EQ(all[1].questions[0].question, "");
  }
}

TEST(Qa, ReadsLeval) {
  const TempDir dir;
  write_text_atomic(dir / "stories.jsonl", kLeval);
  const auto all = read_all(dir / "stories.jsonl");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].task, "stories");
  EXPECT_EQ(all[0].context, "A document.");
  ASSERT_EQ(all[0].questions.size(), 2u);
  EXPECT_EQ(all[0].questions[1].question, "Why?");
  EXPECT_EQ(all[0].questions[1].answer, "So");
}

TEST(Qa, RefusesDamagedFilesByLine) {
  const TempDir dir;
  const auto refused = [&](const std::string& line, const std::string& message) {
    write_text_atomic(dir / "bad.jsonl", std::string(kLeval) + "\n" + line + "\n");
    expect_error([&] { read_all(dir / "bad.jsonl"); }, "[questions]", "bad.jsonl' line 2", message);
  };
  refused("{", "not valid JSON");
  refused(R"({"text": "Only."})", "neither a line of LongBench");
  refused(R"({"context": "", "input": "q", "answers": ["a"]})", "\"context\" is empty");
  refused(R"({"context": "c", "input": "q", "answers": []})", "\"answers\"");
  refused(R"({"context": "c", "input": "q", "answers": [" "]})", "\"answers\" number 1 is empty");
  refused(R"({"context": "c", "input": "q", "answers": [1]})", "not a text");
  refused(R"({"context": "c", "answers": ["a"]})", "\"input\"");
  refused(R"({"input": "c", "instructions": ["a", "b"], "outputs": ["a"]})",
          "2 instructions, but 1 outputs");
  refused(R"({"input": "c", "instructions": ["a"]})", "\"outputs\"");
  refused(R"({"instructions": ["a"], "outputs": ["b"]})", "\"input\"");
  write_text_atomic(dir / "blank.jsonl", "\n\n");
  expect_error([&] { read_all(dir / "blank.jsonl"); }, "blank.jsonl", "holds no document");
}

}  // namespace
}  // namespace fwpkm
