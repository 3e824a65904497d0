#include "check/golden.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "memory_models.h"
#include "model/checkpoint.h"
#include "temp_dir.h"
#include "tensor/safetensors.h"

namespace fwpkm {
namespace {

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, MatchesTheAuthorsNumbers) {
  const auto file = std::filesystem::path(FWPKM_TEST_DATA "/golden") / GetParam();
  const bool fast = std::string(GetParam()).find("fw") != std::string::npos;
  const GoldenResult exact = run_golden(file, Device::reference()),
                     plain = run_golden(file, Device::plain()),
                     cpu = run_golden(file, Device::cpu());
  EXPECT_TRUE(exact.ok);
  EXPECT_EQ(exact.groups.size(), fast ? 5u : 4u);  // with fast weights, also those after the run
  for (size_t i = 0; i < exact.groups.size(); ++i) {
    EXPECT_LE(exact.groups[i].error, 1e-9) << exact.groups[i].worst;
    // These models amplify rounding up to the limit, and every kind of CPU rounds in its own way: a
    // kernel may also be as far off as plain float code on the same machine, give or take.
    EXPECT_LE(cpu.groups[i].error, std::max(cpu.limit, 2 * plain.groups[i].error))
        << cpu.groups[i].worst;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, Golden,
    testing::Values("gdn_fa_pkm.safetensors", "swa_pkm.safetensors", "gdn_fwpkm.safetensors",
                    "swa_pkm_fwpkm.safetensors", "fa_fwpkm_lookahead0.safetensors",
                    "gdn_fwpkm_no_addr.safetensors", "gdn_fwpkm_no_gate.safetensors",
                    "gdn_fwmlp.safetensors"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find('.'));
    });

// A dump of ours is such a file: the reference's numbers judge the CPU's run of them.
TEST(Dump, CanBeRunAgain) {
  const TempDir dir;
  auto models = tiny_models();
  for (const TinyModel& tiny : memory_models()) {
    models.push_back(tiny);
  }
  for (const TinyModel& tiny : models) {
    Model model(parse_config(tiny.json, "test"), Device::reference(), true);
    model.parameters().initialize(3);
    const auto tokens = tiny_tokens(2 * 20, model.config().vocab_size, 4);
    const auto file = dir.path() / "dump.safetensors";
    write_dump(model, tokens, 2, 19, file, {.gradients = true, .weights = true});
    const bool fast = tiny.json.contains("fwpkm") || tiny.json.contains("fwmlp");
    // Writes amplify rounding; the plain code in float tells by how much.
    const GoldenResult exact = run_golden(file, Device::reference()),
                       plain = run_golden(file, Device::plain()),
                       cpu = run_golden(file, Device::cpu());
    EXPECT_TRUE(exact.ok) << tiny.name;
    EXPECT_EQ(exact.groups.size(), fast ? 5u : 4u) << tiny.name;
    for (size_t i = 0; i < exact.groups.size(); ++i) {
      EXPECT_LE(cpu.groups[i].error, std::max(cpu.limit, 4 * plain.groups[i].error))
          << tiny.name << ", " << cpu.groups[i].worst;
    }
  }
}

// One number changed must be found: the comparison can fail.
TEST(Dump, FindsAWrongNumber) {
  const TempDir dir;
  Model model(parse_config(tiny_models()[1].json, "test"), Device::reference(), true);
  model.parameters().initialize(3);
  const auto tokens = tiny_tokens(20, model.config().vocab_size, 4);
  const auto file = dir.path() / "dump.safetensors";
  write_dump(model, tokens, 1, 19, file, {.gradients = true, .weights = true});
  const auto changed = dir.path() / "changed.safetensors";
  for (const std::string victim : {"loss", "grad.model.layers.1.pkm.keys", "trace.2.hidden"}) {
    const SafeTensors from = SafeTensors::open(file);
    SafeTensorsWriter to(changed);
    to.set_metadata("config", from.metadata().at("config"));
    for (const TensorInfo& info : from.tensors()) {
      to.declare(info.name, info.dtype, info.shape);
    }
    for (const TensorInfo& info : from.tensors()) {
      if (info.name != victim) {
        to.append_raw(info.name, from.data(info.name));
        continue;
      }
      std::vector<double> values(info.count());
      from.read(info.name, values.data(), values.size());
      values[values.size() / 2] += 1e-3;
      to.append(info.name, std::span<const double>(values));
    }
    to.commit();
    const GoldenResult result = run_golden(changed, Device::reference());
    EXPECT_FALSE(result.ok) << victim;
  }
}

// A model with a memory whose file says what its tokens took: others can be made to take the same.
TEST(Dump, CanBeReplayed) {
  const TempDir dir;
  const auto models = memory_models();
  const auto tiny = std::find_if(models.begin(), models.end(),
                                 [](const TinyModel& m) { return m.json.contains("fwpkm"); });
  ASSERT_NE(tiny, models.end());
  Model model(parse_config(tiny->json, "test"), Device::reference(), true);
  model.parameters().initialize(3);
  const auto tokens = tiny_tokens(2 * 20, model.config().vocab_size, 4);
  const auto file = dir.path() / "dump.safetensors";
  write_dump(model, tokens, 2, 19, file, {.gradients = true, .weights = true});
  const GoldenResult same =
      run_golden(file, Device::reference(), {.overrides = {}, .replay = true});
  EXPECT_TRUE(same.ok);
  EXPECT_EQ(same.equal_slots, same.slots);
  EXPECT_EQ(same.slots, 2 * 19 * std::ssize(model.config().fwpkm.layers) *
                            model.config().fwpkm.heads * model.config().fwpkm.topk);
  EXPECT_EQ(run_golden(file, Device::reference()).slots, 0);

  // Another selection in the file: it is taken, and the numbers are no longer the file's.
  const SafeTensors from = SafeTensors::open(file);
  const std::string name = fmt::format("selection.{}.ids", model.config().fwpkm.layers[0]);
  const auto write = [&](const char* to_file, double number) {
    SafeTensorsWriter to(dir.path() / to_file);
    to.set_metadata("config", from.metadata().at("config"));
    for (const TensorInfo& info : from.tensors()) {
      to.declare(info.name, info.dtype, info.shape);
    }
    for (const TensorInfo& info : from.tensors()) {
      if (info.name != name) {
        to.append_raw(info.name, from.data(info.name));
        continue;
      }
      std::vector<double> values(info.count());
      from.read(info.name, values.data(), values.size());
      values[0] = number;
      to.append(info.name, std::span<const double>(values));
    }
    to.commit();
    return dir.path() / to_file;
  };
  std::vector<double> ids(from.info(name).count());
  from.read(name, ids.data(), ids.size());
  const auto taken = ids.begin() + model.config().fwpkm.topk;
  double other = 0;
  while (std::find(ids.begin(), taken, other) != taken) {
    ++other;
  }
  EXPECT_FALSE(run_golden(write("other.safetensors", other), Device::reference(),
                          {.overrides = {}, .replay = true})
                   .ok);
  const auto outside = write("outside.safetensors", 1e6);
  expect_error([&] { run_golden(outside, Device::reference(), {.overrides = {}, .replay = true}); },
               "which is not a number below");

  Model plain(parse_config(tiny_models()[0].json, "test"), Device::reference(), false);
  plain.parameters().initialize(3);
  EXPECT_FALSE(plain.config().has_any_fwpkm());
  write_dump(plain, tokens, 2, 19, file, {.gradients = false, .weights = true});
  EXPECT_TRUE(run_golden(file, Device::reference(), {.overrides = {}, .replay = true}).ok);
}

TEST(Tokens, AreReadAndChecked) {
  const TempDir dir;
  const auto file = dir.path() / "tokens.txt";
  const auto write = [&](const std::string& text) { write_text_atomic(file, text); };
  write("1 2 3\n4 5 6\n\n");
  const TokenRows rows = read_token_rows(file);
  EXPECT_EQ(rows.rows, 2);
  EXPECT_EQ(rows.length, 3);
  EXPECT_EQ(rows.tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  write("1 2 3\n4 5\n");
  expect_error([&] { read_token_rows(file); }, "line 2 has 2 tokens");
  write("1 2 x3\n");
  expect_error([&] { read_token_rows(file); }, "'x3' is not a token number");
  write("");
  expect_error([&] { read_token_rows(file); }, "at least one row");
  write("99999999999 1\n");
  expect_error([&] { read_token_rows(file); }, "is not a token number");
}

}  // namespace
}  // namespace fwpkm
