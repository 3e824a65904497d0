#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "corpus_files.h"
#include "temp_dir.h"
#include "text/utf8.h"

namespace fwpkm {
namespace {

// Texts that tokenizers like to change: spaces, line ends, rare characters, things that look
// special.
const std::vector<std::string> kHardTexts = {
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\r\n\t\v",
    " leading and trailing ",
    "two  three   four    spaces\n    indented\n\tand tabs",
    "\xe2\x96\x81 the mark \xe2\x96\x81\xe2\x96\x81 of a space \xe2\x96\x81",
    std::string("nul \0 inside", 12),
    "\xef\xac\x81 \xe2\x91\xa0 \xc2\xa0 e\xcc\x81 \xef\xbf\xbd \xef\xbb\xbf \xe3\x80\x80",
    "<|endoftext|> <unk> <s> </s> <0x41> <0x0A>",
    "\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf4\x8f\xbf\xbf",
    "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xe4\xb8\xad\xe6\x96\x87\xe3\x81\x8b\xe3\x81\xaa "
    "\xe0\xb8\x81\xe0\xb8\xb3",
};

std::string random_utf8(size_t characters, uint64_t seed) {
  Random random(seed);
  std::string text;
  const auto put = [&](int64_t c) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
               static_cast<char>(0x80 | (c & 63))};
    } else {
      text += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
               static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
  };
  for (size_t i = 0; i < characters; ++i) {
    const int64_t limits[] = {0x80, 0x30, 0x800, 0x10000, 0x110000, 0x2800};
    const int64_t c = random.below(limits[random.below(6)]);
    put(c >= 0xd800 && c < 0xe000 ? ' ' : c);
  }
  return text;
}

void expect_lossless(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(tokens), text);
  for (const int32_t token : tokens) {
    ASSERT_TRUE(token >= 0 && token < tokenizer.vocab_size() && token != tokenizer.end_of_text());
  }
}

TEST(ByteTokenizer, TakesAnyBytes) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_EQ(tokenizer->fingerprint().size(), 32u);
  EXPECT_EQ(tokenizer->encode("a\xff"), (std::vector<int32_t>{97, 255}));
  for (const std::string& text : kHardTexts) {
    expect_lossless(*tokenizer, text);
  }
  const std::vector<int32_t> tokens = {104, 105, 256};
  EXPECT_EQ(tokenizer->decode(tokens), "hi");
  for (const int32_t bad : {-1, 257}) {
    expect_error([&] { tokenizer->decode(std::span(&bad, 1)); }, "[tokenizer]",
                 std::to_string(bad));
  }
}

// One model for all tests: training takes a moment.
class SentencePiece : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    write_text_atomic(*dir_ / "a.txt",
                      made_up_text(400000, 1) + "<|endoftext|>\n" + made_up_text(100000, 2));
    model_ = train("a.model", 600);
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static std::string train(const std::string& name, int64_t vocab, const TrainLimits& limits = {}) {
    const std::string path = (*dir_ / name).string();
    train_sentencepiece({(*dir_ / "a.txt").string()}, vocab, path, {}, limits);
    return path;
  }

  static std::unique_ptr<TempDir> dir_;
  static std::string model_;
};
std::unique_ptr<TempDir> SentencePiece::dir_;
std::string SentencePiece::model_;

TEST_F(SentencePiece, TrainedModelsAreLossless) {
  const auto tokenizer = load_tokenizer(model_);
  EXPECT_EQ(tokenizer->vocab_size(), 600);
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  for (const std::string& text : kHardTexts) {
    expect_lossless(*tokenizer, text);
  }
  for (uint64_t seed = 0; seed < 200; ++seed) {
    expect_lossless(*tokenizer, random_utf8(200, seed));
  }
  const std::string prose = made_up_text(20000, 9);
  expect_lossless(*tokenizer, prose);
  EXPECT_LT(tokenizer->encode(prose).size(), prose.size() / 2);
}

TEST_F(SentencePiece, EndOfTextIsNeverInEncodedText) {
  const auto tokenizer = load_tokenizer(model_);
  const int32_t end = tokenizer->end_of_text();
  EXPECT_EQ(tokenizer->decode(std::span(&end, 1)), "");
  const auto tokens = tokenizer->encode("<|endoftext|>");
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), end), 0);
}

TEST_F(SentencePiece, LookingWordsUpGivesTheLibrarysTokens) {
  const auto tokenizer = load_tokenizer(model_);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(model_).ok());
  std::vector<std::string> texts = {made_up_text(50000, 11), "  a  b \n\n \n   c",
                                    std::string(200, 'x')};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    texts.push_back(random_utf8(100, seed) + " " + made_up_text(50, seed));
  }
  for (const std::string& text : texts) {
    if (text.find("\xe2\x96\x81") == text.npos) {  // the library takes that for a space
      EXPECT_EQ(tokenizer->encode(text), processor.EncodeAsIds(text));
    }
  }
}

TEST_F(SentencePiece, WhereATextIsCutDoesNotMatter) {
  const auto tokenizer = load_tokenizer(model_);
  for (const std::string& text :
       {made_up_text(5000, 4), "  a  b\n\n   c   d \n" + made_up_text(500, 5),
        std::string(300, ' ') + "x\n\n\ny"}) {
    const std::vector<int32_t> whole = tokenizer->encode(text);
    for (const size_t limit : {20, 64, 333}) {
      std::vector<int32_t> joined;
      bool at_borders = true;
      for (std::string_view rest = text; !rest.empty();) {
        const size_t cut = cut_text(rest, limit);
        at_borders =
            at_borders && (cut == rest.size() || rest[cut] == ' ' || rest[cut - 1] == '\n');
        at_borders = at_borders && (cut == rest.size() || rest[cut - 1] != ' ');
        const auto part = tokenizer->encode(rest.substr(0, cut), rest.size() < text.size());
        joined.insert(joined.end(), part.begin(), part.end());
        rest.remove_prefix(cut);
      }
      if (at_borders) {
        EXPECT_EQ(joined, whole) << limit;
      }
      EXPECT_EQ(tokenizer->decode(joined), text);
    }
  }
}

TEST_F(SentencePiece, TrainingRepeatsBitForBit) {
  const TrainLimits limits{.sample_bytes = 1 << 17, .seed = 3};
  const std::string first = read_text(train("b.model", 500, limits));
  EXPECT_EQ(read_text(train("c.model", 500, limits)), first);
  EXPECT_NE(read_text(train("d.model", 500, {.sample_bytes = 1 << 17, .seed = 4})), first);
  const auto a = load_tokenizer((*dir_ / "b.model").string()),
             b = load_tokenizer((*dir_ / "c.model").string());
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), load_tokenizer(model_)->fingerprint());
}

TEST_F(SentencePiece, TrainingTellsItsProgressAndNothingElse) {
  double last = 0;
  int calls = 0;
  testing::internal::CaptureStderr();
  train_sentencepiece({(*dir_ / "a.txt").string()}, 600, (*dir_ / "p.model").string(),
                      [&](double done, const std::string& note) {
                        EXPECT_GE(done, last);
                        EXPECT_LE(done, 1.0);
                        EXPECT_FALSE(note.empty());
                        last = done;
                        ++calls;
                      });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_GT(calls, 10);
  EXPECT_GT(last, 0.9);
}

TEST_F(SentencePiece, ImpossibleTrainingIsAnError) {
  expect_error([&] { train("x.model", 100000); }, "[tokenizer]", "100000", "smaller vocab");
  expect_error([&] { train("x.model", 10); }, "vocab=10");
  EXPECT_FALSE(std::filesystem::exists(*dir_ / "x.model"));
  expect_error(
      [&] { train_sentencepiece({(*dir_ / "a.txt").string()}, 600, "/nowhere/x.model", {}); },
      "/nowhere/x.model");
  write_text_atomic(*dir_ / "blank.txt", "\n\n\n");
  expect_error(
      [&] {
        train_sentencepiece({(*dir_ / "blank.txt").string()}, 600, (*dir_ / "x.model").string(),
                            {});
      },
      "no line of text");
}

TEST_F(SentencePiece, BadModelsAreErrors) {
  testing::internal::CaptureStderr();
  const std::string good = read_text(model_);
  const std::string path = (*dir_ / "bad.model").string();
  for (const std::string& bad :
       {std::string("not a model"), std::string(1, '\0'), good.substr(0, good.size() / 2)}) {
    write_text_atomic(path, bad);
    expect_error([&] { load_tokenizer(path); }, "[tokenizer]", "bad.model");
  }
  expect_error([&] { load_tokenizer("/nowhere/a.model"); }, "/nowhere/a.model");
  expect_error([&] { load_tokenizer(""); }, "[tokenizer]");
  const auto tokenizer = load_tokenizer(model_);
  expect_error([&] { tokenizer->encode("caf\xe9 x"); }, "not UTF-8 at byte 4");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// With SentencePiece's own defaults, as most models elsewhere have: text is normalised, and a space
// is put before it.
TEST_F(SentencePiece, ModelsFromElsewhere) {
  const auto train_default = [&](const std::string& name, const std::string& eos) {
    std::string model;
    const auto status =
        sentencepiece::SentencePieceTrainer::Train({{"input", (*dir_ / "a.txt").string()},
                                                    {"vocab_size", "300"},
                                                    {"minloglevel", "9"},
                                                    {"eos_id", eos}},
                                                   nullptr, &model);
    require(status.ok(), "test", "{}", status.message());
    write_text_atomic(*dir_ / name, model);
    return (*dir_ / name).string();
  };
  const auto tokenizer = load_tokenizer(train_default("unigram.model", "2"));
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  for (const std::string text : {"bane lor", "tisum ka ort"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  // The rest of a document gets no space of its own.
  auto joined = tokenizer->encode("bane lor");
  const auto rest = tokenizer->encode("\ntisum", true);
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokenizer->decode(joined), "bane lor tisum");
  EXPECT_EQ(joined, tokenizer->encode("bane lor\ntisum"));
  expect_error([&] { load_tokenizer(train_default("endless.model", "-1")); }, "endless.model",
               "end of text");
}

TEST_F(SentencePiece, StreamsAreWholeCharacters) {
  for (const std::string& spec : {std::string("bytes"), model_}) {
    const auto tokenizer = load_tokenizer(spec);
    for (const std::string& text : kHardTexts) {
      StreamDecoder decoder(tokenizer);
      std::string joined;
      for (const int32_t token : tokenizer->encode(text)) {
        const std::string part = decoder.push(token);
        EXPECT_EQ(utf8_error(part), std::string::npos);
        joined += part;
      }
      EXPECT_EQ(joined, text);
      EXPECT_EQ(decoder.finish(), "");
    }
  }
}

TEST(StreamDecoder, WhatIsNoCharacterIsReplaced) {
  StreamDecoder decoder(load_tokenizer("bytes"));
  const auto feed = [&](const std::string& bytes) {
    std::string out;
    for (const char byte : bytes) {
      out += decoder.push(static_cast<unsigned char>(byte));
    }
    return out + "|";
  };
  EXPECT_EQ(feed("a\xe4\xb8"), "a|");
  EXPECT_EQ(feed("\xad"), "\xe4\xb8\xad|");
  EXPECT_EQ(feed("\xe4("), "\xef\xbf\xbd(|");
  EXPECT_EQ(feed("\xff"), "\xef\xbf\xbd|");
  EXPECT_EQ(feed("\xed\xa0\x80x"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx|");
  EXPECT_EQ(feed("\xf0\x9f"), "|");
  EXPECT_EQ(decoder.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(TokenizerOf, FindsTheModelsOwn) {
  const TempDir dir;
  EXPECT_EQ(load_tokenizer_of(dir.path()), nullptr);  // nothing tells
  EXPECT_EQ(load_tokenizer_of(dir.path(), "bytes")->kind(), "bytes");
  const auto recall = load_tokenizer("recall:keys=8,values=5");
  const auto tell = [&](const std::string& text) {
    write_text_atomic(dir / "tokenizer.json", text);
  };
  tell(fmt::format(R"({{"kind": "recall", "fingerprint": "{}"}})", recall->fingerprint()));
  expect_error([&] { load_tokenizer_of(dir.path()); }, "tokenizer.model");
  write_text_atomic(dir / "tokenizer.model", recall->model_bytes());
  EXPECT_EQ(load_tokenizer_of(dir.path())->fingerprint(), recall->fingerprint());
  EXPECT_EQ(load_tokenizer_of(dir.path(), "recall:keys=8,values=5")->vocab_size(), 16);
  expect_error([&] { load_tokenizer_of(dir.path(), "recall"); }, "recall", "is not the tokenizer");

  for (const std::string bad : {"[]", "{}", R"({"kind": 3, "fingerprint": ""})",
                                R"({"kind": "bytes"})", R"({"kind": "bytes", "fingerprint": 1})"}) {
    tell(bad);
    expect_error([&] { load_tokenizer_of(dir.path()); }, "tokenizer.json", "damaged");
  }
}

}  // namespace
}  // namespace fwpkm
