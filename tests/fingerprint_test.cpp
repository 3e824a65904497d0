#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "memory_models.h"
#include "model/checkpoint.h"
#include "temp_dir.h"

namespace fwpkm {
namespace {

ModelConfig config_with(const nlohmann::json& changes = nlohmann::json::object()) {
  return parse_config(memory_model(changes), "test");
}

TEST(Fingerprint, AgreesWhereWeightsAgree) {
  const TempDir dir;
  const ModelConfig config = config_with();
  Model model(config, Device::cpu(), false);
  randomize(&model.parameters(), 1);
  save_model(model, dir / "f32");
  save_model(model, dir / "bf16", DType::kBF16);
  const auto mapped = load_model(dir / "f32", Device::cpu(), false),
             own = load_model(dir / "f32", Device::cpu(), false, {}, Weights::kOwn),
             plain = load_model(dir / "f32", Device::plain(), false);
  EXPECT_EQ(mapped->fingerprint(), model.fingerprint());
  EXPECT_EQ(own->fingerprint(), model.fingerprint());
  EXPECT_EQ(plain->fingerprint(), model.fingerprint());
  EXPECT_EQ(model.fingerprint().tensors.size(), model.parameters().specs().size());

  // Rounded weights are others; saved again in F32, they are the same as those in BF16.
  const auto rounded = load_model(dir / "bf16", Device::cpu(), false);
  EXPECT_NE(rounded->fingerprint(), model.fingerprint());
  save_model(*rounded, dir / "rounded");
  EXPECT_EQ(load_model(dir / "rounded", Device::cpu(), false)->fingerprint(),
            rounded->fingerprint());
  // In double the bytes are others.
  EXPECT_NE(load_model(dir / "f32", Device::reference(), false)->fingerprint(),
            model.fingerprint());
}

// One bit of one number, in every tensor in turn.
TEST(Fingerprint, SeesEveryTensorAndNamesIt) {
  const ModelConfig config = config_with();
  Model model(config, Device::cpu(), true);
  randomize(&model.parameters(), 1);
  const auto& specs = model.parameters().specs();
  const ModelFingerprint before = model.fingerprint();
  EXPECT_EQ(describe_difference(before, before, specs), "");
  std::set<std::string> hex = {before.hex()};
  for (size_t p = 0; p < specs.size(); ++p) {
    float* last = model.parameters().at(p).view().ptr<float>() + specs[p].shape.size() - 1;
    const float old = *last;
    *last = std::nextafter(old, 100.0f);
    const ModelFingerprint after = model.fingerprint();  // with gradients: computed anew
    EXPECT_EQ(describe_difference(before, after, specs), "tensor " + specs[p].name + " differs");
    EXPECT_TRUE(hex.insert(after.hex()).second);
    *last = old;
  }
  EXPECT_EQ(model.fingerprint(), before);
  EXPECT_EQ(before.hex().size(), 32u);
  randomize(&model.parameters(), 2);
  EXPECT_EQ(describe_difference(before, model.fingerprint(), specs),
            fmt::format("tensor {} differs, and {} more", specs[0].name, specs.size() - 1));
  ModelFingerprint shorter = before;
  shorter.tensors.pop_back();
  EXPECT_EQ(describe_difference(before, shorter, specs),
            fmt::format("one has {} tensors, the other {}", specs.size(), specs.size() - 1));
  expect_error([&] { describe_difference(before, before, std::span(specs).first(3)); }, "3 names");
}

TEST(Fingerprint, SeesWhatAConfigMeans) {
  const ModelConfig config = config_with();
  const uint64_t before = config_fingerprint(config);
  EXPECT_EQ(config_fingerprint(
                config_with({{"name", "other"}, {"train", {{"steps", 3}, {"max_lr", 0.5}}}})),
            before);
  EXPECT_EQ(config_fingerprint(parse_config(config_to_json(config), "test")), before);
  std::set<uint64_t> seen = {before};
  for (const nlohmann::json& change :
       std::vector<nlohmann::json>{{{"norm_eps", 2e-5}},
                                   {{"max_seq", 33}},
                                   {{"layout", "gdn+swa"}},
                                   {{"mixers", {"gdn", "gdn", "gdn", "fa"}}},
                                   {{"value_step", 0.5}},
                                   {{"attention", {{"window", 6}}}},
                                   {{"fwpkm", {{"topk", 2}}}},
                                   {{"fwpkm", {{"chunk", 5}}}},
                                   {{"fwpkm", {{"layers", {1, 3}}}}},
                                   {{"fwpkm", {{"value_norm", false}}}}}) {
    EXPECT_TRUE(seen.insert(config_fingerprint(config_with(change))).second) << change;
  }
  ModelFingerprint a, b;
  a.config = before;
  b.config = before + 1;
  EXPECT_EQ(describe_difference(a, b, {}), "the configs differ in more than name and train.*");

  // The authors' format and ours say the same.
  const SafeTensors golden = SafeTensors::open(FWPKM_TEST_DATA "/golden/gdn_fwpkm.safetensors");
  const ModelConfig official =
      parse_config(nlohmann::json::parse(golden.metadata().at("config")), "test");
  ASSERT_TRUE(official.official);
  EXPECT_EQ(config_fingerprint(parse_config(config_to_json(official), "test")),
            config_fingerprint(official));
}

// Without gradients it is computed once, whoever asks.
TEST(Fingerprint, IsComputedOnceForManyThreads) {
  Model model(config_with(), Device::cpu(), false);
  randomize(&model.parameters(), 1);
  std::vector<ModelFingerprint> seen(8);
  std::vector<std::thread> threads;
  for (ModelFingerprint& to : seen) {
    threads.emplace_back([&] { to = model.fingerprint(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const ModelFingerprint expected = compute_fingerprint(model.config(), model.parameters());
  for (const ModelFingerprint& one : seen) {
    EXPECT_EQ(one, expected);
  }
  model.parameters().initialize(3);
  EXPECT_EQ(model.fingerprint(), expected);
  EXPECT_NE(compute_fingerprint(model.config(), model.parameters()), expected);
}

}  // namespace
}  // namespace fwpkm
