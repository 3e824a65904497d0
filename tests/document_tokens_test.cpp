#include "text/document_tokens.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "temp_dir.h"
#include "text/encode.h"

namespace fwpkm {
namespace {

struct All {
  std::vector<std::vector<int32_t>> documents;
  int64_t pieces = 0;
  bool operator==(const All& other) const { return documents == other.documents; }
};

All read_all(const std::vector<std::string>& paths, int64_t most, int64_t skip = 0) {
  DocumentTokens data(paths, load_tokenizer("bytes"));
  data.skip(skip);
  All all;
  DocumentTokens::Piece piece;
  bool ended = true;
  while (data.next(&piece, most)) {
    EXPECT_LE(std::ssize(piece.tokens), most);
    EXPECT_FALSE(piece.tokens.empty());
    EXPECT_TRUE(piece.starts == ended || skip > 0);
    if (ended) {
      all.documents.emplace_back();
    }
    EXPECT_TRUE(piece.document == std::ssize(all.documents) - 1 || skip > 0);
    all.documents.back().insert(all.documents.back().end(), piece.tokens.begin(),
                                piece.tokens.end());
    ended = piece.ends;
    ++all.pieces;
  }
  EXPECT_TRUE(ended);
  EXPECT_DOUBLE_EQ(data.fraction(), 1.0);
  return all;
}

TEST(DocumentTokens, TextAndCorpusGiveTheSame) {
  const TempDir dir;
  const std::string text = (dir / "a.txt").string(), more = (dir / "b.txt").string();
  write_text_atomic(text, "one\n<|endoftext|>\nthe second document\n");
  write_text_atomic(more, "3");
  const int32_t end = load_tokenizer("bytes")->end_of_text();
  const All whole = read_all({text, more}, 1000);
  ASSERT_EQ(whole.documents.size(), 3u);
  for (const auto& document : whole.documents) {
    EXPECT_EQ(std::count(document.begin(), document.end(), end), 1);
    EXPECT_EQ(document.back(), end);
  }
  EXPECT_EQ(whole.documents[2], (std::vector<int32_t>{'3', end}));
  for (const int64_t most : {1, 2, 5}) {
    EXPECT_EQ(read_all({text, more}, most), whole) << most;
  }
  EncodeSettings settings;
  settings.inputs = {text, more};
  settings.out = (dir / "corpus").string();
  encode_corpus(settings, *load_tokenizer("bytes"), {});
  for (const int64_t most : {1, 3, 1000}) {
    EXPECT_EQ(read_all({settings.out}, most), whole) << most;
  }
  // Skipping is reading without looking.
  const auto first = std::ssize(whole.documents[0]);
  EXPECT_EQ(read_all({text, more}, 7, first + 3).documents.back(), whole.documents[2]);
  EXPECT_EQ(std::ssize(read_all({settings.out}, 7, first + 3).documents[0]),
            std::ssize(whole.documents[1]) - 3);
  EXPECT_THROW(DocumentTokens({text, settings.out}, load_tokenizer("bytes")), Error);
}

TEST(DocumentTokens, BuiltInTextHasNoEnd) {
  DocumentTokens data({"builtin"}, load_tokenizer("bytes"));
  EXPECT_TRUE(data.endless());
  data.skip(100000);
  DocumentTokens::Piece piece;
  ASSERT_TRUE(data.next(&piece, 64));
  EXPECT_THROW(DocumentTokens({"builtin:recall"}, load_tokenizer("bytes")), Error);
}

}  // namespace
}  // namespace fwpkm
