// The built-in text: the same for ever, different worlds, and facts that come back far later.
#include "text/builtin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "temp_dir.h"
#include "token_hash.h"

namespace fwpkm {
namespace {

std::string read_all(const DocumentSource& source, int64_t document) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.length(document)));
  source.read(document, 0, tokens);
  return {tokens.begin(), tokens.end()};
}

TEST(Builtin, TextIsPinned) {
  EXPECT_EQ(token_hash(builtin_text(1, 0).text), 3098951903879960723ull);
}

TEST(Builtin, DocumentsAreTheTextsInAnyOrderAndNoneTwice) {
  const auto train = builtin_documents(3), again = builtin_documents(3);
  const auto valid = builtin_documents(3, 0, Split::kValid), other = builtin_documents(4);
  EXPECT_EQ(train->vocab_size(), 257);
  EXPECT_EQ(train->documents(), kEndless);
  EXPECT_EQ(train->fingerprint(), again->fingerprint());
  EXPECT_NE(train->fingerprint(), valid->fingerprint());
  EXPECT_NE(train->fingerprint(), other->fingerprint());
  EXPECT_NE(train->fingerprint(), builtin_documents(3, 500)->fingerprint());
  std::set<std::string> texts;
  for (int64_t d = 0; d < 60; ++d) {
    const std::string text = read_all(*train, d);
    EXPECT_EQ(text, builtin_text(3, d).text);
    texts.insert(text);
    texts.insert(read_all(*valid, d));
    texts.insert(read_all(*other, d));
  }
  EXPECT_EQ(texts.size(), 180u);
  for (int64_t d = 59; d >= 0; d -= 7) {
    EXPECT_EQ(read_all(*again, d), builtin_text(3, d).text);
  }
  std::vector<int32_t> piece(100);
  train->read(12, 333, piece);
  EXPECT_EQ(std::string(piece.begin(), piece.end()), builtin_text(3, 12).text.substr(333, 100));
}

TEST(Builtin, LengthIsAboutWhatWasAskedFor) {
  int64_t shortest = 1 << 30, longest = 0;
  for (int64_t d = 0; d < 200; ++d) {
    const auto size = std::ssize(builtin_text(1, d).text);
    shortest = std::min(shortest, size);
    longest = std::max(longest, size);
  }
  EXPECT_GE(shortest, 2000);
  EXPECT_LT(shortest, 3000);
  EXPECT_GT(longest, 15000);
  EXPECT_LE(longest, 21000);
  for (int64_t tokens : {1, 100, 1000, 50000, 1000000}) {
    const auto size = std::ssize(builtin_text(1, 0, tokens).text);
    EXPECT_GE(size, tokens * 3 / 4);
    EXPECT_LE(size, tokens * 5 / 4 + 1000);
  }
}

TEST(Builtin, RecalledWordsRepeatWhatWasSaid) {
  for (int64_t d = 0; d < 50; ++d) {
    const BuiltinText made = builtin_text(2, d);
    int64_t last = 0;
    for (const BuiltinText::Recall& r : made.recalls) {
      ASSERT_GE(r.begin, last);
      ASSERT_GE(r.stated, 0);
      ASSERT_LE(r.stated + r.end - r.begin, r.begin);
      ASSERT_LE(r.end, std::ssize(made.text));
      const auto size = static_cast<size_t>(r.end - r.begin);
      ASSERT_GE(size, 2u);
      EXPECT_EQ(made.text.substr(static_cast<size_t>(r.begin), size),
                made.text.substr(static_cast<size_t>(r.stated), size));
      last = r.end;
    }
  }
}

TEST(Builtin, FactsComeBackFarLater) {
  int64_t far = 0, very_far = 0, bytes = 0;
  for (int64_t d = 0; d < 100; ++d) {
    const BuiltinText made = builtin_text(5, d, 8000);
    int64_t here = 0;
    for (const BuiltinText::Recall& r : made.recalls) {
      here += r.begin - r.stated >= 1000 ? 1 : 0;
      very_far += r.begin - r.stated >= 4000 ? 1 : 0;
    }
    EXPECT_GE(here, 20) << "document " << d;
    far += here;
    bytes += std::ssize(made.text);
  }
  EXPECT_GT(far, bytes / 200);
  EXPECT_GT(very_far, bytes / 2000);
}

// A reader's own look, without the generator's marks: who has which code, from the sentences.
TEST(Builtin, CodesInTheTextAgree) {
  const std::string opened = " pressed the numbers ";
  int checked = 0;
  for (int64_t d = 0; d < 100; ++d) {
    const std::string text = builtin_text(6, d).text;
    for (size_t at = text.find(opened); at != text.npos; at = text.find(opened, at + 1)) {
      const std::string code = text.substr(at + opened.size(), 4);
      EXPECT_TRUE(std::all_of(code.begin(), code.end(), [](char c) { return std::isdigit(c); }));
      EXPECT_NE(text.rfind(code, at), text.npos) << "a code that nobody stated in document " << d;
      ++checked;
    }
  }
  EXPECT_GT(checked, 50);
}

// The same person has another town in another document: names tell nothing.
TEST(Builtin, WorldsDiffer) {
  std::map<std::string, std::set<std::string>> towns;
  const std::string lived = " lived in ";
  for (int64_t d = 0; d < 600; ++d) {
    const std::string text = builtin_text(8, d).text;
    for (size_t at = text.find(lived); at != text.npos; at = text.find(lived, at + 1)) {
      const size_t begin = text.find_last_of("\n.", at);
      const size_t name = text.find_first_not_of("\n. ", begin == text.npos ? 0 : begin);
      const size_t town = at + lived.size();
      towns[text.substr(name, text.find(' ', name) - name)].insert(
          text.substr(town, text.find('.', town) - town));
    }
  }
  size_t several = 0;
  for (const auto& [name, homes] : towns) {
    several += homes.size() > 3 ? 1 : 0;
  }
  EXPECT_GT(several, 30u);
}

TEST(Builtin, IsSimpleEnglish) {
  std::set<std::string> words;
  for (int64_t d = 0; d < 100; ++d) {
    const BuiltinText made = builtin_text(1, d);
    const std::string& text = made.text;
    EXPECT_EQ(text.find_first_of("{}+=_"), text.npos);
    EXPECT_EQ(text.find("  "), text.npos);
    EXPECT_EQ(text.find("\n\n\n"), text.npos);
    EXPECT_EQ(text.substr(text.size() - 2), "\n\n");
    std::string word;
    for (char c : text) {
      ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
      if (std::isalpha(c)) {
        word += c;
      } else if (!word.empty()) {
        words.insert(std::exchange(word, ""));
      }
    }
  }
  EXPECT_GT(words.size(), 300u);
  EXPECT_LT(words.size(), 700u);
}

TEST(Builtin, BadRequestsAreNamed) {
  expect_error([] { builtin_documents(1, -5); }, "[builtin] tokens=-5");
  expect_error([] { builtin_text(1, -1); }, "document -1");
  std::vector<int32_t> out(10);
  expect_error([&] { builtin_documents(1)->read(0, 1 << 20, out); }, "document 0", "it has");
}

}  // namespace
}  // namespace fwpkm
