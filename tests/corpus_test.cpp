#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "corpus_files.h"
#include "temp_dir.h"
#include "text/utf8.h"

namespace fwpkm {
namespace {

using Documents = std::vector<std::string>;

class Corpus : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    const auto path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_text_atomic(path, text);
    return path.string();
  }
  TempDir dir_;
};

TEST_F(Corpus, SeparatorLinesAreBorders) {
  EXPECT_EQ(all_documents({file("a.txt", "one\ntwo\n<|endoftext|>\nthree")}),
            (Documents{"one\ntwo\n", "three"}));
  EXPECT_EQ(all_documents({file("b.txt",
                                "<|endoftext|>\r\n<|endoftext|>\nx\r\n<|endoftext|>\r\ny\n"
                                "<|endoftext|>")}),
            (Documents{"x\r\n", "y\n"}));
  // Only a line of its own separates.
  EXPECT_EQ(all_documents({file("c.txt", "a <|endoftext|>\n<|endoftext|> b\n<|endoftext|")}),
            (Documents{"a <|endoftext|>\n<|endoftext|> b\n<|endoftext|"}));
  EXPECT_EQ(all_documents({file("d.text", "\xef\xbb\xbfmarked")}), Documents{"marked"});
  EXPECT_EQ(all_documents({file("e.txt", "first"), file("f.txt", ""), file("g.txt", "second")}),
            (Documents{"first", "second"}));
}

TEST_F(Corpus, JsonLinesGiveTheirText) {
  EXPECT_EQ(all_documents({file("a.jsonl",
                                "{\"text\": \"on\\u00e9\\nline\", \"id\": 3}\n\n"
                                "{\"meta\": {\"text\": \"no\"}, \"text\": \"two\"}\r\n"
                                "{\"text\": \"\"}\n{\"text\": \"<|endoftext|>\"}")}),
            (Documents{"on\xc3\xa9\nline", "two", "<|endoftext|>"}));
  expect_error([&] { all_documents({file("b.jsonl", "{\"text\": \"x\"}\n{\"text\": 3}\n")}); },
               "b.jsonl", "line 2", "\"text\"");
  expect_error([&] { all_documents({file("c.ndjson", "{\"text\": \"x\"}\n\n{\"text\": \"")}); },
               "c.ndjson", "line 3", "not valid JSON");
  expect_error([&] { all_documents({file("d.jsonl", "{\"text\": \"\\ud800\"}")}); }, "line 1");
  expect_error([&] { all_documents({file("e.jsonl", std::string(100000, '['))}); }, "line 1");
}

TEST_F(Corpus, PiecesJoinToTheTextWhateverTheirSize) {
  const std::string text = made_up_text(20000, 1) + std::string(700, 'x') + "\n" +
                           made_up_text(3000, 2) + "<|endoftext|>\n" + std::string(999, ' ') +
                           "中中中中中中中中";
  const std::string path = file("a.txt", text);
  const std::string json = file("a.jsonl", nlohmann::json{{"text", text}}.dump());
  const Documents expected = all_documents({path});
  ASSERT_EQ(expected.size(), 2u);
  for (const size_t bytes : {4, 5, 13, 14, 64, 1000, 4096, 23000, 1 << 20}) {
    EXPECT_EQ(all_documents({path}, {.piece_bytes = bytes}), expected) << bytes;
    EXPECT_EQ(all_documents({json}, {.piece_bytes = bytes}), Documents{text}) << bytes;
    DocumentReader reader(list_sources({path}), {.piece_bytes = bytes});
    TextPiece piece;
    while (reader.next(piece)) {
      EXPECT_LE(piece.text.size(), bytes);
      EXPECT_EQ(utf8_error(piece.text), std::string::npos);
    }
    EXPECT_DOUBLE_EQ(reader.fraction(), 1.0);
  }
}

TEST_F(Corpus, CutsAreAtLineEndsOrSpaces) {
  EXPECT_EQ(cut_text("short", 10), 5u);
  EXPECT_EQ(cut_text("ab cd\nef gh", 8), 6u);
  EXPECT_EQ(cut_text("ab\n\n\ncd ef", 4), 4u);  // no better line end within reach
  EXPECT_EQ(cut_text("ab\nc\n\ncd ef", 5), 3u);
  EXPECT_EQ(cut_text("abcd  efghij", 8), 4u);
  EXPECT_EQ(cut_text("a中中", 5), 4u);
}

TEST_F(Corpus, CompressedFilesReadTheSame) {
  const std::string text = made_up_text(600000, 3) + "<|endoftext|>\n" + made_up_text(1000, 4);
  const Documents expected = all_documents({file("a.txt", text)});
  EXPECT_EQ(all_documents({file("a.txt.gz", gzip(text))}), expected);
  EXPECT_EQ(all_documents({file("a.txt.zst", zstd(text))}), expected);
  EXPECT_EQ(all_documents({file("b.txt.zst", zstd(text, 27))}), expected);  // --long=27
  // Several members or frames one after the other are one file.
  const std::string front = text.substr(0, 1000), back = text.substr(1000);
  EXPECT_EQ(all_documents({file("c.txt.gz", gzip(front) + gzip(back))}), expected);
  EXPECT_EQ(all_documents({file("c.text.zst", zstd(front) + zstd(back))}), expected);
  EXPECT_EQ(all_documents({file("d.jsonl.gz", gzip("{\"text\": \"x\"}\n"))}), Documents{"x"});
}

TEST_F(Corpus, DamagedCompressionIsAnError) {
  const std::string text = made_up_text(300000, 5);
  for (const auto& entry : {std::pair{"a.txt.gz", gzip(text)}, {"a.txt.zst", zstd(text)}}) {
    const char* name = entry.first;
    const std::string& packed = entry.second;
    expect_error([&] { all_documents({file(name, packed.substr(0, packed.size() / 2))}); }, name,
                 "ends too early");
    std::string flipped = packed;
    flipped[flipped.size() / 2] ^= 0x10;
    EXPECT_NE(error_of([&] { all_documents({file(name, flipped)}); }).find(name),
              std::string::npos);
    expect_error([&] { all_documents({file(name, text)}); }, name, "cannot decompress");
  }
  expect_error([&] { all_documents({file("b.txt.zst", zstd(text, 30))}); }, "b.txt.zst", "memory");
}

TEST_F(Corpus, FoldersAreReadByPath) {
  file("in/b.txt", "b");
  file("in/a/z.jsonl", "{\"text\": \"z\"}");
  file("in/a/y.txt.gz", gzip("y"));
  file("in/c.md", "no");
  file("in/a/photo.png", "no");
  std::vector<std::string> skipped;
  const auto files = list_sources({(dir_ / "in").string()}, &skipped);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(skipped.size(), 2u);
  EXPECT_EQ(all_documents({(dir_ / "in").string()}), (Documents{"y", "z", "b"}));

  file("useless/c.md", "no");
  expect_error([&] { all_documents({(dir_ / "useless").string()}); }, "none of the 1 files",
               "useless");
  expect_error([&] { all_documents({(dir_ / "in" / "c.md").string()}); }, "c.md", "no known kind");
  expect_error([&] { all_documents({(dir_ / "nowhere").string()}); }, "nowhere", "does not exist");
}

TEST_F(Corpus, AnEmptyCorpusIsAnError) {
  expect_error([&] { all_documents({file("a.txt", "")}); }, "empty", "a.txt");
  expect_error([&] { all_documents({file("b.txt", "<|endoftext|>\n<|endoftext|>\n")}); }, "empty");
  expect_error([&] { all_documents({file("c.jsonl", "\n{\"text\": \"\"}\n")}); }, "empty");
  expect_error([&] { all_documents({}); }, "no files");
}

TEST_F(Corpus, TextThatIsNotUtf8IsToldWhere) {
  const std::string front = made_up_text(500000, 6);
  const auto line = 1 + std::count(front.begin(), front.end(), '\n');
  expect_error([&] { all_documents({file("a.txt", front + "caf\xe9 x")}); }, "a.txt",
               fmt::format("line {}", line), fmt::format("at byte {}", front.size() + 4), "0x20");
  expect_error([&] { all_documents({file("b.txt.gz", gzip(front + "\xff"))}); },
               fmt::format("at byte {}", front.size()), "0xff");
  expect_error(
      [&] { all_documents({file("c.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\xc0\x80\"}")}); },
      "line 2", "at byte 24");
  expect_error([&] { all_documents({file("d.txt", "cut \xe4\xb8")}); }, "d.txt",
               "inside a character");
}

TEST_F(Corpus, Utf8IsCheckedByTheBook) {
  for (const std::string good :
       {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "0123456789abcdef\xc3\xa9"}) {
    EXPECT_EQ(utf8_error(good), std::string::npos) << good;
    EXPECT_EQ(utf8_whole(good), good.size());
    if (good.size() > 1 && static_cast<unsigned char>(good[0]) > 0x80) {
      EXPECT_NE(utf8_error(good.substr(0, good.size() - 1)), std::string::npos);
      EXPECT_EQ(utf8_whole("x" + good.substr(0, good.size() - 1)), 1u);
    }
  }
  for (const std::string bad :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "0123456789\xc3(", "\xc3"}) {
    EXPECT_NE(utf8_error(bad), std::string::npos) << bad;
  }
}

TEST_F(Corpus, ADocumentOfAnyLengthStreams) {
  // 24 MB in one line, one document: pieces stay small, and nothing is held back.
  std::string text;
  for (const std::string unit = made_up_text(1 << 16, 7); text.size() < (24u << 20);) {
    text += unit;
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  DocumentReader reader(list_sources({file("long.txt.zst", zstd(text))}));
  TextPiece piece;
  uint64_t at = 0;
  while (reader.next(piece)) {
    ASSERT_LE(piece.text.size(), 64u << 10);
    ASSERT_EQ(text.compare(at, piece.text.size(), piece.text), 0);
    at += piece.text.size();
  }
  EXPECT_EQ(at, text.size());
  EXPECT_EQ(reader.documents(), 1);
  // JSON lines have to be held whole, so they have a limit.
  expect_error(
      [&] {
        all_documents({file("a.jsonl", "{\"text\": \"" + std::string(3 << 20, 'x') + "\"}")},
                      {.json_line_bytes = 1 << 20});
      },
      "a.jsonl", "line 1", "longer than 1 MB", ".txt");
}

}  // namespace
}  // namespace fwpkm
