// Models with fast-weight memories over whole sequences: gradients, causality, keeping what was
// written.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "check/compare.h"
#include "memory_models.h"
#include "model/checkpoint.h"
#include "model_checks.h"
#include "ops/lm_loss/lm_loss.h"
#include "temp_dir.h"
#include "train/step.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

class MemoryModels : public testing::TestWithParam<TinyModel> {
 protected:
  ModelConfig config() const { return parse_config(GetParam().json, "test"); }
};

// Final hidden states of a batch of whole sequences.
Values hidden_of(const Model& model, const std::vector<int32_t>& tokens, int64_t batch,
                 ForwardOptions options = {}) {
  Pool pool(model.parameters().device());
  pool.set_poison(true);
  Run run(pool);
  const Shape shape = {batch, static_cast<int64_t>(tokens.size()) / batch};
  return to_host(model.hidden(run, run.from_host("tokens", shape, tokens), options).view());
}

TEST_P(MemoryModels, GradientsMatchDifferences) {
  EXPECT_GT(expect_true_gradients(config(), 2e-6), 0);
}

// Gradients reach what feeds the memory; through the writes, not only through the reads.
TEST_P(MemoryModels, GradientsGoThroughWrites) {
  constexpr int64_t kBatch = 2, kSeq = 11;
  Values gradients[2];
  for (const int64_t cut : {0, 1}) {
    ModelConfig c = config();
    c.bptt_chunks = cut;
    Model model(c, Device::reference(), true);
    randomize(&model.parameters(), 3);
    const auto tokens = tiny_tokens(kBatch * (kSeq + 1), c.vocab_size, 5);
    Pool pool(Device::reference());
    accumulate_gradients(model, pool, tokens, kBatch, kSeq, 1.0);
    gradients[cut] = to_host(model.parameters().at("model.layers.1.fw_v_proj.weight").node()->grad);
  }
  EXPECT_GT(relative_error(gradients[1], gradients[0]), 1e-3);
}

TEST_P(MemoryModels, CpuMatchesReference) {
  expect_cpu_matches_reference(config());
}

// Changing a token never changes an earlier output, in no row of the batch.
TEST_P(MemoryModels, AreCausal) {
  constexpr int64_t kBatch = 2, kSeq = 23;
  Model model(config(), Device::reference(), false);
  randomize(&model.parameters(), 10);
  const int64_t width = model.config().hidden_size;
  auto tokens = tiny_tokens(kBatch * kSeq, model.config().vocab_size, 11);
  const Values before = hidden_of(model, tokens, kBatch);
  for (const int64_t changed : {0, 3, 4, 11, 22}) {
    const int32_t old = tokens[changed];
    tokens[changed] = (old + 1) % static_cast<int32_t>(model.config().vocab_size);
    const Values after = hidden_of(model, tokens, kBatch);
    tokens[changed] = old;
    for (int64_t i = 0; i < kBatch * kSeq * width; ++i) {
      ASSERT_TRUE(i / width % kSeq >= changed || before[i] == after[i])
          << "token " << changed << " changed the output of token " << i / width;
    }
    EXPECT_NE(before[changed * width], after[changed * width]);
  }
}

// Rows of a batch do not see each other's values; of shared ones they do, from the next chunk on.
TEST_P(MemoryModels, RowsShareWhatTheyShould) {
  constexpr int64_t kSeq = 23;
  ModelConfig c = config();
  const bool shared = c.memory == MemoryMode::kShared;
  c.fwpkm.addr_weight = 0;  // keys, which all rows move, stay
  c.fwpkm.addr_loss = true;
  Model model(c, Device::reference(), false);
  randomize(&model.parameters(), 12);
  const int64_t first_chunk = (c.fwpkm.layers.empty() ? c.fwmlp.chunk : c.fwpkm.chunk);
  const auto tokens = tiny_tokens(2 * kSeq, c.vocab_size, 13);
  const Values both = hidden_of(model, tokens, 2);
  const Values alone = hidden_of(model, columns(tokens, 2 * kSeq, kSeq, 2 * kSeq), 1);
  const auto row = [&](int64_t begin, int64_t end) {
    const int64_t width = c.hidden_size;
    return std::pair{
        Values(both.begin() + (kSeq + begin) * width, both.begin() + (kSeq + end) * width),
        Values(alone.begin() + begin * width, alone.begin() + end * width)};
  };
  const auto [both_first, alone_first] = row(0, first_chunk);
  const auto [both_later, alone_later] = row(first_chunk, kSeq);
  EXPECT_LE(relative_error(both_first, alone_first), 1e-13);
  if (shared) {
    EXPECT_GT(relative_error(both_later, alone_later), 1e-3);
  } else {
    EXPECT_LE(relative_error(both_later, alone_later), 1e-13);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryModels, testing::ValuesIn(memory_models()), memory_name);

// A model, and what a pass over a batch would write.
struct Pass {
  explicit Pass(const nlohmann::json& json, Device device = Device::reference())
      : model(parse_config(json, "test"), device, false), pool(device) {
    randomize(&model.parameters(), 20);
  }
  Values forward(const std::vector<int32_t>& tokens, int64_t batch,
                 std::span<const RowMemory> rows = {}) {
    Run run(pool);
    records.clear();
    ForwardOptions options;
    options.records = &records;
    options.rows = rows;
    const Shape shape = {batch, static_cast<int64_t>(tokens.size()) / batch};
    return to_host(model.hidden(run, run.from_host("tokens", shape, tokens), options).view());
  }
  std::map<std::string, Values> weights() const {
    std::map<std::string, Values> all;
    for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
      all[model.parameters().specs()[p].name] = to_host(model.parameters().at(p).view());
    }
    return all;
  }
  std::vector<RowMemory> empty_rows(int64_t batch) const {
    const ModelConfig& c = model.config();
    std::vector<RowMemory> rows(static_cast<size_t>(c.layers));
    for (const int64_t l : c.fwpkm.layers) {
      rows[static_cast<size_t>(l)].overlay =
          Overlay(batch, c.fwpkm.n_subkeys, c.fwpkm.value_dim, pool.device());
    }
    return rows;
  }

  Model model;
  Pool pool;
  std::vector<MemoryRecord> records;
};

// The slots that writing tokens of a layer read.
std::set<int64_t> written_slots(const MemoryRecord& record, const FwpkmConfig& c) {
  const Values slots = to_host(record.fwpkm.slots.view());
  const int64_t time = record.fwpkm.slots.dim(1), reads = record.fwpkm.slots.dim(2);
  std::set<int64_t> written;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t t = static_cast<int64_t>(i) / reads % time;
    if (t + c.lookahead < std::min(time, (t / c.chunk + 1) * c.chunk)) {
      written.insert(static_cast<int64_t>(slots[i]));
    }
  }
  return written;
}

// Tables that training steps have in a form of their own are nobody else's.
TEST(Commit, LentTablesAreRefused) {
  const TempDir dir;
  Model model(parse_config(memory_model({{"memory", "shared"}}), "test"), Device::cpu(), true);
  model.parameters().initialize(1);
  const std::vector<int32_t> tokens(12, 3);
  const Values before = hidden_of(model, tokens, 2);
  model.parameters().lend_tables(true);
  EXPECT_THROW(hidden_of(model, tokens, 2), Error);
  EXPECT_THROW(save_model(model, dir / "model"), Error);
  EXPECT_FALSE(std::filesystem::exists(dir / "model" / "model.safetensors"));
  model.parameters().lend_tables(false);
  EXPECT_EQ(hidden_of(model, tokens, 2), before);
  EXPECT_NO_THROW(save_model(model, dir / "model"));
}

TEST(Commit, SharedValuesChangeWhereTheyWereWritten) {
  for (const Device device : {Device::reference(), Device::cpu()}) {
    // Large enough a table for most of it to stay untouched.
    Pass pass(memory_model({{"memory", "shared"}, {"fwpkm", {{"n_subkeys", 12}}}}), device);
    const ModelConfig& c = pass.model.config();
    const auto tokens = tiny_tokens(2 * 14, c.vocab_size, 21);
    const auto before = pass.weights();
    const Values first = pass.forward(tokens, 2);
    EXPECT_EQ(pass.weights(), before);  // a forward changes nothing
    ASSERT_EQ(pass.records.size(), 2u);
    commit(pass.records, c, &pass.model.parameters());
    const auto after = pass.weights();
    for (const auto& [name, values] : before) {
      if (name.ends_with("fwpkm.keys")) {
        EXPECT_NE(after.at(name), values) << name;
      } else if (!name.ends_with("fwpkm.values")) {
        EXPECT_EQ(after.at(name), values) << name;
      }
    }
    for (const MemoryRecord& record : pass.records) {
      const std::string name = fmt::format("model.layers.{}.fwpkm.values", record.layer);
      const std::set<int64_t> written = written_slots(record, c.fwpkm);
      EXPECT_LT(written.size(), 144u);
      for (int64_t slot = 0; slot < 144; ++slot) {
        bool same = true;
        for (int64_t i = slot * c.fwpkm.value_dim; i < (slot + 1) * c.fwpkm.value_dim; ++i) {
          same &= before.at(name)[i] == after.at(name)[i];
        }
        EXPECT_EQ(same, !written.contains(slot)) << name << ", slot " << slot;
      }
    }
    EXPECT_GT(relative_error(pass.forward(tokens, 2), first), 1e-3);
  }
}

TEST(Commit, RowsOfTheirOwnChangeOnlyKeys) {
  for (const bool room : {false, true}) {
    Pass pass(memory_model());
    const auto tokens = tiny_tokens(2 * 14, pass.model.config().vocab_size, 22);
    const auto before = pass.weights();
    pass.forward(tokens, 2);
    std::vector<RowMemory> rows = room ? pass.empty_rows(2) : std::vector<RowMemory>();
    commit(pass.records, pass.model.config(), &pass.model.parameters(), rows);
    for (const auto& [name, values] : pass.weights()) {
      EXPECT_EQ(before.at(name) == values, !name.ends_with("fwpkm.keys")) << name;
    }
    for (const RowMemory& row : rows) {  // carry is "sequence": nothing outlives it
      EXPECT_EQ(row.overlay.rows(), 0);
    }
  }
}

// What a row wrote lies over the table in its next sequence; with one row that is what a shared
// table would hold.
TEST(Commit, CarriedRowsAreReadByTheNextPass) {
  for (const std::string carry : {"document", "forever"}) {
    Pass own(memory_model({{"carry", carry}})), shared(memory_model({{"memory", "shared"}}));
    const ModelConfig& c = own.model.config();
    const auto tokens = tiny_tokens(14, c.vocab_size, 23), next = tiny_tokens(14, c.vocab_size, 24);
    std::vector<RowMemory> rows = own.empty_rows(1);
    for (int pass = 0; pass < 3; ++pass) {
      const auto& text = pass % 2 == 0 ? tokens : next;
      const Values a = own.forward(text, 1, rows), b = shared.forward(text, 1);
      EXPECT_LE(relative_error(a, b), 1e-12) << carry << ", pass " << pass;
      if (pass > 0) {
        EXPECT_GT(relative_error(a, own.forward(text, 1)), 1e-3);
        own.forward(text, 1, rows);
      }
      commit(own.records, c, &own.model.parameters(), rows);
      commit(shared.records, shared.model.config(), &shared.model.parameters());
    }
    EXPECT_GT(rows[1].overlay.rows(), 0);
    // The table below is as it was.
    Pass fresh(memory_model());
    EXPECT_EQ(own.weights().at("model.layers.1.fwpkm.values"),
              fresh.weights().at("model.layers.1.fwpkm.values"));
  }
}

// Rows keep apart: each goes on from what it wrote itself.
TEST(Commit, CarriedRowsBelongToTheirRow) {
  // Keys stay, since all rows move them.
  const nlohmann::json json = memory_model({{"carry", "forever"}, {"fwpkm", {{"addr_weight", 0}}}});
  Pass both(json), one(json);
  const ModelConfig& c = both.model.config();
  const auto tokens = tiny_tokens(2 * 14, c.vocab_size, 25),
             next = tiny_tokens(2 * 14, c.vocab_size, 26);
  std::vector<RowMemory> both_rows = both.empty_rows(2), one_row = one.empty_rows(1);
  both.forward(tokens, 2);
  commit(both.records, c, &both.model.parameters(), both_rows);
  one.forward(columns(tokens, 28, 14, 28), 1);
  commit(one.records, c, &one.model.parameters(), one_row);
  const Values a = both.forward(next, 2, both_rows);
  const Values b = one.forward(columns(next, 28, 14, 28), 1, one_row);
  EXPECT_LE(relative_error(Values(a.begin() + static_cast<int64_t>(b.size()), a.end()), b), 1e-12);
  for (const int64_t l : c.fwpkm.layers) {
    both_rows[static_cast<size_t>(l)].overlay.clear(1);
  }
  const Values cleared = both.forward(next, 2, both_rows);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<int64_t>(b.size()), cleared.begin()));
  EXPECT_FALSE(a == cleared);
}

TEST(Commit, KeepsFastMlps) {
  for (const std::string memory : {"shared", "per_sequence"}) {
    Pass pass(memory_model(
        {{"fwpkm", nullptr}, {"fwmlp", tiny_fwmlp()}, {"memory", memory}, {"carry", "forever"}}));
    const auto tokens = tiny_tokens(2 * 14, pass.model.config().vocab_size, 27);
    const auto before = pass.weights();
    const Values first = pass.forward(tokens, 2);
    std::vector<RowMemory> rows = pass.empty_rows(2);
    commit(pass.records, pass.model.config(), &pass.model.parameters(), rows);
    for (const auto& [name, values] : pass.weights()) {
      const bool fast = memory == "shared" && name.find(".fwpkm.") != std::string::npos;
      EXPECT_EQ(before.at(name) == values, !fast) << name;
    }
    const Values plain = pass.forward(tokens, 2), carried = pass.forward(tokens, 2, rows);
    EXPECT_EQ(plain == first, memory == "per_sequence");
    EXPECT_GT(relative_error(carried, first), 1e-3);
  }
}

}  // namespace
}  // namespace fwpkm
