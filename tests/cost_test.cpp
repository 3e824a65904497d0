#include "model/cost.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/error.h"
#include "model/config.h"

namespace fwpkm {
namespace {

struct Row {
  const char* file;
  const char* name;
  double total, active, flops;  // millions, millions, units of 10^12; as printed in the paper
};

// The cost tables of the paper, at 8 sequences of 4096 tokens.
const Row kRows[] = {
    {"gdn", "gdn", 112.11, 112.11, 22.04},
    {"gdn_pkm-2-6-10", "gdn|pkm@2,6,10", 509.08, 106.62, 20.92},
    {"gdn_fwpkm-2-6-10", "gdn|fwpkm@2,6,10", 519.12, 116.48, 22.74},
    {"gdn_pkm-6_fwpkm-2-10", "gdn|pkm@6+fwpkm@2,10", 515.77, 113.19, 22.14},
    {"gdn-swa", "gdn+swa", 112.65, 112.65, 22.15},
    {"gdn-swa_pkm-2-6-10", "gdn+swa|pkm@2,6,10", 509.61, 107.15, 21.03},
    {"gdn-swa_fwpkm-2-6-10", "gdn+swa|fwpkm@2,6,10", 519.66, 117.02, 22.85},
    {"gdn-swa_pkm-6_fwpkm-2-10", "gdn+swa|pkm@6+fwpkm@2,10", 516.31, 113.73, 22.24},
    {"gdn-fa", "gdn+fa", 112.65, 112.65, 22.16},
    {"gdn-fa_pkm-2-6-10", "gdn+fa|pkm@2,6,10", 509.61, 107.15, 21.04},
    {"gdn-fa_fwpkm-2-6-10", "gdn+fa|fwpkm@2,6,10", 519.66, 117.02, 22.86},
    {"gdn-fa_pkm-6_fwpkm-2-10", "gdn+fa|pkm@6+fwpkm@2,10", 516.31, 113.73, 22.25},
    {"fa", "fa", 114.25, 114.25, 22.51},
    {"fa_pkm-2-6-10", "fa|pkm@2,6,10", 511.22, 108.76, 21.39},
    {"fa_fwpkm-2-6-10", "fa|fwpkm@2,6,10", 521.26, 118.62, 23.21},
    {"fa_pkm-6_fwpkm-2-10", "fa|pkm@6+fwpkm@2,10", 517.91, 115.33, 22.60},
    {"gdn_fwmlp-2-6-10", "gdn|fwmlp@2,6,10", 118.05, 118.05, 23.21},
    {"gdn-swa_fwmlp-2-6-10", "gdn+swa|fwmlp@2,6,10", 118.58, 118.58, 23.31},
    {"gdn-fa_fwmlp-2-6-10", "gdn+fa|fwmlp@2,6,10", 118.58, 118.58, 23.32},
    {"fa_fwmlp-2-6-10", "fa|fwmlp@2,6,10", 120.19, 120.19, 23.67},
    {"lact", "lact", 112.70, 112.70, 24.44},
    {"ablation_default", "ablation:default", 516.31, 113.73, 22.24},
    {"ablation_1x32", "ablation:1x32", 516.31, 113.76, 22.24},
    {"ablation_4x8", "ablation:4x8", 520.24, 117.69, 22.71},
    {"ablation_no-value-norm", "ablation:no-value-norm", 516.31, 113.73, 22.24},
    {"ablation_no-addr", "ablation:no-addr", 516.31, 113.73, 22.24},
    {"ablation_no-gating", "ablation:no-gating", 516.30, 113.72, 22.24},
    {"ablation_no-loss-weight", "ablation:no-loss-weight", 516.31, 113.73, 22.24},
    {"ablation_no-lookahead", "ablation:no-lookahead", 516.31, 113.73, 22.24},
};

std::filesystem::path paper(const std::string& file) {
  return std::filesystem::path(FWPKM_CONFIGS) / "paper" / (file + ".json");
}

class PaperRow : public testing::TestWithParam<Row> {};

TEST_P(PaperRow, MatchesTheTable) {
  const Row& row = GetParam();
  const ModelConfig config = load_config(paper(row.file));
  EXPECT_EQ(config.name, row.name);
  const Cost cost = count_cost(config, 8, 4096);
  EXPECT_NEAR(static_cast<double>(cost.total_params) / 1e6, row.total, 0.01);
  EXPECT_NEAR(static_cast<double>(cost.active_params) / 1e6, row.active, 0.01);
  if (config.architecture != Architecture::kLact) {  // its figure is of another accounting
    const double tolerance = config.has_mixer(Mixer::kFa) ? 0.06 : 0.01;
    EXPECT_NEAR(static_cast<double>(cost.flops) / 1e12, row.flops, tolerance);
    if (config.name.find(':') == std::string::npos) {
      EXPECT_EQ(config.name, row_name(config));
    }
  }
  EXPECT_EQ(cost.total_params, cost.params.total());
  EXPECT_EQ(cost.active_params, cost.active.total());
  EXPECT_EQ(cost.true_flops, cost.parts.total());
}

INSTANTIATE_TEST_SUITE_P(Cost, PaperRow, testing::ValuesIn(kRows), [](const auto& row) {
  std::string name = row.param.file;
  for (char& letter : name) {
    letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  }
  return name;
});

TEST(Cost, EveryPaperConfigIsInTheTable) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(paper("gdn").parent_path())) {
    files += entry.path().extension() == ".json";
  }
  EXPECT_EQ(files, std::size(kRows));
}

TEST(Cost, FastMemoriesOfThePaperAreShared) {
  for (const Row& row : kRows) {
    const ModelConfig config = load_config(paper(row.file));
    if (!config.fwpkm.layers.empty()) {
      EXPECT_EQ(config.memory, MemoryMode::kShared) << row.file;
    }
  }
}

// Small enough to count by hand.
ModelConfig tiny() {
  ModelConfig c;
  c.name = "tiny";
  c.vocab_size = 10;
  c.hidden_size = 4;
  c.layers = 1;
  c.layout = Layout::kFa;
  c.attention.heads = 2;
  c.attention.kv_heads = 1;
  c.attention.head_dim = 8;
  c.mlp.hidden = 6;
  return c;
}

TEST(Cost, TinyAttentionByHand) {
  const Cost cost = count_cost(tiny(), 2, 5);
  const int64_t matrices = 10 * 4 + 4 * (2 * 16 + 16 + 2 * 8) + 3 * 4 * 6;
  EXPECT_EQ(cost.total_params, matrices + 2 * 8 + 3 * 4);
  EXPECT_EQ(cost.flops, 6 * 10 * cost.total_params);
  EXPECT_EQ(cost.parts.weights, 6 * 10 * matrices);
  // 15 causal pairs, 2 products of 2 * 16 operations, forward and twice that backward, 2 rows
  EXPECT_EQ(cost.parts.attention, 15 * 2 * 2 * 16 * 3 * 2);
}

TEST(Cost, WindowLimitsPairs) {
  ModelConfig c = tiny();
  c.mixers = {Mixer::kSwa};
  c.attention.window = 2;
  EXPECT_EQ(count_cost(c, 1, 5).parts.attention, (1 + 2 * 4) * 2 * 2 * 16 * 3);
  c.attention.window = 100;
  EXPECT_EQ(count_cost(c, 1, 5).parts.attention, 15 * 2 * 2 * 16 * 3);
}

TEST(Cost, WritesSkipTheLastTokensOfAChunk) {
  ModelConfig c = tiny();
  c.fwpkm = {.layers = {0}, .heads = 1, .topk = 2, .n_subkeys = 3, .key_dim = 4, .value_dim = 5};
  c.fwpkm.chunk = 4;
  c.fwpkm.lookahead = 1;
  const int64_t read = 10 * (2 * 3 * 4 + 4 + 6 * 2 * 5 + 16 * 2 * 4);
  EXPECT_EQ(count_cost(c, 1, 10).parts.fwpkm, read + (3 + 3 + 1) * 6 * 2 * 5);
  c.fwpkm.lookahead = 4;
  EXPECT_EQ(count_cost(c, 1, 10).parts.fwpkm, read);
}

TEST(Cost, ActiveRowsNeverExceedTheTable) {
  ModelConfig c = tiny();
  c.fwpkm = {.layers = {0}, .heads = 8, .topk = 2, .n_subkeys = 2, .key_dim = 4, .value_dim = 5};
  EXPECT_EQ(count_cost(c, 1, 1).active.fwpkm_values, 4 * 5);
}

TEST(Cost, TrueWorkIsMoreThanThePapersWhereScoresAreMade) {
  const ModelConfig config = load_config(paper("gdn-fa_fwpkm-2-6-10"));
  const Cost cost = count_cost(config, 8, 4096);
  EXPECT_GT(cost.true_flops, cost.flops);
  EXPECT_GT(cost.parts.fwpkm, 0);
  EXPECT_GT(cost.parts.gdn, 0);
}

TEST(Cost, RefusesWhatDoesNotFit) {
  EXPECT_THROW(count_cost(tiny(), 0, 1), Error);
  EXPECT_THROW(count_cost(tiny(), 1, -1), Error);
  EXPECT_THROW(count_cost(tiny(), 1 << 24, int64_t{1} << 32), Error);
  EXPECT_THROW(count_cost(tiny(), std::numeric_limits<int64_t>::max(), 1), Error);
}

}  // namespace
}  // namespace fwpkm
