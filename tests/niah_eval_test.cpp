// The needle evaluation against a loop of its own, token by token in double.
#include "eval/niah.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "corpus_files.h"
#include "process.h"
#include "reading_eval.h"
#include "text/haystack.h"

namespace fwpkm {
namespace {

using nlohmann::json;

class NiahEval : public testing::Test {
 protected:
  void SetUp() override {
    write_text_atomic(dir_ / "text.txt", made_up_text(4000, 1));
    HaystackSettings settings;
    settings.text = {(dir_ / "text.txt").string()};
    settings.lengths = {150, 190};
    settings.samples = 3;
    settings.needles = 2;
    HaystackMaker maker(settings, tokenizer_);
    std::string lines;
    for (Haystack h; maker.next(&h);) {
      haystacks_.push_back(h);
      lines += h.json().dump() + "\n";
    }
    options_.data = dir_ / "h.jsonl";
    write_text_atomic(options_.data, lines);
    options_.readings = {1, 2};
    options_.batch = 1;
  }

  // Lines and result of an evaluation into a folder of its own.
  std::pair<std::vector<json>, json> run(const NiahOptions& given, const ModelWithChunk& models,
                                         const std::string& name) const {
    NiahOptions options = given;
    options.out = dir_ / name;
    const json result = evaluate_niah(models, tokenizer_, {{"name", "test"}}, options);
    EXPECT_EQ(result, json::parse(read_text(options.out / "result.json")));
    return {done_lines(options.out), result};
  }

  // What a session answers, by the slow way.
  static json slow_answer(const Session& session, const Haystack& h, int64_t readings) {
    Session asked = session.fork();
    slow_read(&asked, h.question, false);
    json losses = json::array();
    bool candidate = true;
    double own = 0;
    for (const Needle& needle : h.needles) {
      Session fork = asked.fork();
      losses.push_back(slow_read(&fork, needle.value, false));
      own = needle.value == h.answer ? losses.back().get<double>() : own;
    }
    int lower = 0;
    for (const json& loss : losses) {
      lower += loss.get<double>() <= own ? 1 : 0;
    }
    candidate = lower == 1;
    std::string said;
    for (int i = 0; i < 10 && said.size() < h.answer.size(); ++i) {
      const std::vector<double> logits = asked.logits();
      const auto token =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (token == 256) {
        break;
      }
      asked.feed({&token, 1}, false);
      if (!said.empty() || (token != ' ' && (token < 9 || token > 13))) {
        said += static_cast<char>(token);
      }
    }
    double right = 0;
    for (size_t i = 0; i < h.answer.size(); ++i) {
      right += i < said.size() && said[i] == h.answer[i] ? 1 : 0;
    }
    return {{"readings", readings},
            {"exact", right == 6},
            {"digit", right / 6},
            {"candidate", candidate},
            {"losses", losses}};
  }

  static json slow_answers(Session* session, const Haystack& h, int64_t readings, bool learn) {
    json answers = json::array();
    for (int64_t n = 1; n <= readings; ++n) {
      session->reset_tokens();
      slow_read(session, h.context, learn);
      if (learn) {
        session->flush();
      }
      answers.push_back(slow_answer(*session, h, n));
    }
    return answers;
  }

  static void expect_answers(const json& line, json expected) {
    json answers = line.at("answers");
    for (json& answer : answers) {
      answer.erase("said");
    }
    expect_near(answers, expected);
  }

  TempDir dir_;
  std::shared_ptr<const Tokenizer> tokenizer_ = load_tokenizer("bytes");
  std::vector<Haystack> haystacks_;
  NiahOptions options_;
};

TEST_F(NiahEval, EveryNumberIsThatOfASlowLoop) {
  struct Case {
    std::string name;
    json changes;
    int64_t chunk;
    bool freeze;
  };
  const std::vector<Case> cases = {
      {"haystack", json::object(), 0, false},
      {"chunks", json::object(), 16, false},
      {"frozen", json::object(), 0, true},
      {"mlp", {{"fwpkm", nullptr}, {"fwmlp", tiny_fwmlp()}, {"layout", "gdn+fa"}}, 0, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    NiahOptions options = options_;
    options.samples = 1;
    options.batch = 2;
    options.chunk = c.chunk;
    options.freeze = c.freeze;
    const auto models = reading_models(c.changes);
    const auto [lines, result] = run(options, models, c.name);
    ASSERT_EQ(lines.size(), 2u);
    double digit = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const Haystack& h = haystacks_[i * 3];
      Session session(models(c.chunk > 0 ? c.chunk : 4000));
      const json expected = slow_answers(&session, h, 2, !c.freeze);
      EXPECT_EQ(lines[i].at("sample"), i * 3);
      EXPECT_EQ(lines[i].at("depth"), h.asked().depth);
      expect_answers(lines[i], expected);
      digit += i == 0 ? expected[1].at("digit").get<double>() : 0;
      // Without writing, readings are alike; with it, they are not.
      const double change = std::abs(expected[0].at("losses")[0].get<double>() -
                                     expected[1].at("losses")[0].get<double>());
      EXPECT_EQ(change > 1e-6, !c.freeze);
    }
    for (const json& group : result.at("groups")) {
      if (group.at("length") == 150 && group.at("readings") == 2) {
        EXPECT_EQ(group.at("samples"), 1);
        EXPECT_NEAR(group.at("digit").get<double>(), digit, 1e-12);
      }
    }
  }
}

TEST_F(NiahEval, BatchesAndStopsChangeNothing) {
  const auto models = reading_models();
  const auto [lines, result] = run(options_, models, "one");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(result.at("kind"), "niah");
  NiahOptions four = options_;
  four.batch = 4;
  const auto [lines_of_four, result_of_four] = run(four, models, "four");
  expect_near(lines_of_four, lines);
  expect_near(result_of_four, result);

  // Stopped four times, each time in the middle of the second sample that it reads.
  NiahOptions stopped = options_;
  stopped.out = dir_ / "stopped";
  for (int times = 0; times < 4; ++times) {
    size_t called = 0;
    EXPECT_THROW(evaluate_niah(
                     models, tokenizer_, {{"name", "test"}}, stopped,
                     [&](double, const std::string&) { require(++called < 4, "test", "stopped"); }),
                 Error);
  }
  const size_t before = done_lines(stopped.out).size();
  EXPECT_GT(before, 0u);
  EXPECT_LT(before, 6u);
  const auto [lines_of_stopped, result_of_stopped] = run(options_, models, "stopped");
  EXPECT_EQ(lines_of_stopped, lines);
  EXPECT_EQ(result_of_stopped, result);
}

TEST_F(NiahEval, SumsAreThoseOfTheLines) {
  const auto [lines, result] = run(options_, reading_models(), "out");
  for (const json& group : result.at("groups")) {
    int64_t samples = 0;
    double candidate = 0;
    for (const json& line : lines) {
      const int bin = static_cast<int>(line.at("depth").get<double>() * 10);
      if (line.at("length") == group.at("length") &&
          (group.at("depth_bin").is_null() || group.at("depth_bin") == bin)) {
        const json& answer = line.at("answers")[group.at("readings").get<size_t>() - 1];
        ++samples;
        candidate += answer.at("candidate").get<bool>() ? 1 : 0;
      }
    }
    EXPECT_EQ(group.at("samples"), samples);
    EXPECT_NEAR(group.at("candidate").get<double>(), candidate / static_cast<double>(samples),
                1e-12);
  }
  EXPECT_NEAR(result.at("guess").at("candidate").get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(result.at("guess").at("exact").get<double>(), 1e-6, 1e-15);
}

TEST_F(NiahEval, CarriedMemoriesReadOneSampleAfterTheOther) {
  const auto models = reading_models();
  NiahOptions carry = options_;
  carry.carry = true;
  carry.batch = 0;
  carry.samples = 2;
  const auto [lines, result] = run(carry, models, "carry");
  NiahOptions reset = options_;
  reset.samples = 2;
  const auto [lines_of_reset, result_of_reset] = run(reset, models, "reset");
  ASSERT_EQ(lines.size(), 4u);
  expect_near(lines[0], lines_of_reset[0]);
  Session session(models(4000));
  for (size_t i = 0; i < lines.size(); ++i) {
    const Haystack& h = haystacks_[i + (i >= 2 ? 1 : 0)];
    expect_answers(lines[i], slow_answers(&session, h, 2, true));
    const double change =
        std::abs(lines[i].at("answers")[0].at("losses")[0].get<double>() -
                 lines_of_reset[i].at("answers")[0].at("losses")[0].get<double>());
    EXPECT_EQ(change > 1e-6, i > 0) << i;
  }

  // Killed after a line was written and before the session was saved.
  carry.out = dir_ / "stopped";
  size_t called = 0;
  EXPECT_THROW(
      evaluate_niah(models, tokenizer_, {{"name", "test"}}, carry,
                    [&](double, const std::string&) { require(++called < 6, "test", "stopped"); }),
      Error);
  ASSERT_EQ(done_lines(carry.out).size(), 2u);
  json wrong = lines[2];
  wrong["answers"] = json::array();
  std::ofstream(carry.out / "done.jsonl", std::ios::app) << wrong.dump() << "\n";
  const auto [lines_of_stopped, result_of_stopped] = run(carry, models, "stopped");
  EXPECT_EQ(lines_of_stopped, lines);
  EXPECT_EQ(result_of_stopped, result);

  carry.batch = 2;
  expect_error([&] { evaluate_niah(models, tokenizer_, {}, carry); }, "batch=2", "carried");
}

// A needle further on never changes what was expected before it, whatever memory there is.
TEST_F(NiahEval, NothingIsKnownInAdvance) {
  const Haystack& h = haystacks_[0];
  const auto last =
      std::max_element(h.needles.begin(), h.needles.end(),
                       [](const Needle& a, const Needle& b) { return a.depth < b.depth; });
  const size_t at = h.context.find(last->value);
  std::string other = h.context;
  other.replace(at, 6, last->value == "999999" ? "888888" : "999999");
  for (const TinyModel& tiny : memory_models()) {
    SCOPED_TRACE(tiny.name);
    json changed = tiny.json;
    changed["vocab_size"] = 257;
    const auto model = session_model(changed, Device::reference());
    std::vector<std::vector<double>> losses;
    for (const std::string& context : {h.context, other}) {
      std::vector<double> all;
      const Watch watch = {.losses =
                               [&](size_t, std::span<const double> some) {
                                 all.insert(all.end(), some.begin(), some.end());
                               },
                           .memory = {}};
      Session session(model, {.history = false});
      session.feed(bytes_of(context), true, watch);
      losses.push_back(all);
    }
    for (size_t i = 1; i < at; ++i) {
      ASSERT_EQ(losses[0][i], losses[1][i]) << i;
    }
    EXPECT_NE(std::vector<double>(losses[0].begin() + static_cast<ptrdiff_t>(at), losses[0].end()),
              std::vector<double>(losses[1].begin() + static_cast<ptrdiff_t>(at), losses[1].end()));
  }
}

TEST(NiahScores, AreWhatTheySay) {
  const std::vector<double> losses = {3, 1, 2};
  const NiahScore right = judge_answer("482913", "482913", losses, 1);
  EXPECT_TRUE(right.exact);
  EXPECT_TRUE(right.candidate);
  EXPECT_DOUBLE_EQ(right.digit, 1);
  EXPECT_TRUE(judge_answer("482913. And", "482913", losses, 1).exact);
  const NiahScore near = judge_answer("482931", "482913", losses, 2);
  EXPECT_FALSE(near.exact);
  EXPECT_FALSE(near.candidate);
  EXPECT_DOUBLE_EQ(near.digit, 4.0 / 6);
  EXPECT_DOUBLE_EQ(judge_answer("4829", "482913", losses, 0).digit, 4.0 / 6);
  EXPECT_DOUBLE_EQ(judge_answer("82913", "482913", losses, 0).digit, 0);
  EXPECT_FALSE(judge_answer("", "482913", losses, 0).exact);
  const std::vector<double> tie = {1, 1};
  EXPECT_FALSE(judge_answer("", "482913", tie, 0).candidate);
}

TEST(Prompt, IsCutWhereAnswersBegin) {
  const TempDir dir;
  std::string text = made_up_text(20'000, 3);
  for (int i = 0; i < 3000; ++i) {
    text += fmt::format("number {} is {}.\n", i, 100'000 + i * 37 % 9000);
  }
  write_text_atomic(dir / "a.txt", text);
  const std::string file = (dir / "t.model").string();
  train_sentencepiece({(dir / "a.txt").string()}, 500, file, {});
  for (const std::string& spec : {std::string("bytes"), file}) {
    const auto tokenizer = load_tokenizer(spec);
    const std::string question = " The secret number of K7QX is ";
    const std::vector<std::string> answers = {"100037", "482913", "no"};
    const Prompt prompt = encode_prompt(*tokenizer, question, answers);
    ASSERT_EQ(prompt.answers.size(), 3u);
    EXPECT_FALSE(prompt.read.empty());
    for (size_t i = 0; i < answers.size(); ++i) {
      std::vector<int32_t> whole = prompt.read;
      whole.insert(whole.end(), prompt.answers[i].begin(), prompt.answers[i].end());
      EXPECT_EQ(whole, tokenizer->encode(question + answers[i], true));
      // The answer, and no more than the space before it.
      const std::string said = tokenizer->decode(prompt.answers[i]);
      EXPECT_TRUE(said == answers[i] || said == " " + answers[i]) << said;
    }
    EXPECT_EQ(prompt.answers[0].size() < 6, spec != "bytes");
  }
}

TEST(NiahCli, MakesAndEvaluates) {
  const TempDir dir;
  const auto at = [&](const char* name) { return (dir / name).string(); };
  write_text_atomic(dir / "text.txt", made_up_text(20'000, 1));
  const ProcessResult trained = run_program(
      "train --config " FWPKM_CONFIGS
      "/tiny.json --data builtin --tokenizer bytes --steps 1 --batch 1 --set hidden_size=32 --set "
      "mlp.hidden=32 --set layers=2 --set fwpkm.layers=1 --set fwpkm.n_subkeys=16 --set "
      "fwpkm.key_dim=16 --set fwpkm.value_dim=16 --set fwpkm.chunk=32 --out " +
      at("run"));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const ProcessResult made =
      run_program("data niah --tokenizer bytes --lengths 1K,700 --samples 2 --needles 3 --text " +
                  at("text.txt") + " --out " + at("h.jsonl"));
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(read_haystacks(dir / "h.jsonl").size(), 4u);
  const std::string command = "eval niah --readings 1,2 --json - --model " + at("run") +
                              " --data " + at("h.jsonl") + " --out " + at("out");
  const ProcessResult first = run_program(command);
  ASSERT_EQ(first.status, 0) << first.err;
  const json result = json::parse(first.out);
  EXPECT_EQ(result.at("kind"), "niah");
  EXPECT_NE(first.err.find("guessing"), std::string::npos);
  EXPECT_EQ(done_lines(dir / "out").size(), 4u);
  const std::string page = read_text(dir / "out" / "report.html");
  EXPECT_NE(page.find("Needles in haystacks"), std::string::npos);
  EXPECT_NE(page.find("by depth"), std::string::npos);
  const ProcessResult again = run_program(command);
  EXPECT_EQ(again.out, first.out);
  const ProcessResult other = run_program(command + " --freeze");
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("--start-over"), std::string::npos) << other.err;
  EXPECT_EQ(run_program(command + " --freeze --start-over --chunk 64 --samples 1").status, 0);
  EXPECT_NE(run_program(command + " --chunk some").err.find("--chunk 'some'"), std::string::npos);
  EXPECT_EQ(run_program("data niah --tokenizer bytes --lengths 1X --text " + at("text.txt") +
                        " --out " + at("x.jsonl"))
                .status,
            1);
  EXPECT_FALSE(std::filesystem::exists(dir / "x.jsonl"));

  write_text_atomic(dir / "qa.jsonl", R"({"input": "Ada has a dog. Bob has a cat.", )"
                                      R"("instructions": ["Who has a cat?", "And a dog?"], )"
                                      R"("outputs": ["Bob", "Ada"]})");
  const ProcessResult answers = run_program(
      "eval longbench --json - --max-tokens 20 --template 'Q: {question}\\nA: ' "
      "--model " +
      at("run") + " --data " + at("qa.jsonl") + " --out " + at("long"));
  ASSERT_EQ(answers.status, 0) << answers.err;
  const json all = json::parse(answers.out).at("all");
  EXPECT_EQ(all.at("answer_tokens"), 6);
  EXPECT_EQ(all.at("cut_tokens"), 9);
  EXPECT_NE(read_text(dir / "long" / "report.html").find("Perplexity of answers"),
            std::string::npos);
  // Side by side with another.
  const ProcessResult report =
      run_program("report --out " + at("all.html") + " " + dir.path().string());
  ASSERT_EQ(report.status, 0) << report.err;
  EXPECT_NE(read_text(dir / "all.html").find("Questions on long documents"), std::string::npos);
}

}  // namespace
}  // namespace fwpkm
