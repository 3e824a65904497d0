// The program as a user meets it: exit status, output, errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "process.h"
#include "temp_dir.h"
#include "tiny_models.h"

namespace fwpkm {
namespace {

using Outcome = ProcessResult;

Outcome run(const std::string& arguments) {
  return run_program(arguments);
}

nlohmann::json json_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

const std::string kGdn = FWPKM_CONFIGS "/paper/gdn.json";

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    config_ = (dir_ / "tiny.json").string();
    write_text_atomic(config_, tiny_models()[3].json.dump());
    tokens_ = (dir_ / "tokens.txt").string();
    write_text_atomic(tokens_, "1 2 3 4 5 6 7 8\n8 7 6 5 4 3 2 1\n");
  }
  TempDir dir_;
  std::string config_, tokens_;
};

TEST_F(Cli, HelpIsCompleteEverywhere) {
  for (const std::string command :
       {"", "train", "generate", "model", "model info", "data", "data encode", "data tokenizer",
        "data info", "cost", "config", "run", "golden", "check", "bench", "bench train",
        "bench decode", "bench memory"}) {
    const Outcome outcome = run(command + " --help");
    EXPECT_EQ(outcome.status, 0) << command;
    EXPECT_NE(outcome.out.find("Usage"), std::string::npos) << command;
    if (!command.empty() && command != "bench" && command != "model" && command != "data") {
      for (const std::string option : {"--json", "--device", "--threads", "--set"}) {
        EXPECT_NE(outcome.out.find(option), std::string::npos) << command << " " << option;
      }
    }
  }
  EXPECT_EQ(run("--version").status, 0);
}

TEST_F(Cli, UsageErrorsExitWithTwo) {
  for (const std::string arguments :
       {"", "nonsense", "cost", "cost --config", "check --grad --perf", "bench", "golden",
        "cost --config x --batch 0"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
    EXPECT_FALSE(outcome.err.empty());
  }
}

TEST_F(Cli, ErrorsSayWhatWasWrong) {
  const auto fails = [&](const std::string& arguments, const std::string& text) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  };
  fails("cost --config /nowhere/at/all.json --json -", "/nowhere/at/all.json");
  fails("cost --config " + kGdn + " --set gdn.keyheads=3", "gdn.key_heads");
  fails("cost --config " + kGdn + " --set hidden_size=99999999999", "hidden_size");
  fails("golden " + kGdn, "gdn.json");
  fails("check no_such_op", "there is no op 'no_such_op'");
  fails("check rms_norm --case nope", "nope");
  fails("check --device gpu", "there is no device 'gpu'");
  fails("run --config " + config_ + " --tokens " + tokens_ + " --dump /nowhere/d.safetensors",
        "/nowhere/d.safetensors");
  fails("run --config " + config_ + " --set vocab_size=5 --tokens " + tokens_ + " --dump " +
            (dir_ / "d.safetensors").string(),
        "outside the model's vocabulary");
}

TEST_F(Cli, BenchMemoryTimesTheSizesInTheOrderGiven) {
  const auto rows = json_of(run("bench memory --subkeys 24,9 --runs 2 --json -"))["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["n_subkeys"], 24);
  EXPECT_EQ(rows[1]["n_subkeys"], 9);
  for (const auto& row : rows) {
    for (const char* key :
         {"read_us", "write_us", "backward_us", "value_write_us", "value_backward_us", "rss_mb"}) {
      EXPECT_GT(row.at(key).get<double>(), 0) << key;
    }
    EXPECT_LT(row["value_write_us"], row["write_us"]);
    EXPECT_LT(row["value_backward_us"], row["backward_us"]);
  }
}

TEST_F(Cli, BenchMemoryRefusesWhatDoesNotFit) {
  const Outcome outcome = run("bench memory --subkeys 16,20000 --json -");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  EXPECT_NE(outcome.err.find("n_subkeys=20000 needs"), std::string::npos) << outcome.err;
  EXPECT_EQ(run("bench memory --subkeys 4").status, 2);
  EXPECT_EQ(run("bench memory --device reference --subkeys 16").status, 1);
}

TEST_F(Cli, CostPrintsOnlyJsonWhenAsked) {
  const auto json =
      json_of(run("cost --config " + kGdn +
                  " " FWPKM_CONFIGS "/paper/gdn_fwpkm-2-6-10.json --batch 8 --seq 4096 --json -"));
  ASSERT_EQ(json["models"].size(), 2u);
  EXPECT_EQ(json["models"][0]["name"], "gdn");
  EXPECT_TRUE(json["models"][0]["total_params"].is_number_integer());
  EXPECT_NEAR(json["models"][0]["total_params"].get<double>(), 112.11e6, 0.01e6);
  EXPECT_NEAR(json["models"][1]["active_params"].get<double>(), 116.48e6, 0.01e6);
  EXPECT_NEAR(json["models"][0]["flops"].get<double>(), 22.04e12, 0.01e12);
  EXPECT_NE(run("cost --config " + kGdn).out.find("112.11"), std::string::npos);
}

TEST_F(Cli, ResultsGoToAFile) {
  const std::string file = (dir_ / "cost.json").string();
  const Outcome outcome = run("cost --config " + kGdn + " --json " + file);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("gdn"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(read_text(file))["models"][0]["name"], "gdn");
}

TEST_F(Cli, ResultsThatCannotBeWrittenAreAnError) {
  const Outcome outcome = run("cost --config " + kGdn + " --json /nowhere/x.json");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("/nowhere/x.json"), std::string::npos) << outcome.err;
}

TEST_F(Cli, AFullStandardOutputIsAnError) {
  const Outcome outcome = run("cost --config " + kGdn + " --json - > /dev/full");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("standard output"), std::string::npos) << outcome.err;
}

TEST_F(Cli, RunThenGolden) {
  const std::string dump = (dir_ / "dump.safetensors").string();
  const auto json = json_of(run("run --config " + config_ + " --tokens " + tokens_ + " --dump " +
                                dump + " --grad --weights --device reference --json -"));
  EXPECT_GT(json["loss"].get<double>(), 1.0);
  for (const std::string device : {"reference", "cpu"}) {
    const auto golden = json_of(run("golden " + dump + " --json - --device " + device));
    EXPECT_TRUE(golden["ok"].get<bool>());
    EXPECT_EQ(golden["groups"].size(), 4u);
  }
  // A config key changed is a model changed: it must not pass.
  EXPECT_EQ(run("golden " + dump + " --device reference --set norm_eps=0.01").status, 1);
}

TEST_F(Cli, RunThenGoldenWithAMemory) {
  const std::string dump = (dir_ / "dump.safetensors").string();
  json_of(run("run --config " + config_ + " --tokens " + tokens_ + " --dump " + dump +
              " --grad --weights --device reference --json - --set fwpkm.layers=1 --set "
              "fwpkm.n_subkeys=6 --set fwpkm.topk=2 --set fwpkm.chunk=3"));
  const auto golden = json_of(run("golden " + dump + " --json - --device reference"));
  EXPECT_TRUE(golden["ok"].get<bool>());
  EXPECT_EQ(golden["groups"].size(), 5u);  // with the fast weights after the run
  EXPECT_EQ(run("golden " + dump + " --device reference --set fwpkm.chunk=4").status, 1);
}

TEST_F(Cli, CheckReportsEveryCase) {
  for (const std::string flags : {"", " --grad"}) {
    const auto json = json_of(run("check rms_norm --json -" + flags));
    EXPECT_GE(json["results"].size(), 5u);
    EXPECT_EQ(json["failed"], 0);
  }
  EXPECT_NE(run("check --support").out.find("| rms_norm |"), std::string::npos);
}

TEST_F(Cli, BenchesSpeakTheirFormat) {
  const auto train = json_of(run("bench train --config " + config_ + " " + config_ +
                                 " --batch 2 --seq 16 --steps 2 --json - --set layout=gdn+swa"));
  ASSERT_EQ(train["rows"].size(), 2u);
  for (const char* key : {"step_ms", "tokens_per_second", "model_gflops", "gemm_gflops",
                          "fraction_of_gemm", "peak_mb"}) {
    EXPECT_GT(train["rows"][1][key].get<double>(), 0) << key;
  }
  const auto decode = json_of(run("bench decode --config " + config_ + " --tokens 4 --json -"));
  for (const char* key : {"tokens_per_second", "mean_tokens_per_second", "weight_bytes",
                          "read_gbps", "fraction_of_read"}) {
    EXPECT_GT(decode[key].get<double>(), 0) << key;
  }
}

}  // namespace
}  // namespace fwpkm
