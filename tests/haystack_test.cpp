// Haystacks: needles where they should be, lengths, and files that are read back.
#include "text/haystack.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "corpus_files.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

class Haystacks : public testing::Test {
 protected:
  std::string text_file(const std::string& text, const std::string& name = "text.txt") const {
    write_text_atomic(dir_ / name, text);
    return (dir_ / name).string();
  }
  static std::vector<Haystack> make(const HaystackSettings& settings,
                                    const std::string& tokenizer = "bytes") {
    HaystackMaker maker(settings, load_tokenizer(tokenizer));
    std::vector<Haystack> all;
    for (Haystack h; maker.next(&h);) {
      all.push_back(h);
    }
    EXPECT_EQ(std::ssize(all), maker.total());
    return all;
  }
  static std::string lines(const std::vector<Haystack>& all) {
    std::string text;
    for (const Haystack& h : all) {
      text += h.json().dump() + "\n";
    }
    return text;
  }
  static int64_t words(const std::string& text) {
    std::istringstream in(text);
    std::string word;
    int64_t count = 0;
    while (in >> word) {
      ++count;
    }
    return count;
  }
  // The text of a context without its needles.
  static std::string without_needles(const Haystack& h) {
    std::string text = h.context;
    for (const Needle& needle : h.needles) {
      const size_t at = text.find(" " + needle.sentence);
      EXPECT_NE(at, std::string::npos);
      text.erase(at, needle.sentence.size() + 1);
    }
    return text;
  }

  TempDir dir_;
};

void expect_needles(const Haystack& h, size_t count) {
  ASSERT_EQ(h.needles.size(), count);
  std::set<std::string> keys, values;
  std::set<size_t> places;
  for (const Needle& needle : h.needles) {
    EXPECT_EQ(needle.key.size(), 4u);
    EXPECT_EQ(needle.value.size(), 6u);
    EXPECT_EQ(needle.value.find_first_not_of("0123456789"), std::string::npos);
    // At the recorded depth, and nowhere else.
    const auto at =
        static_cast<size_t>(std::llround(needle.depth * static_cast<double>(h.context.size())));
    EXPECT_EQ(h.context.find(needle.sentence), at);
    for (const std::string& part : {needle.key, needle.value}) {
      const size_t first = h.context.find(part);
      EXPECT_GE(first, at);
      EXPECT_LT(first, at + needle.sentence.size());
      EXPECT_EQ(h.context.find(part, first + 1), std::string::npos);
    }
    keys.insert(needle.key);
    values.insert(needle.value);
    places.insert(at);
    // Between words.
    EXPECT_EQ(h.context[at - 1], ' ');
    const size_t end = at + needle.sentence.size();
    EXPECT_TRUE(end == h.context.size() || std::isspace(h.context[end]));
  }
  EXPECT_EQ(keys.size(), count);
  EXPECT_EQ(values.size(), count);
  EXPECT_EQ(places.size(), count);
  EXPECT_TRUE(keys.contains(h.key));
  EXPECT_EQ(h.asked().value, h.answer);
  // The question goes on as the sentence does.
  EXPECT_EQ(" " + h.asked().sentence, h.question + h.answer + ".");
}

TEST_F(Haystacks, HaveTheirLengthAndTheirNeedles) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(200'000, 1))};
  settings.lengths = {500, 3000, 40'000};
  settings.samples = 3;
  const auto all = make(settings);
  ASSERT_EQ(all.size(), 9u);
  for (size_t i = 0; i < all.size(); ++i) {
    const Haystack& h = all[i];
    SCOPED_TRACE(i);
    expect_needles(h, 5);
    EXPECT_EQ(h.length, settings.lengths[i / 3]);
    EXPECT_EQ(h.tokens, std::ssize(h.context));
    EXPECT_LE(h.tokens, h.length);
    EXPECT_GT(h.tokens, h.length - 40);  // one word more would be too long
  }
  std::set<double> depths;
  for (const Haystack& h : all) {
    for (const Needle& needle : h.needles) {
      depths.insert(std::floor(needle.depth * 4));
    }
  }
  EXPECT_EQ(depths.size(), 4u) << "needles are not in all quarters of 45 depths";
}

TEST_F(Haystacks, TakeTextInOrder) {
  const std::string text = made_up_text(20'000, 2);
  HaystackSettings settings;
  settings.text = {text_file(text)};
  settings.lengths = {1500};
  settings.samples = 4;
  size_t at = 0;
  for (const Haystack& h : make(settings)) {
    const std::string plain = without_needles(h);
    const size_t found = text.find(plain, at);
    ASSERT_NE(found, std::string::npos);
    // Nothing but white space is left out between two.
    EXPECT_EQ(text.substr(at, found - at).find_first_not_of(" \n"), std::string::npos);
    at = found + plain.size();
  }
}

TEST_F(Haystacks, CountWordsExactly) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(30'000, 3))};
  settings.lengths = {100, 777};
  settings.samples = 2;
  settings.unit = HaystackUnit::kWords;
  for (const Haystack& h : make(settings)) {
    expect_needles(h, 5);
    EXPECT_EQ(words(h.context), h.length);
    EXPECT_EQ(h.tokens, std::ssize(h.context));
  }
}

TEST_F(Haystacks, CountTokensOfSentencePiece) {
  const std::string text = text_file(made_up_text(60'000, 4));
  const std::string model = (dir_ / "t.model").string();
  train_sentencepiece({text}, 400, model, {});
  HaystackSettings settings;
  settings.text = {text};
  settings.lengths = {2000};
  settings.samples = 3;
  const auto tokenizer = load_tokenizer(model);
  for (const Haystack& h : make(settings, model)) {
    expect_needles(h, 5);
    EXPECT_EQ(h.tokens, std::ssize(tokenizer->encode(h.context)));
    EXPECT_LE(h.tokens, 2000);
    EXPECT_GT(h.tokens, 1985);
  }
}

TEST_F(Haystacks, RepeatWithTheSeed) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(10'000, 5))};
  settings.lengths = {600};
  settings.samples = 3;
  const std::string first = lines(make(settings));
  EXPECT_EQ(lines(make(settings)), first);
  settings.seed = 2;
  EXPECT_NE(lines(make(settings)), first);
}

TEST_F(Haystacks, BeginAgainWhereTextIsShort) {
  HaystackSettings settings;
  settings.text = {text_file("One day a man went out. He saw a dog.\n<|endoftext|>\nNo more.\n")};
  settings.lengths = {900};
  settings.samples = 2;
  HaystackMaker maker(settings, load_tokenizer("bytes"));
  Haystack h;
  ASSERT_TRUE(maker.next(&h));
  expect_needles(h, 5);
  EXPECT_GT(h.tokens, 880);
  EXPECT_GT(maker.times_read(), 5);

  settings.lengths = {150};
  expect_error([&] { make(settings); }, "150 tokens are too short for 5 needles");
  settings.text = {text_file(" \n \n\n", "blank.txt")};
  expect_error([&] { make(settings); }, "nothing but white space", "blank.txt");
}

// Text without spaces is cut between characters.
TEST_F(Haystacks, WorkWithoutSpaces) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "中文字";
  }
  HaystackSettings settings;
  settings.text = {text_file(text)};
  settings.lengths = {5000};
  settings.samples = 1;
  const auto all = make(settings);
  EXPECT_EQ(utf8_error(all[0].context), std::string::npos);
  EXPECT_LE(all[0].tokens, 5000);
  EXPECT_GT(all[0].tokens, 5000 - 300);
  EXPECT_EQ(all[0].needles.size(), 5u);
}

TEST_F(Haystacks, BecomeLessons) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(10'000, 6))};
  settings.lengths = {700};
  settings.samples = 1;
  settings.needles = 3;
  const Haystack h = make(settings)[0];
  const std::string lesson = h.lesson();
  ASSERT_TRUE(lesson.starts_with(h.context));
  const std::string told = lesson.substr(h.context.size());
  EXPECT_NE(told.find(h.question + h.answer), std::string::npos) << told;
  for (const Needle& needle : h.needles) {
    EXPECT_NE(told.find(" " + needle.sentence), std::string::npos) << told;
  }
}

TEST_F(Haystacks, ComeBackFromFiles) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(10'000, 6))};
  settings.lengths = {500, 700};
  settings.samples = 2;
  const auto all = make(settings);
  write_text_atomic(dir_ / "h.jsonl", lines(all));
  write_text_atomic(dir_ / "h.jsonl.zst", zstd("\n" + lines(all)));
  for (const char* name : {"h.jsonl", "h.jsonl.zst"}) {
    const auto back = read_haystacks(dir_ / name);
    EXPECT_EQ(lines(back), lines(all)) << name;
  }
  expect_error([&] { read_haystacks(dir_ / "missing.jsonl"); }, "missing.jsonl", "does not exist");
}

TEST_F(Haystacks, RefuseDamagedFilesByLine) {
  HaystackSettings settings;
  settings.text = {text_file(made_up_text(10'000, 7))};
  settings.lengths = {500};
  settings.samples = 1;
  settings.needles = 2;
  const nlohmann::json good = make(settings)[0].json();
  const auto refused = [&](const std::function<void(nlohmann::json*)>& damage,
                           const std::string& message) {
    nlohmann::json bad = good;
    damage(&bad);
    write_text_atomic(dir_ / "bad.jsonl", good.dump() + "\n\n" + bad.dump() + "\n");
    expect_error([&] { read_haystacks(dir_ / "bad.jsonl"); }, "bad.jsonl' line 3", message);
  };
  using json = nlohmann::json;
  for (const char* key :
       {"context", "question", "answer", "key", "needles", "length", "unit", "tokens"}) {
    refused([&](json* h) { h->erase(key); }, key);
    refused([&](json* h) { (*h)[key] = json::array(); }, key);
  }
  refused([](json* h) { (*h)["length"] = 0; }, "length");
  refused([](json* h) { (*h)["unit"] = "bytes"; }, "not tokens or words");
  refused([](json* h) { (*h)["answer"] = "1"; }, "the answer is '1'");
  refused([](json* h) { (*h)["key"] = "none"; }, "no needle has the key 'none'");
  refused([](json* h) { (*h)["question"] = "What?"; }, "does not name the key");
  refused([](json* h) { (*h)["needles"][0] = 1; }, "needle 1 is not an object");
  refused([](json* h) { (*h)["needles"][0]["depth"] = 1.5; }, "from 0 to 1");
  refused([](json* h) { (*h)["needles"][0]["depth"] = 0.0; }, "not in the context at depth 0");
  refused([](json* h) { (*h)["needles"][1] = (*h)["needles"][0]; }, "two needles have the key");
  refused([](json* h) { (*h)["needles"][1]["value"] = (*h)["needles"][0]["value"]; },
          "two needles have the value");
  refused([](json* h) { (*h)["needles"][0]["sentence"] = "Nothing."; },
          "does not tell its key and then its value");
  write_text_atomic(dir_ / "bad.jsonl", good.dump() + "\n{\"context\": ");
  expect_error([&] { read_haystacks(dir_ / "bad.jsonl"); }, "line 2", "not valid JSON");
  write_text_atomic(dir_ / "bad.jsonl", good.dump() + "\n[1]\n");
  expect_error([&] { read_haystacks(dir_ / "bad.jsonl"); }, "line 2", "an object");
  write_text_atomic(dir_ / "bad.jsonl", good.dump() + "\n\xff\n");
  expect_error([&] { read_haystacks(dir_ / "bad.jsonl"); }, "bad.jsonl", "line 2");
}

}  // namespace
}  // namespace fwpkm
