// Devices by name, numbers of 16 bits, and what models keep for GPUs.
#include <gtest/gtest.h>

#include "model/parameters.h"
#include "model/rope_tables.h"
#include "process.h"
#include "tensor/cuda.h"
#include "tensor/tensor.h"

namespace fwpkm {
namespace {

TEST(Devices, AreFoundByName) {
  EXPECT_EQ(Device::parse("cpu").kind, DeviceKind::kCpu);
  EXPECT_EQ(Device::parse("reference").real, DType::kF64);
  EXPECT_EQ(Device::parse("plain").kind, DeviceKind::kReference);
  try {
    Device::parse("gpu");
    FAIL() << "gpu was taken";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("cuda:bf16"), std::string::npos) << e.what();
  }
}

TEST(Devices, AGpuThatIsNotThereIsSaidSo) {
  if (!cuda::built()) {
    EXPECT_EQ(cuda::devices(), 0);
    EXPECT_THROW(Device::parse("cuda"), std::exception);
    EXPECT_THROW(Device::parse("cuda:f32"), std::exception);
  } else if (cuda::devices() == 0) {
    EXPECT_EQ(Device::parse("cuda").kind, DeviceKind::kCpu);
  } else {
    EXPECT_EQ(Device::parse("cuda").real, DType::kBF16);
    EXPECT_EQ(Device::parse("cuda", DType::kF32).real, DType::kF32);
    EXPECT_EQ(Device::parse("cuda:bf16", DType::kF32).real, DType::kBF16);
  }
}

TEST(Devices, WideNumbersAreFloatWhereActivationsAreNot) {
  EXPECT_EQ(Device::cuda(DType::kBF16).wide(), DType::kF32);
  EXPECT_EQ(Device::cuda(DType::kF32).wide(), DType::kF32);
  EXPECT_EQ(Device::reference().wide(), DType::kF64);
}

TEST(Bf16Tensors, AreRoundedToNearestEvenAndBack) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  // 1 + 2^-8 lies between two neighbours of which 1 is even; 1 + 3 * 2^-8 goes up.
  const std::vector<double> values = {1, 1 + 0x1.0p-8, 1 + 3 * 0x1.0p-8, -3.0e38, 0, 1e-40};
  const Tensor t = run.from_host("x", {2, 3}, values, DType::kBF16);
  EXPECT_EQ(t.view().bytes(), 12);
  const std::vector<double> back = to_host(t.view());
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[1], 1);
  EXPECT_EQ(back[2], 1 + 0x1.0p-6);
  EXPECT_NEAR(back[3] / -3.0e38, 1, 0x1.0p-8);
  EXPECT_EQ(back[4], 0);
  EXPECT_NEAR(back[5], 1e-40, 1e-41);
  // A column is a strided view.
  EXPECT_EQ(to_host(t.view().slice(1, 2, 3)), (std::vector<double>{back[2], back[5]}));
  fill_zero(t.view().slice(1, 0, 1));
  EXPECT_EQ(to_host(t.view())[0], 0);
  EXPECT_EQ(to_host(t.view())[1], 1);
}

TEST(IntsToHost, AreCopied) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const std::vector<int32_t> values = {7, -1, 2};
  EXPECT_EQ(ints_to_host(run.from_host("ids", {3}, values).view()), values);
}

TEST(Parameters, WhatProductsMultiplyMayHave16Bits) {
  const ModelConfig config = load_config(FWPKM_CONFIGS "/paper/gdn_pkm-6_fwpkm-2-10.json");
  int64_t halves = 0, others = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    const bool vector = spec.shape.rank == 1 && !spec.name.ends_with(".bias");
    if (spec.fast || vector || spec.shape.rank == 3) {
      EXPECT_FALSE(spec.half) << spec.name;
      ++others;
    } else if (!spec.name.ends_with("dt_bias")) {
      EXPECT_TRUE(spec.half) << spec.name;
      ++halves;
    }
  }
  EXPECT_GT(halves, 60);
  EXPECT_GT(others, 60);
}

TEST(RopeTables, AreThePositionsAskedFor) {
  Pool pool(Device::reference());
  fwpkm::Run run(pool);
  RopeSettings settings;
  settings.rotary_fraction = 0.25;
  settings.yarn_factor = 2;
  settings.yarn_original_length = 64;
  RopeTables tables;
  // In the table, past what it holds so far, before it grew, and where nothing is kept.
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 7},
                                     {5, 1},
                                     {90, 40},
                                     {3, 2},
                                     {65530, 12},
                                     {int64_t{1} << 20, 3}}) {
    std::vector<double> cos, sin;
    rope_table(settings, first, count, &cos, &sin);
    const auto [c, s] = tables.at(run, settings, first, count);
    EXPECT_EQ(to_host(c.view()), cos) << first;
    EXPECT_EQ(to_host(s.view()), sin) << first;
    EXPECT_EQ(c.shape(), (Shape{count, 8}));
  }
}

TEST(BenchStream, TellsTokensPerSecond) {
  const auto json =
      ok("bench stream --config " FWPKM_CONFIGS "/tiny.json --tokens 64 --batch 2 --pieces 2");
  EXPECT_EQ(json.at("name"), "tiny");
  EXPECT_GT(json.at("tokens_per_second").get<double>(), 0);
  EXPECT_NEAR(json.at("tokens_per_second").get<double>(),
              128 / json.at("piece_ms").get<double>() * 1e3, 1);
}

}  // namespace
}  // namespace fwpkm
