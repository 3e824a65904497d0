// The recall evaluation: what it counts, and what it leaves alone.
#include <gtest/gtest.h>

#include "eval/recall.h"
#include "model/memory_stats.h"
#include "process.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

ModelConfig recall_config() {
  const std::string smaller[] = {"hidden_size=32",       "mlp.hidden=32",  "fwpkm.key_dim=16",
                                 "fwpkm.value_dim=16",   "gdn.key_dim=16", "gdn.value_dim=16",
                                 "attention.head_dim=16"};
  return load_config(FWPKM_CONFIGS "/recall.json", smaller);
}

TEST(RecallEval, CountsEveryQuestionOnce) {
  Model model(recall_config(), Device::cpu(), false);
  model.parameters().initialize(1);
  RecallOptions options;
  options.sequences = 3;
  options.batch = 2;
  options.readings = {1, 3};
  options.show = 4;
  double last = 0;
  const RecallResult r = evaluate_recall(model, options, [&](double done) {
    EXPECT_GE(done, last);
    last = done;
  });
  EXPECT_DOUBLE_EQ(last, 1.0);

  // The same questions, counted from the corpus itself.
  int64_t questions = 0, near = 0, written = 0;
  for (const int64_t index : {1, 3, 5}) {
    for (const auto& mark : recall_sequence(options.corpus, options.seed, index).marks) {
      ++questions;
      near += mark.distance <= 32 ? 1 : 0;
      // Token i is a query of update i / 64, which happens after token 64 + 64 * (i / 64).
      const int64_t now = mark.position - 1, query = now - mark.distance;
      written += mark.distance > 32 && 64 + 64 * (query / 64) < now ? 1 : 0;
    }
  }
  EXPECT_EQ(r.window, 32);
  EXPECT_EQ(r.within_window.questions, near);
  EXPECT_EQ(r.beyond_window.questions, written);
  EXPECT_EQ(r.not_written.questions, questions - near - written);
  int64_t by_distance = 0;
  for (const auto& d : r.by_distance) {
    by_distance += d.share.questions;
  }
  EXPECT_EQ(by_distance, questions);
  ASSERT_EQ(r.by_readings.size(), 2u);
  EXPECT_EQ(r.by_readings[0].all.questions, 3 * recall_facts(options.corpus));
  EXPECT_EQ(r.by_readings[1].all.questions, 3 * recall_facts(options.corpus));
  EXPECT_EQ(r.examples.size(), 4u);
  // Untrained: no better than a guess, give or take.
  EXPECT_LT(*r.beyond_window.recall(), 0.15);
  EXPECT_FALSE(r.memory.empty());
}

TEST(RecallEval, RefusesAnotherVocabulary) {
  ModelConfig config = recall_config();
  config.vocab_size = 130;
  Model model(config, Device::cpu(), false);
  model.parameters().initialize(1);
  EXPECT_THROW(evaluate_recall(model, {}), std::exception);
}

TEST(SlotUse, KnowsAPattern) {
  // Four slots: one read three times, one once, two never.
  const SlotUse use = slot_use({2, 0, 2, 2}, 4);
  EXPECT_EQ(use.reads, 4);
  EXPECT_DOUBLE_EQ(use.collision, 0.75);
  EXPECT_DOUBLE_EQ(use.coverage, 0.5);
  EXPECT_NEAR(use.kld, 0.75 * std::log(3.0) + 0.25 * std::log(1.0), 1e-12);
  EXPECT_DOUBLE_EQ(slot_use({0, 1, 2, 3}, 4).kld, 0);
  EXPECT_EQ(slot_use({}, 4).reads, 0);
}

TEST(RecallEval, WorksFromTheCommandLine) {
  const TempDir dir;
  const std::string run = (dir.path() / "run").string();
  const std::string smaller =
      " --set hidden_size=32 --set mlp.hidden=32 --set fwpkm.value_dim=16 --set gdn.key_dim=16";
  const ProcessResult trained =
      run_program("train --config " FWPKM_CONFIGS
                  "/recall.json --data builtin:recall --steps 3 --valid-every "
                  "1 --valid-batches 1 --out " +
                  run + smaller);
  ASSERT_EQ(trained.status, 0) << trained.err;
  const ProcessResult live =
      run_program("eval recall --sequences 2 --readings 1,2 --show 2 --json - --model " + run);
  ASSERT_EQ(live.status, 0) << live.err;
  const auto json = nlohmann::json::parse(live.out);
  EXPECT_TRUE(json.at("recall_beyond_window").is_number());
  EXPECT_EQ(json.at("by_readings").size(), 2u);
  EXPECT_TRUE(json.at("memory").at("1").contains("memory_loss"));
  const ProcessResult frozen =
      run_program("eval recall --sequences 2 --freeze --json - --model " + run);
  ASSERT_EQ(frozen.status, 0) << frozen.err;
  EXPECT_FALSE(nlohmann::json::parse(frozen.out).at("memory").at("1").contains("memory_loss"));

  const ProcessResult curves = run_program("curves --json - " + run + " " + run);
  ASSERT_EQ(curves.status, 0) << curves.err;
  EXPECT_EQ(nlohmann::json::parse(curves.out).at("curves").at(1).at("points").size(), 3u);
  EXPECT_EQ(run_program("curves " + (dir.path() / "nothing").string()).status, 1);
}

}  // namespace
}  // namespace fwpkm
