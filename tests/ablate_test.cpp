// Models trained and evaluated alike, and timed: as commands.
#include <gtest/gtest.h>

#include "memory_models.h"
#include "process.h"

namespace fwpkm {
namespace {

using nlohmann::json;

class Ablate : public testing::Test {
 protected:
  Ablate() {
    json config = memory_model({{"name", "plain"},
                                {"vocab_size", 257},
                                {"fwpkm", {{"chunk", 8}}},
                                {"train", {{"steps", 3}, {"batch", 2}, {"seq", 24}}}});
    write_text_atomic(path("plain.json"), config.dump());
    config["name"] = "other|2";
    config["hidden_size"] = 16;
    write_text_atomic(path("other.json"), config.dump());
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  ProcessResult ablate(const std::string& more) const {
    return run_program("eval ablate --config " + path("plain.json") + " " + path("other.json") +
                           " --variant no-gate:fwpkm.gating=false,fwpkm.loss_weight=false "
                           "--variant slow:fwpkm.layers= --data builtin --valid-every 2 --text "
                           "builtin --tokens 200 --out " +
                           path("out") + " --json - " + more,
                       "OMP_WAIT_POLICY=passive ");
  }
  TempDir dir_;
};

TEST_F(Ablate, PutsModelsIntoOneTable) {
  const ProcessResult first = ablate("");
  ASSERT_EQ(first.status, 0) << first.err;
  const json result = json::parse(first.out);
  ASSERT_EQ(result.at("variants").size(), 4u);
  const char* names[] = {"plain", "other_2", "no-gate", "slow"};
  for (size_t i = 0; i < 4; ++i) {
    const json& variant = result.at("variants").at(i);
    EXPECT_EQ(variant.at("name"), names[i]);
    EXPECT_GT(variant.at("ppl").get<double>(), 1);
    EXPECT_GT(variant.at("valid_loss").get<double>(), 0);
    // What each variant is shows in what it has.
    EXPECT_EQ(variant.contains("ppl_frozen"), i != 3);
    EXPECT_EQ(variant.at("gate").is_null(), i >= 2);
    EXPECT_EQ(variant.at("kld").is_null(), i == 3);
    const json alone =
        json::parse(read_text(path("out/" + std::string(names[i]) + ".ppl/result.json")));
    EXPECT_EQ(alone.at("models").at(0).at("ppl"), variant.at("ppl"));
  }
  // More evaluations, of models that are there already.
  std::filesystem::create_directories(dir_ / "domains" / "law");
  write_text_atomic(path("domains/law/adapt.txt"), "the law of the sea");
  write_text_atomic(path("domains/law/eval.txt"), "the sea of the law");
  write_text_atomic(path("text.txt"), std::string(40, 'x') + " and so on. It is said that\n");
  write_text_atomic(path("qa.jsonl"),
                    R"({"context": "Ada has a dog.", "input": "Who?", "answers": ["Ada"]})"
                    "\n");
  ASSERT_EQ(
      run_program("data niah --text " + path("text.txt") +
                  " --tokenizer bytes --lengths 400 --samples 1 --out " + path("needles.jsonl"))
          .status,
      0);
  const ProcessResult more = ablate("--needles " + path("needles.jsonl") + " --questions " +
                                    path("qa.jsonl") + " --domains " + path("domains"));
  ASSERT_EQ(more.status, 0) << more.err;
  const json all = json::parse(more.out);
  for (const json& variant : all.at("variants")) {
    EXPECT_GE(variant.at("needles_1"), 0);
    EXPECT_GE(variant.at("needles_4"), 0);
    EXPECT_GT(variant.at("answer_ppl"), 1);
    EXPECT_TRUE(variant.at("retention").is_null());  // there is only one domain
  }
  EXPECT_LT(result.at("variants").at(1).at("active_params"),
            result.at("variants").at(0).at("active_params"));
  const ProcessResult again = ablate("");
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(json::parse(again.out), result);  // all was there
  EXPECT_NE(read_text(path("out/report.html")).find("no-gate"), std::string::npos);
}

TEST_F(Ablate, RefusesWhatItCannotTellApart) {
  ProcessResult r = ablate("--variant plain:hidden_size=8");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("called 'plain'"), std::string::npos) << r.err;
  r = ablate("--variant x");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("is not NAME:key=value"), std::string::npos) << r.err;
}

TEST_F(Ablate, CostIsMeasured) {
  const ProcessResult r = run_program(
      "cost --measure --steps 2 --batch 2 --seq 16 --json - --config " + path("plain.json"));
  ASSERT_EQ(r.status, 0) << r.err;
  const json model = json::parse(r.out).at("models").at(0);
  const double samples = model.at("samples_per_second"), flops = model.at("flops_per_second");
  EXPECT_GT(samples, 0);
  // One step computes what was counted for two samples.
  EXPECT_NEAR(flops / samples * 2 / model.at("flops").get<double>(), 1, 1e-6);
  const ProcessResult large =
      run_program("cost --measure --batch 40000 --seq 2000 --config " + path("plain.json"));
  EXPECT_EQ(large.status, 1);
  EXPECT_NE(large.err.find("lower --batch or --seq"), std::string::npos) << large.err;
}

}  // namespace
}  // namespace fwpkm
