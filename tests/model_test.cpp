// Whole models: gradients against differences, CPU against reference, streams cut into calls.
#include "model/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "base/parallel.h"
#include "model/checkpoint.h"
#include "model/cost.h"
#include "model_checks.h"
#include "ops/lm_loss/lm_loss.h"
#include "temp_dir.h"
#include "train/step.h"

namespace fwpkm {
namespace {

class Models : public testing::TestWithParam<TinyModel> {
 protected:
  ModelConfig config() const { return parse_config(GetParam().json, "test"); }
};

TEST_P(Models, GradientsMatchDifferences) {
  EXPECT_EQ(expect_true_gradients(config(), 1e-6), 0);
}

TEST_P(Models, CpuMatchesReference) {
  expect_cpu_matches_reference(config());
}

// However a stream is cut into calls, the outputs are the same.
TEST_P(Models, StreamsCanBeCut) {
  constexpr int64_t kBatch = 2, kSeq = 40;
  for (const Device device : {Device::reference(), Device::cpu()}) {
    Model model(config(), device, false);
    randomize(&model.parameters(), 8);
    Pool pool(device);
    pool.set_poison(true);
    fwpkm::Run run(pool);
    const auto tokens = tiny_tokens(kBatch * kSeq, model.config().vocab_size, 9);
    const std::vector<double> whole =
        to_host(model.hidden(run, run.from_host("tokens", {kBatch, kSeq}, tokens)).view());
    const int64_t width = model.config().hidden_size;
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{40}, {1, 1, 1, 37}, {7, 13, 20}, std::vector<int64_t>(40, 1)}) {
      State state = model.start(run, kBatch);
      ForwardOptions options;
      options.states = {&state};
      int64_t at = 0;
      double worst = 0;
      for (const int64_t length : cuts) {
        std::vector<int32_t> part;
        for (int64_t b = 0; b < kBatch; ++b) {
          part.insert(part.end(), tokens.begin() + b * kSeq + at,
                      tokens.begin() + b * kSeq + at + length);
        }
        const std::vector<double> h = to_host(
            model.hidden(run, run.from_host("tokens", {kBatch, length}, part), options).view());
        for (int64_t b = 0; b < kBatch; ++b) {
          for (int64_t i = 0; i < length * width; ++i) {
            const double difference =
                h[b * length * width + i] - whole[(b * kSeq + at) * width + i];
            worst = std::max(worst, std::isnan(difference) ? 1e9 : std::fabs(difference));
          }
        }
        at += length;
      }
      EXPECT_EQ(state.position, kSeq);
      EXPECT_LE(worst, device.real == DType::kF64 ? 1e-11 : 2e-3)
          << device_name(device.kind) << ", " << cuts.size() << " calls";
    }
  }
}

// With hidden borders a document in a packed row is read as if it stood alone.
TEST_P(Models, HiddenBordersSeparateDocuments) {
  constexpr int64_t kFirst = 37, kSecond = 45, kEnd = 0;
  for (const Device device : {Device::reference(), Device::cpu()}) {
    Model model(config(), device, false);
    randomize(&model.parameters(), 8);
    Pool pool(device);
    pool.set_poison(true);
    fwpkm::Run run(pool);
    auto tokens = tiny_tokens(kFirst + kSecond, model.config().vocab_size, 9);
    for (int32_t& token : tokens) {
      token = std::max(token, 1);
    }
    tokens[kFirst - 1] = kEnd;
    const std::vector<int32_t> alone(tokens.begin() + kFirst, tokens.end());
    ForwardOptions options;
    options.starts = run.from_host("starts", {1, kFirst + kSecond},
                                   document_starts(tokens, 1, kFirst + kSecond, kEnd));
    if (model.config().architecture == Architecture::kLact) {
      const Tensor whole = run.from_host("tokens", {1, kFirst + kSecond}, tokens);
      expect_error([&] { model.hidden(run, whole, options); }, "cannot be hidden in a LaCT model");
      continue;
    }
    const auto packed = to_host(
        model.hidden(run, run.from_host("tokens", {1, kFirst + kSecond}, tokens), options).view());
    const auto single =
        to_host(model.hidden(run, run.from_host("tokens", {1, kSecond}, alone)).view());
    double worst = 0;
    for (size_t i = 0; i < single.size(); ++i) {
      const double difference = packed[kFirst * model.config().hidden_size + i] - single[i];
      worst = std::max(worst, std::isnan(difference) ? 1e9 : std::fabs(difference));
    }
    EXPECT_LE(worst, device.real == DType::kF64 ? 1e-10 : 2e-3) << device_name(device.kind);
  }
}

// Changing a token never changes an earlier output.
TEST_P(Models, IsCausal) {
  constexpr int64_t kSeq = 24, kChanged = 13;
  Model model(config(), Device::reference(), false);
  randomize(&model.parameters(), 10);
  Pool pool(Device::reference());
  fwpkm::Run run(pool);
  auto tokens = tiny_tokens(kSeq, model.config().vocab_size, 11);
  const auto hidden = [&] {
    return to_host(model.hidden(run, run.from_host("tokens", {1, kSeq}, tokens)).view());
  };
  const auto before = hidden();
  tokens[kChanged] = (tokens[kChanged] + 1) % static_cast<int32_t>(model.config().vocab_size);
  const auto after = hidden();
  const auto split = before.begin() + kChanged * model.config().hidden_size;
  EXPECT_TRUE(std::equal(before.begin(), split, after.begin()));
  EXPECT_FALSE(std::equal(split, before.end(), after.begin() + (split - before.begin())));
}

TEST_P(Models, StepsRepeatBitForBit) {
  constexpr int64_t kBatch = 2, kSeq = 33;
  std::vector<std::vector<double>> weights;
  for (int repeat = 0; repeat < 2; ++repeat) {
    Model model(config(), Device::cpu(), true);
    model.parameters().initialize(1);
    AdamW optimizer(&model.parameters());
    Pool pool(Device::cpu());
    for (uint64_t step = 0; step < 3; ++step) {
      const auto tokens = tiny_tokens(kBatch * (kSeq + 1), model.config().vocab_size, step);
      train_step(model, pool, optimizer, tokens, kBatch, kSeq, {}, 1.0);
    }
    weights.emplace_back();
    for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
      const auto values = to_host(model.parameters().at(p).view());
      weights.back().insert(weights.back().end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_P(Models, TrainsOnBothDevices) {
  constexpr int64_t kBatch = 2, kSeq = 12;
  const auto tokens = tiny_tokens(kBatch * (kSeq + 1), config().vocab_size, 2);
  AdamWSettings settings;
  settings.lr = 0.01;
  double last[2];
  const Device devices[] = {Device::reference(), Device::cpu()};
  for (int d = 0; d < 2; ++d) {
    Model model(config(), devices[d], true);
    model.parameters().initialize(3);
    AdamW optimizer(&model.parameters());
    Pool pool(devices[d]);
    const double first =
        train_step(model, pool, optimizer, tokens, kBatch, kSeq, settings, 1.0).loss;
    for (int step = 0; step < 8; ++step) {
      last[d] = train_step(model, pool, optimizer, tokens, kBatch, kSeq, settings, 1.0).loss;
    }
    EXPECT_LT(last[d], 0.9 * first);
  }
  EXPECT_NEAR(last[0], last[1], 0.01 * last[0]);
}

TEST_P(Models, SavesAndLoads) {
  const TempDir dir;
  Model model(config(), Device::cpu(), false);
  randomize(&model.parameters(), 12);
  save_model(model, dir.path() / "model");
  const auto loaded = load_model(dir.path() / "model", Device::cpu(), false);
  EXPECT_EQ(loaded->config(), model.config());
  for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
    EXPECT_EQ(to_host(loaded->parameters().at(p).view()), to_host(model.parameters().at(p).view()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Models, testing::ValuesIn(tiny_models()), [](const auto& info) {
  std::string name;
  for (const char c : info.param.name) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
});

// Our kernels do not depend on the number of threads. oneDNN's large products may, so this model
// is small enough for them to run on one.
TEST(ModelThreads, CasesDoNotDependOnThreads) {
  const ModelConfig config = parse_config(tiny_models()[3].json, "test");
  std::vector<std::vector<double>> results;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Model model(config, Device::cpu(), true);
    randomize(&model.parameters(), 1);
    Pool pool(Device::cpu());
    const auto tokens = tiny_tokens(2 * 71, config.vocab_size, 2);
    accumulate_gradients(model, pool, tokens, 2, 70, 1.0);
    results.emplace_back();
    for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
      const auto values = to_host(model.parameters().at(p).node()->grad);
      results.back().insert(results.back().end(), values.begin(), values.end());
    }
  }
  set_threads(0);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// The table of tensors and the cost formulas count the same parameters.
TEST(ParameterTable, AgreesWithCost) {
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FWPKM_CONFIGS "/paper")) {
    const ModelConfig config = load_config(entry.path());
    int64_t total = 0;
    for (const ParameterSpec& spec : parameter_specs(config)) {
      total += spec.shape.size();
    }
    EXPECT_EQ(total, count_cost(config, 8, 4096).total_params) << config.name;
    ++configs;
  }
  EXPECT_EQ(configs, 29);
}

// A checkpoint in the authors' format: loaded, saved and still the same files.
TEST(OfficialCheckpoint, IsSavedAsItWas) {
  const TempDir dir;
  const SafeTensors golden = SafeTensors::open(FWPKM_TEST_DATA "/golden/gdn_fa_pkm.safetensors");
  const auto theirs = dir.path() / "theirs", ours = dir.path() / "ours";
  std::filesystem::create_directories(theirs);
  write_text_atomic(theirs / "config.json", golden.metadata().at("config"));
  SafeTensorsWriter writer(theirs / "model.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& info : golden.tensors()) {
    if (info.name.starts_with("weight.")) {
      names.push_back(info.name.substr(7));
      writer.declare(names.back(), info.dtype, info.shape);
    }
  }
  // Some exports hold the tied output weights a second time.
  writer.declare("lm_head.weight", DType::kF64,
                 golden.info("weight.model.embed_tokens.weight").shape);
  for (const std::string& name : names) {
    writer.append_raw(name, golden.data("weight." + name));
  }
  writer.append_raw("lm_head.weight", golden.data("weight.model.embed_tokens.weight"));
  writer.commit();

  const auto model = load_model(theirs, Device::reference(), false);
  save_model(*model, ours, DType::kF64);
  EXPECT_EQ(nlohmann::json::parse(read_text(ours / "config.json")),
            nlohmann::json::parse(read_text(theirs / "config.json")));
  const SafeTensors saved = SafeTensors::open(ours / "model.safetensors");
  EXPECT_EQ(saved.tensors().size(), names.size());
  for (const std::string& name : names) {
    const auto a = saved.data(name), b = golden.data("weight." + name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
    EXPECT_EQ(saved.info(name).shape, golden.info("weight." + name).shape) << name;
  }
}

TEST(ModelErrors, AreNamed) {
  const ModelConfig config = parse_config(tiny_models()[0].json, "test");
  const std::vector<int32_t> tokens = {1, 2, 23};
  expect_error([&] { require_tokens(tokens, config, false); }, "token 23 (number 2");

  const TempDir dir;
  Model model(config, Device::cpu(), false);
  model.parameters().initialize(1);
  const auto folder = dir.path() / "m";
  save_model(model, folder);
  const std::string vocab[] = {"vocab_size=24"};
  expect_error([&] { load_model(folder, Device::cpu(), false, vocab); }, "vocab_size=24");
  const std::string hidden[] = {"mlp.hidden=21"};
  expect_error([&] { load_model(folder, Device::cpu(), false, hidden); },
               "but the config asks for [21, 24]");
  const std::string more[] = {"layers=5"};
  expect_error([&] { load_model(folder, Device::cpu(), false, more); }, "model.layers.4");
  const std::string fewer[] = {"layers=3"};
  expect_error([&] { load_model(folder, Device::cpu(), false, fewer); }, "belongs to no layer");
  expect_error([&] { load_model(dir.path() / "none", Device::cpu(), false); }, "is not a folder");

  SafeTensorsWriter integers(folder / "model.safetensors");
  const SafeTensors old = SafeTensors::open(folder / "model.safetensors");
  for (const TensorInfo& info : old.tensors()) {
    integers.declare(info.name, DType::kI32, info.shape);
  }
  for (const TensorInfo& info : old.tensors()) {
    integers.append(info.name, std::vector<int64_t>(info.count()));
  }
  integers.commit();
  expect_error([&] { load_model(folder, Device::cpu(), false); }, "holds I32");
}

}  // namespace
}  // namespace fwpkm
