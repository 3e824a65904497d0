// Perplexity of answers against a loop of its own, token by token in double.
#include "eval/longbench.h"

#include <gtest/gtest.h>

#include "reading_eval.h"

namespace fwpkm {
namespace {

using nlohmann::json;

struct Text {
  std::string task, context;
  std::vector<std::pair<std::string, std::string>> questions;
};

class LongbenchEval : public testing::Test {
 protected:
  void SetUp() override {
    write_text_atomic(dir_ / "bench.jsonl",
                      json{{"context", texts_[0].context},
                           {"input", texts_[0].questions[0].first},
                           {"answers", {texts_[0].questions[0].second, "another"}},
                           {"dataset", "people"}}
                              .dump() +
                          "\n" +
                          json{{"context", texts_[1].context},
                               {"input", texts_[1].questions[0].first},
                               {"answers", {texts_[1].questions[0].second}},
                               {"dataset", "places"}}
                              .dump() +
                          "\n");
    json lines;
    for (const auto& [question, answer] : texts_[2].questions) {
      lines["instructions"].push_back(question);
      lines["outputs"].push_back(answer);
    }
    lines["input"] = texts_[2].context;
    write_text_atomic(dir_ / "people.jsonl", lines.dump());
    options_.data = {dir_ / "bench.jsonl", dir_ / "people.jsonl"};
    options_.prompt = " Q: {question} A: ";
    options_.batch = 1;
  }

  std::pair<std::vector<json>, json> run(const LongbenchOptions& given, const std::string& name,
                                         const ModelWithChunk& models = reading_models()) const {
    LongbenchOptions options = given;
    options.out = dir_ / name;
    const json result = evaluate_longbench(models, *tokenizer_, {{"name", "test"}}, options);
    return {done_lines(options.out), result};
  }

  TempDir dir_;
  std::shared_ptr<const Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::vector<Text> texts_ = {
      {"people",
       "Ada lives in a small house by the sea with two dogs.",
       {{"Where?", "by the sea"}}},
      {"places", "The town has three bridges and one tower.", {{"", "three"}}},
      {"people",
       "Bob came home late, and nobody asked him why he had been away for so long.",
       {{"Who came?", "Bob"}, {"When?", "late at night"}, {"Did they ask?", "no"}}}};
  LongbenchOptions options_;
};

TEST_F(LongbenchEval, EveryNumberIsThatOfASlowLoop) {
  for (const bool freeze : {false, true}) {
    for (const int64_t chunk : {0, 8}) {
      LongbenchOptions options = options_;
      options.freeze = freeze;
      options.chunk = chunk;
      const auto [lines, result] = run(options, fmt::format("{}-{}", freeze, chunk));
      ASSERT_EQ(lines.size(), 3u);
      std::map<std::string, std::pair<double, int64_t>> sums;
      for (size_t i = 0; i < 3; ++i) {
        Session session(reading_models()(chunk > 0 ? chunk : 500));
        slow_read(&session, texts_[i].context, !freeze);
        if (!freeze) {
          session.flush();
        }
        ASSERT_EQ(lines[i].at("questions").size(), texts_[i].questions.size());
        for (size_t q = 0; q < texts_[i].questions.size(); ++q) {
          const auto& [question, answer] = texts_[i].questions[q];
          Session fork = session.fork();
          slow_read(&fork, " Q: " + question + " A: ", false);
          const double nll = slow_read(&fork, answer, false);
          const json& line = lines[i].at("questions")[q];
          EXPECT_NEAR(line.at("nll").get<double>(), nll, 1e-9);
          EXPECT_EQ(line.at("tokens"), answer.size());
          for (const std::string& task : {texts_[i].task, std::string("all")}) {
            sums[task].first += nll;
            sums[task].second += std::ssize(answer);
          }
        }
      }
      ASSERT_EQ(result.at("tasks").size(), 2u);
      for (json group : {result.at("tasks")[0], result.at("tasks")[1], result.at("all")}) {
        const auto& [nll, tokens] = sums.at(group.value("task", "all"));
        EXPECT_EQ(group.at("answer_tokens"), tokens);
        EXPECT_NEAR(group.at("perplexity").get<double>(),
                    std::exp(nll / static_cast<double>(tokens)), 1e-7);
      }
      EXPECT_EQ(result.at("all").at("questions"), 5);
      EXPECT_EQ(result.at("all").at("cut_tokens"), 0);
    }
  }
}

TEST_F(LongbenchEval, BatchesAndStopsChangeNothing) {
  const auto models = reading_models();
  const auto [lines, result] = run(options_, "one", models);
  LongbenchOptions four = options_;
  four.batch = 4;
  const auto [lines_of_four, result_of_four] = run(four, "four", models);
  expect_near(lines_of_four, lines);
  expect_near(result_of_four, result);

  LongbenchOptions stopped = options_;
  stopped.out = dir_ / "stopped";
  size_t called = 0;
  EXPECT_THROW(evaluate_longbench(
                   models, *tokenizer_, {{"name", "test"}}, stopped,
                   [&](double, const std::string&) { require(++called < 3, "test", "stopped"); }),
               Error);
  EXPECT_EQ(done_lines(stopped.out).size(), 2u);
  const auto [lines_of_stopped, result_of_stopped] = run(options_, "stopped", models);
  EXPECT_EQ(lines_of_stopped, lines);
  EXPECT_EQ(result_of_stopped, result);
}

TEST_F(LongbenchEval, TheMiddleOfLongDocumentsIsLeftOut) {
  LongbenchOptions options = options_;
  options.max_tokens = 45;
  const auto [lines, result] = run(options, "cut");
  EXPECT_EQ(lines[0].at("cut"), std::ssize(texts_[0].context) - 45);
  EXPECT_EQ(lines[1].at("cut"), 0);
  EXPECT_EQ(lines[2].at("tokens"), 45);
  std::string rest = texts_[2].context;
  rest.erase(23, rest.size() - 45);
  Session session(reading_models()(500));
  slow_read(&session, rest, true);
  session.flush();
  slow_read(&session, " Q: Who came? A: ", false);
  EXPECT_NEAR(lines[2].at("questions")[0].at("nll").get<double>(),
              slow_read(&session, "Bob", false), 1e-9);

  options.max_tokens = 0;
  options.samples = 1;
  EXPECT_EQ(run(options, "first").first.size(), 2u);  // one of each file
}

// What comes later in an answer changes no loss before it; each question is asked alone.
TEST_F(LongbenchEval, NothingIsKnownInAdvance) {
  const auto model = reading_models()(0);
  Session session(model, {.history = false});
  session.feed(bytes_of(texts_[0].context));
  session.flush();
  std::vector<Session> forks;
  std::vector<std::vector<int32_t>> texts;
  for (const char* text : {"by the sea", "by the hill", "by"}) {
    forks.push_back(session.fork());
    texts.push_back(bytes_of(text));
  }
  const auto losses = losses_of(forks, texts);
  ASSERT_EQ(losses[2].size(), 2u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(losses[0][i], losses[1][i], 1e-12);
    if (i < 2) {
      EXPECT_NEAR(losses[0][i], losses[2][i], 1e-12);
    }
  }
  EXPECT_GT(std::abs(losses[0][7] - losses[1][7]), 1e-6);

  const auto [lines, result] = run(options_, "all");
  texts_[2].questions = {texts_[2].questions[2]};
  SetUp();
  const auto [lines_of_one, result_of_one] = run(options_, "one");
  expect_near(lines_of_one[2].at("questions")[0], lines[2].at("questions")[2]);
}

TEST_F(LongbenchEval, RefusesBadTemplates) {
  for (const char* text : {"Answer: ", "{question} {question}"}) {
    LongbenchOptions options = options_;
    options.prompt = text;
    expect_error([&] { run(options, "bad"); }, "[longbench]", text);
  }
}

}  // namespace
}  // namespace fwpkm
