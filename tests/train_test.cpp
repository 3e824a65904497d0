// Training runs: schedules, resuming, kills, and what goes wrong on disks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "model/checkpoint.h"
#include "process.h"
#include "session/session.h"
#include "tiny_models.h"
#include "train/memory_plan.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/step.h"

namespace fwpkm {
namespace {

namespace fs = std::filesystem;

TEST(Schedule, WarmsUpThenFallsAsACosine) {
  TrainConfig t;
  t.max_lr = 1;
  t.min_lr = 0.1;
  t.warmup = 10;
  t.steps = 110;
  EXPECT_DOUBLE_EQ(learning_rate(t, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(t, 10), 1);
  EXPECT_NEAR(learning_rate(t, 60), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(t, 110), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(t, 500), 0.1, 1e-12);
  t.warmup = 0;
  EXPECT_GT(learning_rate(t, 1), 0.99);
}

// A run of the program on a tiny model.
class TrainRun : public testing::Test {
 protected:
  void SetUp() override {
    nlohmann::json json = tiny_models()[2].json;  // gdn+swa
    json["name"] = "t";
    json["vocab_size"] = 257;
    json["train"] = {{"warmup", 3}, {"batch", 4}, {"micro_batch", 2}, {"seq", 24}};
    config_ = (dir_ / "config.json").string();
    write_text_atomic(config_, json.dump());
  }

  std::vector<std::string> arguments(const std::string& out, int steps, int save_every) const {
    return {"train",
            "--config",
            config_,
            "--data",
            "builtin",
            "--out",
            out,
            "--steps",
            std::to_string(steps),
            "--save-every",
            std::to_string(save_every),
            "--valid-every",
            "5",
            "--valid-batches",
            "1",
            "--lr",
            "0.01",
            "--resume"};
  }
  static std::string joined(const std::vector<std::string>& list) {
    return fmt::format("{}", fmt::join(list, " "));
  }
  std::string out(const std::string& name) const { return (dir_ / name).string(); }

  // Metrics without what depends on the clock.
  static std::vector<nlohmann::json> metrics(const fs::path& folder) {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      lines.push_back(nlohmann::json::parse(line));
      lines.back().erase("tokens_per_second");
    }
    return lines;
  }
  static std::string bytes_of(const fs::path& file) { return read_text(file); }
  static void expect_equal_runs(const fs::path& a, const fs::path& b, int steps) {
    EXPECT_EQ(metrics(a), metrics(b));
    EXPECT_EQ(metrics(a).size(), static_cast<size_t>(steps));
    const auto last = fmt::format("checkpoints/step-{:08}", steps);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "run.json"}) {
      EXPECT_TRUE(bytes_of(a / last / file) == bytes_of(b / last / file)) << file;
    }
  }

  TempDir dir_;
  std::string config_;
};

TEST_F(TrainRun, WritesMetricsAndLearns) {
  const ProcessResult result = run_program(joined(arguments(out("a"), 30, 10)) + " --json -");
  ASSERT_EQ(result.status, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["step"], 30);
  const auto lines = metrics(out("a"));
  ASSERT_EQ(lines.size(), 30u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    for (const char* key : {"loss", "lr", "grad_norm"}) {
      EXPECT_TRUE(std::isfinite(lines[i][key].get<double>()));
    }
    EXPECT_EQ(lines[i].contains("valid_loss"), (i + 1) % 5 == 0);
  }
  const ProcessResult again = run_program(joined(arguments(out("a"), 30, 10)));
  EXPECT_EQ(again.status, 0);
  EXPECT_NE(again.out.find("complete already, at step 30"), std::string::npos) << again.out;
  EXPECT_EQ(metrics(out("a")), lines);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>() - 0.5);
  EXPECT_TRUE(fs::exists(fs::path(out("a")) / "best" / "model.safetensors"));
}

// True while a checkpoint is being written in a run's folder.
bool writing(const fs::path& folder) {
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", missing)) {
    if (entry.path().filename().string().starts_with("writing-")) {
      return true;
    }
  }
  return false;
}

// Kills at random moments, every other one during the write of a checkpoint. FWPKM_KILLS asks for
// more of them.
TEST_F(TrainRun, KilledAndResumedEqualsUninterrupted) {
  const char* wanted = std::getenv("FWPKM_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 6;
  const int steps = 10 * kills;
  ASSERT_EQ(run_program(joined(arguments(out("whole"), steps, 2))).status, 0);
  Random random(17);
  int done = 0, in_write = 0;
  while (done < kills) {
    Child child(arguments(out("killed"), steps, 2));
    if (done % 2 == 0) {
      usleep(static_cast<useconds_t>(30000 + random.below(150000)));
    } else {
      while (child.running() && !writing(out("killed"))) {
      }
      usleep(static_cast<useconds_t>(random.below(3000)));
    }
    if (!child.running()) {
      break;
    }
    child.signal(SIGKILL);
    child.wait();
    in_write += writing(out("killed")) ? 1 : 0;
    ++done;
  }
  EXPECT_GE(done, kills / 2);
  RecordProperty("kills", done);
  RecordProperty("kills_in_a_write", in_write);
  const ProcessResult last = run_program(joined(arguments(out("killed"), steps, 2)));
  ASSERT_EQ(last.status, 0) << last.err;
  expect_equal_runs(out("whole"), out("killed"), steps);
  std::printf("%d kills, %d of them in the write of a checkpoint\n", done, in_write);
}

// Two micro batches of two rows are one batch of four.
// Every way of keeping memories: a run that was stopped and resumed equals one that was not, its
// metrics say how the memories do, and rows that carry their memory learn something else than rows
// that do not.
TEST_F(TrainRun, MemoriesSurviveResuming) {
  const std::string memory =
      " --order streams --set fwpkm.layers=1 --set fwpkm.n_subkeys=8 --set fwpkm.topk=2 --set "
      "fwpkm.key_dim=8 --set fwpkm.value_dim=12 --set fwpkm.chunk=8";
  const std::string dense =
      " --order streams --set fwmlp.layers=1 --set fwmlp.hidden=10 --set fwmlp.key_dim=8 --set "
      "fwmlp.value_dim=12 --set fwmlp.chunk=8";
  for (const std::string& kind : {memory, dense}) {
    std::map<std::string, double> losses;
    for (const std::string carry : {"sequence", "document", "forever", "shared"}) {
      const fs::path whole = out((kind == memory ? "m-" : "d-") + carry), parts = whole / "again";
      const std::string how = carry == "shared" ? " --set memory=shared"
                                                : " --set memory=per_sequence --set carry=" + carry;
      const auto train = [&](const fs::path& to) {
        const ProcessResult result = run_program(joined(arguments(to.string(), 8, 5)) + kind + how);
        ASSERT_EQ(result.status, 0) << result.err;
      };
      train(whole);
      // As if it had been killed after step 5.
      fs::create_directories(parts / "checkpoints");
      fs::copy(whole / "metrics.jsonl", parts / "metrics.jsonl");
      fs::copy(whole / "checkpoints/step-00000005", parts / "checkpoints/step-00000005",
               fs::copy_options::recursive);
      train(parts);
      expect_equal_runs(whole, parts, 8);
      const auto lines = metrics(whole);
      const nlohmann::json& used = lines[7]["memory"]["1"];
      EXPECT_GT(used.at("gate").get<double>(), 0);
      EXPECT_EQ(used.at("gate_histogram").size(), 10u);
      EXPECT_GT(used.at("memory_loss").get<double>(), 0);
      EXPECT_EQ(used.contains("coverage"), kind == memory);
      losses[carry] = lines[7]["loss"];
    }
    EXPECT_NE(losses["sequence"], losses["forever"]);
    EXPECT_NE(losses["sequence"], losses["shared"]);
    EXPECT_NE(losses["forever"], losses["shared"]);
    EXPECT_EQ(losses["document"], losses["forever"]);  // no document ends in so few steps
  }
}

TEST_F(TrainRun, GradientsAccumulate) {
  ASSERT_EQ(run_program(joined(arguments(out("two"), 5, 5)) + " --batch 4 --micro-batch 2").status,
            0);
  ASSERT_EQ(run_program(joined(arguments(out("one"), 5, 5)) + " --batch 4 --micro-batch 4").status,
            0);
  const auto two = metrics(out("two")), one = metrics(out("one"));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(two[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(two[i]["grad_norm"].get<double>(), one[i]["grad_norm"].get<double>(), 1e-2);
  }
}

TEST_F(TrainRun, HidingBordersChangesTheLoss) {
  const std::string more = " --set train.hide_borders=true --seq 4000 --batch 1";
  ASSERT_EQ(run_program(joined(arguments(out("seen"), 2, 2)) + " --seq 4000 --batch 1").status, 0);
  const ProcessResult result = run_program(joined(arguments(out("hidden"), 2, 2)) + more);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(metrics(out("seen"))[0]["loss"], metrics(out("hidden"))[0]["loss"]);
}

TEST_F(TrainRun, InterruptSavesAndLeaves) {
  ASSERT_EQ(run_program(joined(arguments(out("whole"), 60, 1000))).status, 0);
  Child child(arguments(out("stopped"), 60, 1000));
  while (child.running() && metrics(out("stopped")).size() < 3) {
    usleep(2000);
  }
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_EQ(RunFolder(out("stopped")).checkpoints().size(), 1u);
  ASSERT_EQ(run_program(joined(arguments(out("stopped"), 60, 1000))).status, 0);
  expect_equal_runs(out("whole"), out("stopped"), 60);
}

TEST_F(TrainRun, KeepsTheNewestAndTheBest) {
  ASSERT_EQ(run_program(joined(arguments(out("a"), 20, 2)) + " --keep 2").status, 0);
  const RunFolder folder(out("a"));
  const auto list = folder.checkpoints();
  const fs::path best = fs::canonical(folder.path() / "best");
  EXPECT_GE(list.size(), 2u);
  EXPECT_LE(list.size(), 3u);
  EXPECT_EQ(list.back().step, 20);
  EXPECT_TRUE(fs::exists(best / "model.safetensors"));
}

TEST_F(TrainRun, RefusesToOverwriteOrToShareAFolder) {
  ASSERT_EQ(run_program(joined(arguments(out("a"), 4, 2))).status, 0);
  auto again = arguments(out("a"), 4, 2);
  again.pop_back();  // --resume
  const ProcessResult result = run_program(joined(again));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("holds a run already"), std::string::npos) << result.err;
  EXPECT_EQ(metrics(out("a")).size(), 4u);

  const RunFolder locked(out("a"));
  const ProcessResult second = run_program(joined(arguments(out("a"), 8, 2)));
  EXPECT_EQ(second.status, 1);
  EXPECT_NE(second.err.find("another run is writing"), std::string::npos) << second.err;
}

TEST_F(TrainRun, ResumeWithoutACheckpointStartsOver) {
  fs::create_directories(dir_ / "a");
  std::ofstream(dir_ / "a" / "metrics.jsonl") << "{\"step\":1}\n{\"step\":2";
  ASSERT_EQ(run_program(joined(arguments(out("a"), 4, 100))).status, 0);
  EXPECT_EQ(metrics(out("a")).size(), 4u);
}

TEST_F(TrainRun, StopsAtTheFirstNumberThatIsNotFinite) {
  ASSERT_EQ(run_program(joined(arguments(out("a"), 4, 2))).status, 0);
  // A weight that is not a number, in a checkpoint that is fine otherwise.
  const fs::path file = fs::path(out("a")) / "checkpoints/step-00000004/model.safetensors";
  {
    const SafeTensors from = SafeTensors::open(file);
    SafeTensorsWriter to(file);
    for (const TensorInfo& info : from.tensors()) {
      to.declare(info.name, info.dtype, info.shape);
    }
    for (const TensorInfo& info : from.tensors()) {
      std::vector<float> values(info.count());
      from.read(info.name, values.data(), values.size());
      if (info.name == "model.layers.2.mlp.up_proj.weight") {
        values[7] = std::nanf("");
      }
      to.append(info.name, std::span<const float>(values));
    }
    to.commit();
  }
  const ProcessResult result = run_program(joined(arguments(out("a"), 8, 2)));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("[train] step 5: loss nan, and the gradient of model."),
            std::string::npos)
      << result.err;
  EXPECT_EQ(metrics(out("a")).size(), 4u);
  EXPECT_EQ(RunFolder(out("a")).checkpoints().back().step, 4);
}

TEST_F(TrainRun, AFullDiskLosesNothing) {
  ASSERT_EQ(run_program(joined(arguments(out("a"), 4, 2))).status, 0);
  // Files of at most 8 blocks: the next checkpoint cannot be written.
  const ProcessResult result =
      run_program(joined(arguments(out("a"), 8, 2)), "trap '' XFSZ; ulimit -f 8; ");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("cannot write"), std::string::npos) << result.err;
  ASSERT_EQ(run_program(joined(arguments(out("a"), 8, 2))).status, 0);
  ASSERT_EQ(run_program(joined(arguments(out("b"), 8, 2))).status, 0);
  EXPECT_EQ(metrics(out("a")).size(), 8u);
}

TEST_F(TrainRun, NamesWhatDoesNotFit) {
  const auto fails = [&](const std::string& text, const std::string& wanted) {
    const ProcessResult result = run_program(text);
    EXPECT_EQ(result.status, 1) << text;
    EXPECT_NE(result.err.find(wanted), std::string::npos) << result.err;
  };
  const std::string base = "train --config " + config_ + " --out " + out("x") + " --steps 2 ";
  fails(base + "--data builtin:nothing", "there is no built-in corpus");
  fails(base + "--data builtin:recall", "--set vocab_size=131");
  fails(base + "--data /nowhere/at/all", "/nowhere/at/all");
  fails(base + "--data builtin@-1", "weight");
  fails("train --config " + config_ + " --data builtin --out " + config_ + "/x --steps 2",
        "cannot make the folder");
  fails("generate --model " + out("x"), "is not a folder");
}

TEST_F(TrainRun, GeneratesTheSameTextTwice) {
  ASSERT_EQ(run_program(joined(arguments(out("a"), 10, 100))).status, 0);
  const std::string base = "generate --model " + out("a") + " --prompt Nina --tokens 20 --json - ";
  const auto once = run_program(base + "--seed 3"), again = run_program(base + "--seed 3"),
             other = run_program(base + "--seed 4");
  ASSERT_EQ(once.status, 0) << once.err;
  EXPECT_EQ(once.out, again.out);
  EXPECT_NE(once.out, other.out);
  EXPECT_EQ(nlohmann::json::parse(once.out)["prompt"], "Nina");
  const auto piped = run_program("generate --model " + out("a") +
                                 " --prompt - --tokens 20 --seed 3 --json - < " + config_);
  EXPECT_EQ(piped.status, 0) << piped.err;
  const auto info = run_program("model info " + out("a") + " --json -");
  ASSERT_EQ(info.status, 0) << info.err;
  EXPECT_EQ(nlohmann::json::parse(info.out)["step"], 10);
}

// Text to tokens to a model to text, with a vocabulary of the text's own.
TEST_F(TrainRun, TrainsOnEncodedText) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += fmt::format("The {} goat number {} ate {} apples.\n", i % 3 == 0 ? "red" : "old",
                        i % 17, i % 7);
  }
  write_text_atomic(dir_ / "text.txt", text);
  const auto ok = [&](const std::string& arguments) {
    const ProcessResult result = run_program(arguments);
    EXPECT_EQ(result.status, 0) << arguments << "\n" << result.err;
    return result.out;
  };
  ok("data tokenizer --vocab 300 --out " + out("t.model") + " " + out("text.txt"));
  ok("data encode --tokenizer " + out("t.model") + " --out " + out("tokens") + " " +
     out("text.txt"));
  ok("train --config " + config_ + " --set vocab_size=300 --data " + out("tokens") + " --valid " +
     out("tokens") + " --out " + out("run") + " --steps 12 --save-every 4 --lr 0.01");
  fs::remove(dir_ / "t.model");  // the model's folder holds its own copy
  const std::string generated =
      ok("generate --model " + out("run") + " --prompt 'The goat' --tokens 8 --json -");
  EXPECT_EQ(nlohmann::json::parse(generated)["prompt"], "The goat");
  const ProcessResult other =
      run_program("generate --model " + out("run") + " --tokenizer bytes --prompt x");
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("is not the tokenizer"), std::string::npos) << other.err;
}

TEST(Sampling, FollowsTheProbabilities) {
  const std::vector<double> logits = {0, std::log(2.0), std::log(4.0), std::log(1.0)};
  std::vector<int> counts(4);
  Random random(3);
  for (int i = 0; i < 8000; ++i) {
    ++counts[sample_token(logits, {}, random.uniform())];
  }
  EXPECT_NEAR(counts[2], 4000, 200);
  EXPECT_NEAR(counts[1], 2000, 200);
  EXPECT_NEAR(counts[0], 1000, 150);
  // Half of the mass is in token 2 alone; ties go to the lower number.
  EXPECT_EQ(sample_token(logits, {.top_p = 0.5}, 0.999), 2);
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0.7), 2);
  const std::vector<double> ties = {1, 3, 3, 3};
  EXPECT_EQ(sample_token(ties, {.temperature = 0}, 0.9), 1);
}

// Whatever gradients held: once they are marked as not written, the first batch overwrites them and
// the next one adds.
TEST(Gradients, FirstBatchOverwrites) {
  for (const TinyModel& tiny : tiny_models()) {
    const ModelConfig config = parse_config(tiny.json, "test");
    Model model(config, Device::cpu(), true);
    Parameters& parameters = model.parameters();
    parameters.initialize(1);
    Pool pool(Device::cpu());
    const auto gradients = [&] {
      std::vector<std::vector<double>> all;
      for (uint64_t batch = 1; batch <= 2; ++batch) {
        accumulate_gradients(model, pool, tiny_tokens(2 * 32, config.vocab_size, batch), 2, 31,
                             0.5);
      }
      for (size_t p = 0; p < parameters.specs().size(); ++p) {
        const View& grad = parameters.at(p).node()->grad;
        all.push_back(grad ? to_host(grad) : std::vector<double>());
      }
      return all;
    };
    const auto expected = gradients();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      if (const View& grad = parameters.at(p).node()->grad) {
        std::fill_n(grad.ptr<float>(), grad.size(), std::numeric_limits<float>::quiet_NaN());
      }
    }
    parameters.mark_gradients(false);
    const auto seen = gradients();
    for (size_t p = 0; p < expected.size(); ++p) {
      for (size_t i = 0; i < expected[p].size(); ++i) {
        ASSERT_NEAR(seen[p][i], expected[p][i], 1e-6 * (1 + std::abs(expected[p][i])))
            << tiny.name << ", " << parameters.specs()[p].name;
      }
    }
  }
}

// The plan is what the step then takes.
TEST(MemoryPlan, IsTrue) {
  for (const TinyModel& tiny : tiny_models()) {
    const ModelConfig config = parse_config(tiny.json, "test");
    const MemoryPlan plan = plan_memory(config, Device::cpu(), 3, 31);
    Model model(config, Device::cpu(), true);
    model.parameters().initialize(1);
    Pool pool(Device::cpu());
    const auto tokens = tiny_tokens(3 * 32, config.vocab_size, 1);
    accumulate_gradients(model, pool, tokens, 3, 31, 1.0);
    EXPECT_NEAR(static_cast<double>(plan.activations), static_cast<double>(pool.peak_bytes()),
                0.02 * static_cast<double>(pool.peak_bytes()) + 4096)
        << tiny.name;
    EXPECT_GT(plan.largest_rows, 3);
  }
}

}  // namespace
}  // namespace fwpkm
