// Words for the recall corpus: to tokens and back, other counts, and through the program.
#include "text/recall_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "process.h"
#include "text/data_spec.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

using Tokens = std::vector<int32_t>;

std::string word_of(const Tokenizer& tokenizer, int64_t token) {
  const auto number = static_cast<int32_t>(token);
  return tokenizer.decode(std::span(&number, 1));
}

TEST(RecallTokenizer, FollowsTheTokensOfTheCorpus) {
  const auto t = load_tokenizer("recall");
  EXPECT_EQ(t->kind(), "recall");
  EXPECT_EQ(t->vocab_size(), recall_vocab_size({}));
  EXPECT_EQ(t->end_of_text(), kRecallEnd);
  EXPECT_EQ(word_of(*t, kRecallEnd), "");
  EXPECT_EQ(word_of(*t, kRecallFact), "fact");
  EXPECT_EQ(word_of(*t, kRecallQuestion), "ask");
  EXPECT_EQ(word_of(*t, kRecallFirstKey), "ba");
  EXPECT_EQ(word_of(*t, kRecallFirstKey + 1), "be");
  EXPECT_EQ(word_of(*t, kRecallFirstKey + 5), "da");
  EXPECT_EQ(word_of(*t, kRecallFirstKey + 64), "red");
  EXPECT_EQ(t->encode("fact ba be heron ask ba be"), (Tokens{1, 3, 4, 68, 2, 3, 4}));
  for (const int32_t bad : {-1, 131}) {
    expect_error([&] { t->bytes_of(bad); }, "[tokenizer]", std::to_string(bad), "131");
  }
}

TEST(RecallTokenizer, KnowsEverySequenceAgain) {
  for (const RecallSettings& settings :
       {RecallSettings{}, {511, 0, 1, 2}, {511, 0, 300, 70}, {2000, 0, 90, 1000}}) {
    const auto t = recall_tokenizer(settings);
    Tokens tokens = recall_sequence(settings, 3, 1).tokens;
    std::erase(tokens, kRecallEnd);
    const std::string text = t->decode(tokens);
    EXPECT_EQ(t->encode(text), tokens);
    EXPECT_EQ(t->decode(t->encode(text)), text);
    EXPECT_TRUE(text.starts_with("fact "));
    EXPECT_EQ(text.find("  "), text.npos);
  }
}

TEST(RecallTokenizer, EveryTokenHasAWordOfItsOwn) {
  for (const RecallSettings& settings :
       {RecallSettings{}, {511, 0, 1, 2}, {511, 0, 32768, 3000}, {511, 0, 7311, 64}}) {
    const auto t = recall_tokenizer(settings);
    std::set<std::string> words;
    for (int64_t token = kRecallFact; token < t->vocab_size(); ++token) {
      const std::string word = word_of(*t, token);
      EXPECT_TRUE(words.insert(word).second) << word;
      EXPECT_EQ(t->encode(word), Tokens{static_cast<int32_t>(token)});
    }
  }
  const auto many = recall_tokenizer({511, 0, 7311, 130});
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 84), "zu");
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 85), "baba");
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 85 + 85 * 85 - 1), "zuzu");
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 85 + 85 * 85), "bababa");
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 7311 + 64), "red2");
  EXPECT_EQ(word_of(*many, kRecallFirstKey + 7311 + 129), "heron3");
}

TEST(RecallTokenizer, PunctuationAndLinesAreNothing) {
  const auto t = load_tokenizer("recall");
  const Tokens want = t->encode("fact ba ke heron fact mo li lantern ask ba ke");
  for (const char* text : {"fact ba ke heron.\nfact mo li lantern.\n\nask ba ke?\n",
                           "  fact ba, ke,heron,  fact\tmo li\r\nlantern . ask ba ke ?? ",
                           "?fact ba ke heron...fact mo li lantern\vask\fba ke"}) {
    EXPECT_EQ(t->encode(text), want) << text;
    EXPECT_EQ(t->encode(text, true), want) << text;
  }
  EXPECT_EQ(t->decode(want), "fact ba ke heron fact mo li lantern ask ba ke");
  EXPECT_TRUE(t->encode("").empty());
  EXPECT_TRUE(t->encode(" .,?\n").empty());
  EXPECT_EQ(t->decode({}), "");
}

TEST(RecallTokenizer, StreamsJoinToTheText) {
  const auto t = load_tokenizer("recall");
  StreamDecoder decoder(t);
  std::string text;
  for (const int32_t token : Tokens{1, 3, 4, 68, 0, 2, 3, 4}) {
    text += decoder.push(token);
  }
  EXPECT_EQ(text + decoder.finish(), " fact ba be heron ask ba be");
}

TEST(RecallTokenizer, UnknownWordsAreNamedWithTheirPlace) {
  const auto t = load_tokenizer("recall");
  expect_error([&] { t->encode("fact ba ke heorn"); }, "[tokenizer]", "line 1, word 4", "\"heorn\"",
               "the nearest is \"heron\"", "ba be bi", "red heron maple");
  expect_error([&] { t->encode("fact ba ke heron.\n\n  ask, bah ke"); }, "line 3, word 2",
               "\"bah\"");
  expect_error([&] { t->encode("Fact ba ke heron"); }, "line 1, word 1", "\"fact\"");
  expect_error([&] { t->encode("fact ba ke <|endoftext|>"); }, "word 4", "<|endoftext|>");
  // What is no text at all is shown, too, and not at length.
  EXPECT_LT(error_of([&] { t->encode("\xff" + std::string(100000, 'x')); }).size(), 500u);
  // A word of other counts.
  const auto few = load_tokenizer("recall:keys=2,values=2");
  expect_error([&] { few->encode("ask ba bi"); }, "\"bi\"", "2 keys: ba be,",
               "2 values: red heron");
}

TEST(RecallTokenizer, SpecsAndFingerprints) {
  const auto t = load_tokenizer("recall");
  EXPECT_EQ(t->fingerprint().size(), 32u);
  EXPECT_EQ(load_tokenizer("recall:values=64,keys=64")->fingerprint(), t->fingerprint());
  EXPECT_EQ(load_tokenizer("recall:")->fingerprint(), t->fingerprint());
  const auto other = load_tokenizer("recall:keys=32,values=96");  // as many tokens
  EXPECT_EQ(other->vocab_size(), t->vocab_size());
  std::set<std::string> prints = {
      t->fingerprint(), other->fingerprint(), load_tokenizer("recall:keys=32")->fingerprint(),
      load_tokenizer("recall:values=32")->fingerprint(), load_tokenizer("bytes")->fingerprint()};
  EXPECT_EQ(prints.size(), 5u);

  const TempDir dir;
  write_text_atomic(dir / "t.model", other->model_bytes());
  EXPECT_EQ(load_tokenizer((dir / "t.model").string())->fingerprint(), other->fingerprint());

  for (const char* bad : {"recall:keys", "recall:keys=", "recall:keys=x", "recall:keys=1x",
                          "recall:facts=3", "recall:keys=99999999999999999999", "recall:,"}) {
    expect_error([&] { load_tokenizer(bad); }, "[tokenizer]", bad, "recall:keys=64,values=64");
  }
  expect_error([] { load_tokenizer("recall:keys=0"); }, "keys=0");
  expect_error([] { load_tokenizer("recall:keys=32769"); }, "keys=32769");
  expect_error([] { load_tokenizer("recall:values=1"); }, "values=1");
  expect_error([] { load_tokenizer("recallx"); }, "recallx");
}

Data opened(const std::vector<std::string>& names, const std::string& tokenizer = "") {
  DataSettings settings;
  settings.data = names;
  settings.tokenizer = tokenizer;
  return open_data(settings);
}

TEST(RecallTokenizer, ComesWithTheCorpus) {
  const Data data = opened({"builtin:recall"});
  ASSERT_NE(data.tokenizer, nullptr);
  EXPECT_EQ(data.tokenizer->fingerprint(), load_tokenizer("recall")->fingerprint());
  EXPECT_EQ(data.vocab_size, 131);
  EXPECT_EQ(opened({"builtin:recall"}, "recall").vocab_size, 131);
  for (const char* other : {"bytes", "recall:keys=32,values=96"}) {
    expect_error([&] { opened({"builtin:recall"}, other); }, "[data]", "builtin:recall",
                 "--tokenizer");
  }
  expect_error([] { opened({"builtin:recall", "builtin"}); }, "bytes", "recall");
  expect_error([] { opened({"builtin", "builtin:recall"}); }, "257", "131");
}

// A small model that was trained for a few steps.
class RecallWords : public testing::Test {
 protected:
  static constexpr const char* kModel =
      "train --config " FWPKM_CONFIGS
      "/recall.json --set hidden_size=32 --set mlp.hidden=32 --set fwpkm.value_dim=16 --set "
      "gdn.key_dim=16 --steps 2 --valid-every 0 ";

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  static std::string ok(const std::string& arguments) {
    const ProcessResult result = run_program(arguments);
    EXPECT_EQ(result.status, 0) << arguments << "\n" << result.err;
    return result.out;
  }
  static void fails(const std::string& arguments, const std::string& wanted) {
    const ProcessResult result = run_program(arguments);
    EXPECT_EQ(result.status, 1) << arguments;
    EXPECT_NE(result.err.find(wanted), std::string::npos) << result.err;
  }
  TempDir dir_;
};

TEST_F(RecallWords, AModelCanBeTalkedTo) {
  const std::string run = path("run");
  const std::string trained = ok(kModel + ("--data builtin:recall --sample-every 2 --out " + run));
  const size_t sample = trained.find("step 2: ");
  ASSERT_NE(sample, trained.npos) << trained;
  const auto words = load_tokenizer("recall");
  const size_t begin = trained.find(": ", sample) + 2;
  const std::string line = trained.substr(begin, trained.find('\n', begin) - begin);
  EXPECT_TRUE(line.starts_with("fact ")) << line;
  EXPECT_EQ(words->decode(words->encode(line)), line);

  const std::string asked = "generate --temperature 0 --tokens 1 --json - --model " + run +
                            " --prompt 'fact ba ke heron. fact mo li lantern. ask ba ke?'";
  const auto answer = nlohmann::json::parse(ok(asked));
  EXPECT_EQ(answer.at("prompt"), "fact ba ke heron. fact mo li lantern. ask ba ke?");
  const std::string text = answer.at("text");
  EXPECT_EQ(words->encode(text).size(), answer.at("tokens").get<size_t>());
  fails("generate --model " + run + " --prompt 'fact ba ke heorn'", "\"heron\"");
  fails("generate --model " + run + " --tokenizer recall:keys=32,values=96 --prompt fact",
        "is not the tokenizer");
  fails(kModel + ("--data builtin:recall --sample-every 1 --prompt The --out " + path("no")),
        "\"The\"");
  const auto info = nlohmann::json::parse(ok("model info --json - " + run));
  EXPECT_EQ(info.at("tokenizer").at("kind"), "recall");

  const std::string eval = "eval recall --sequences 2 --readings 1 --show 2 --model " + run;
  EXPECT_NE(ok(eval).find("tokens ago it read: fact "), std::string::npos);
  const auto example = nlohmann::json::parse(ok(eval + " --json -")).at("examples").at(0);
  const Tokens fact = words->encode(example.at("fact").get<std::string>());
  EXPECT_EQ(fact, (Tokens{kRecallFact, example.at("key").at(0), example.at("key").at(1),
                          example.at("answer")}));

  // A model from the time before words.
  for (const auto& checkpoint : fs::directory_iterator(fs::path(run) / "checkpoints")) {
    fs::remove(checkpoint.path() / "tokenizer.json");
    fs::remove(checkpoint.path() / "tokenizer.model");
  }
  ok(eval);
  ok("model info " + run);
  fails(asked, "give --tokenizer");
  EXPECT_EQ(nlohmann::json::parse(ok(asked + " --tokenizer recall")), answer);
}

TEST_F(RecallWords, FactsOfOnesOwnCanBeEncoded) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "fact ba ke heron.\nfact mo li lantern.\nask ba ke? heron\n<|endoftext|>\n";
  }
  write_text_atomic(path("facts.txt"), text);
  ok("data encode --tokenizer recall --out " + path("facts") + " " + path("facts.txt"));
  const auto info =
      nlohmann::json::parse(ok("data info --verify --tokenizer recall --json - " + path("facts")));
  EXPECT_EQ(info.at("tokens"), 40 * 13);
  EXPECT_EQ(info.at("kind"), "recall");
  fails("data info --tokenizer recall:keys=32,values=96 " + path("facts"), "another tokenizer");

  ok(kModel + ("--seq 64 --data builtin:recall " + path("facts") + " --out " + path("both")));
  ok(kModel + ("--seq 64 --data " + path("facts") + " --out " + path("alone")));
  ok("generate --tokens 1 --model " + path("alone") + " --prompt 'ask ba ke'");

  write_text_atomic(path("bad.txt"), "fact ba ke heron\n<|endoftext|>\nask ba\nkee\n");
  fails("data encode --tokenizer recall --out " + path("bad") + " " + path("bad.txt"),
        "document 2: [tokenizer] line 2, word 1: \"kee\"");
}

}  // namespace
}  // namespace fwpkm
