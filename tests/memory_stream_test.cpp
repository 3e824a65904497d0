// Memories of streams: when they are written, and that it does not matter how a stream is cut.
#include <gtest/gtest.h>

#include "check/compare.h"
#include "memory_models.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

// What there is to know of a memory but its weights.
struct Counts {
  int64_t updates, written, queued;
  bool operator==(const Counts&) const = default;
};

// One or several streams that a model reads.
class Stream {
 public:
  explicit Stream(const Model& model, int64_t batch = 1)
      : model_(model), pool_(model.parameters().device()), run_(pool_) {
    pool_.set_poison(true);
    state_ = model.start(run_, batch);
  }

  // tokens [batch, ..] -> hidden states.
  Values read(const std::vector<int32_t>& tokens, bool write = true) {
    ForwardOptions options;
    options.states = {&state_};
    options.write_memory = write;
    const Shape shape = {state_.batch, static_cast<int64_t>(tokens.size()) / state_.batch};
    return to_host(model_.hidden(run_, run_.from_host("tokens", shape, tokens), options).view());
  }
  // The same, but what is to be learned is handed out first and given back afterwards, if at all.
  Values read_then_learn(const std::vector<int32_t>& tokens, bool learn) {
    std::vector<MemoryInput> inputs;
    ForwardOptions options;
    options.states = {&state_};
    options.inputs = &inputs;
    const Shape shape = {1, static_cast<int64_t>(tokens.size())};
    const Values hidden =
        to_host(model_.hidden(run_, run_.from_host("tokens", shape, tokens), options).view());
    if (learn) {
      model_.learn(run_, inputs, &state_);
    }
    return hidden;
  }
  void flush() { model_.flush(run_, &state_); }
  void reset_mixers() { state_.reset_mixers(model_.config(), run_); }
  void reset_memory() { state_.reset_memory(model_.config(), run_); }

  std::vector<Counts> counts() const {
    std::vector<Counts> all;
    for (const LayerState& layer : state_.layers) {
      for (const FastStream& fast : layer.fast) {
        all.push_back({fast.updates, fast.written, fast.queued});
      }
    }
    return all;
  }
  // All fast weights.
  Values weights() const {
    Values all;
    const auto add = [&](const Tensor& t) {
      const Values values = t ? to_host(t.view()) : Values();
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const LayerState& layer : state_.layers) {
      for (const FastStream& fast : layer.fast) {
        add(fast.keys);
        fast.overlay.for_each(0, [&](int32_t slot, const std::byte* row) {
          all.push_back(slot);
          const View view("row", const_cast<std::byte*>(row), pool_.device().real,
                          pool_.device().kind, {fast.overlay.width()});
          add(Tensor::constant(view));
        });
        for (const Tensor& t : fast.mlp) {
          add(t);
        }
      }
    }
    return all;
  }

 private:
  const Model& model_;
  Pool pool_;
  Run run_;
  State state_;
};

class MemoryStreams : public testing::TestWithParam<TinyModel> {
 protected:
  // With chunks of `chunk` tokens and weights that are always the same.
  std::unique_ptr<Model> make(int64_t chunk, int64_t lookahead,
                              Device device = Device::reference()) const {
    ModelConfig c = parse_config(GetParam().json, "test");
    c.fwpkm.chunk = c.fwmlp.chunk = chunk;
    c.fwpkm.lookahead = c.fwmlp.lookahead = lookahead;
    auto model = std::make_unique<Model>(c, device, false);
    randomize(&model->parameters(), 30);
    return model;
  }
  static std::vector<int32_t> text(const Model& model, int64_t count, uint64_t seed) {
    return tiny_tokens(count, model.config().vocab_size, seed);
  }
};

TEST_P(MemoryStreams, CanBeCutAnywhere) {
  constexpr int64_t kTokens = 250;
  for (const Device device : {Device::reference(), Device::cpu()}) {
    for (const int64_t lookahead : {0, 1, 3}) {
      const auto model = make(13, lookahead, device);
      const auto tokens = text(*model, kTokens, 31);
      Stream whole(*model);
      const Values right = whole.read(tokens);
      for (uint64_t seed = 0; seed < 3; ++seed) {
        Random random(seed, 32);
        Stream cut(*model);
        Values got;
        for (int64_t at = 0; at < kTokens;) {
          const int64_t most = seed == 0 ? 1 : seed == 1 ? 7 : 60;
          const int64_t end = std::min(kTokens, at + 1 + random.below(most));
          const Values part = cut.read(columns(tokens, kTokens, at, end));
          got.insert(got.end(), part.begin(), part.end());
          at = end;
        }
        EXPECT_EQ(cut.counts(), whole.counts());
        EXPECT_GT(cut.counts()[0].updates, 15);
        if (device.real == DType::kF64) {  // in float a near-tie may be decided the other way
          EXPECT_LE(relative_error(got, right), 1e-9) << "seed " << seed;
          EXPECT_LE(relative_error(cut.weights(), whole.weights()), 1e-9);
        }
      }
    }
  }
}

TEST_P(MemoryStreams, AreWrittenAfterCompletePairs) {
  constexpr int64_t kChunk = 6;
  for (const int64_t lookahead : {0, 1, 4}) {
    const auto model = make(kChunk, lookahead);
    Stream stream(*model);
    const auto tokens = text(*model, 40, 33);
    Values before = stream.weights();
    for (int64_t t = 1; t <= 40; ++t) {
      stream.read({tokens[t - 1]});
      // First after C+L tokens, then after every C.
      const bool now = t >= kChunk + lookahead && (t - lookahead) % kChunk == 0;
      const int64_t updates = std::max<int64_t>(0, t - lookahead) / kChunk;
      for (const Counts& c : stream.counts()) {
        EXPECT_EQ(c, (Counts{updates, updates * kChunk, t - updates * kChunk})) << t << " tokens";
      }
      const Values after = stream.weights();
      EXPECT_EQ(after != before, now) << t << " tokens";
      before = after;
    }
  }
}

// Without lookahead a stream writes when a whole sequence does.
TEST_P(MemoryStreams, ReadAsWholeSequencesDo) {
  const auto model = make(6, 0);
  const auto tokens = text(*model, 33, 34);
  Pool pool(Device::reference());
  fwpkm::Run run(pool);
  const Values whole = to_host(model->hidden(run, run.from_host("tokens", {1, 33}, tokens)).view());
  EXPECT_LE(relative_error(Stream(*model).read(tokens), whole), 1e-10);
}

// With lookahead, a training chunk of C+L tokens writes the same C pairs as a stream's first update
// (its keys would move by more tokens, so they stay here).
TEST_P(MemoryStreams, WriteThePairsOfALongerChunk) {
  constexpr int64_t kChunk = 6, kLookahead = 3;
  const auto fixed = [&](int64_t chunk) {
    ModelConfig c = make(chunk, kLookahead)->config();
    c.fwpkm.addr_loss = true;
    c.fwpkm.addr_weight = 0;
    auto model = std::make_unique<Model>(c, Device::reference(), false);
    randomize(&model->parameters(), 30);
    return model;
  };
  const auto stream_model = fixed(kChunk), sequence_model = fixed(kChunk + kLookahead);
  // Up to the stream's second update.
  constexpr int64_t kTokens = 2 * kChunk + kLookahead;
  const auto tokens = text(*stream_model, kTokens, 35);
  const Values streamed = Stream(*stream_model).read(tokens);
  Pool pool(Device::reference());
  fwpkm::Run run(pool);
  const auto sequence = [&](bool write) {
    ForwardOptions options;
    options.write_memory = write;
    return to_host(
        sequence_model->hidden(run, run.from_host("tokens", {1, kTokens}, tokens), options).view());
  };
  EXPECT_LE(relative_error(streamed, sequence(true)), 1e-10);
  EXPECT_GT(relative_error(streamed, sequence(false)), 1e-4);
}

// Token by token as a GPU's graph does it: reading does not touch the memories, learning comes
// after.
TEST_P(MemoryStreams, CanLearnAfterReading) {
  const auto model = make(5, 1);
  Stream a(*model), b(*model), c(*model);
  for (const int32_t token : text(*model, 23, 38)) {
    EXPECT_EQ(b.read_then_learn({token}, true), a.read({token}));
    EXPECT_EQ(b.counts(), a.counts());
    c.read_then_learn({token}, false);
  }
  EXPECT_EQ(b.weights(), a.weights());
  for (const Counts& counts : c.counts()) {
    EXPECT_EQ(counts, (Counts{0, 0, 0}));
  }
  Stream two(*model, 2);
  EXPECT_THROW(two.read_then_learn({1, 2}, true), Error);
}

TEST_P(MemoryStreams, FlushWritesAllCompletePairsAtOnce) {
  for (const int64_t lookahead : {0, 1, 3}) {
    // One is updated by itself after 9 pairs; the other's chunk is far longer.
    const auto by_itself = make(9, lookahead), by_flush = make(64, lookahead);
    Stream a(*by_itself), b(*by_flush);
    const auto tokens = text(*by_itself, 9 + lookahead, 36), more = text(*by_itself, 5, 37);
    a.read(tokens);
    b.read(tokens);
    for (const Counts& c : b.counts()) {
      EXPECT_EQ(c, (Counts{0, 0, 9 + lookahead}));
    }
    b.flush();
    EXPECT_EQ(b.counts(), a.counts());
    for (const Counts& c : b.counts()) {
      EXPECT_EQ(c, (Counts{1, 9, lookahead}));
    }
    EXPECT_LE(relative_error(b.weights(), a.weights()), 1e-12);
    const Values weights = b.weights();
    b.flush();  // nothing is complete
    EXPECT_EQ(b.counts(), a.counts());
    EXPECT_EQ(b.weights(), weights);
    EXPECT_LE(relative_error(b.read(more), a.read(more)), 1e-10);
    // The newest tokens were not lost: their pairs are complete now.
    b.flush();
    for (const Counts& c : b.counts()) {
      EXPECT_EQ(c, (Counts{2, 14, lookahead}));
    }
  }
}

TEST_P(MemoryStreams, FlushOfAShortStreamWaits) {
  const auto model = make(9, 3);
  Stream stream(*model);
  stream.read(text(*model, 3, 38));
  stream.flush();
  for (const Counts& c : stream.counts()) {
    EXPECT_EQ(c, (Counts{0, 0, 3}));
  }
}

TEST_P(MemoryStreams, ReadWithoutWriting) {
  const auto model = make(6, 1);
  const auto tokens = text(*model, 20, 39), other = text(*model, 30, 40),
             next = text(*model, 20, 41);
  Stream quiet(*model), plain(*model);
  quiet.read(tokens);
  plain.read(tokens);
  const auto counts = quiet.counts();
  const Values weights = quiet.weights();
  quiet.read(other, false);
  quiet.read({other[0]}, false);
  EXPECT_EQ(quiet.counts(), counts);
  EXPECT_EQ(quiet.weights(), weights);
  // Not even the queue has seen it.
  quiet.reset_mixers();
  plain.reset_mixers();
  EXPECT_EQ(quiet.read(next), plain.read(next));
  EXPECT_EQ(quiet.counts(), plain.counts());
  // But it does read what was written.
  Stream fresh(*model);
  quiet.reset_mixers();
  EXPECT_GT(relative_error(quiet.read(other, false), fresh.read(other, false)), 1e-3);
}

TEST_P(MemoryStreams, ResetMakesThemAsNew) {
  const auto model = make(6, 1);
  const auto tokens = text(*model, 40, 42);
  Stream fresh(*model), used(*model);
  const Values right = fresh.read(tokens);
  used.read(text(*model, 33, 43));
  used.reset_mixers();
  EXPECT_GT(relative_error(used.read(tokens), right), 1e-3);
  used.reset_mixers();
  used.reset_memory();
  for (const Counts& c : used.counts()) {
    EXPECT_EQ(c, (Counts{0, 0, 0}));
  }
  EXPECT_TRUE(used.weights().empty());
  EXPECT_EQ(used.read(tokens), right);
}

TEST_P(MemoryStreams, DoNotSeeEachOther) {
  const auto model = make(6, 1);
  const auto a = text(*model, 40, 44), b = text(*model, 40, 45);
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  Stream first(*model), second(*model), together(*model, 2);
  Values right = first.read(a);
  const Values other = second.read(b);
  right.insert(right.end(), other.begin(), other.end());
  EXPECT_LE(relative_error(together.read(both), right), 1e-12);
  for (const Counts& c : together.counts()) {
    EXPECT_EQ(c, first.counts()[0]);
  }
}

TEST_P(MemoryStreams, AreCausal) {
  constexpr int64_t kTokens = 40;
  const auto model = make(6, 1);
  const int64_t width = model->config().hidden_size;
  const auto read = [&](const std::vector<int32_t>& tokens) {
    Stream stream(*model);
    Values all;
    for (int64_t at = 0; at < kTokens; at += 8) {
      const Values part = stream.read(columns(tokens, kTokens, at, at + 8));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  const auto tokens = text(*model, kTokens, 46);
  const Values before = read(tokens);
  for (const int64_t changed : {0, 5, 6, 7, 19, 39}) {
    auto other = tokens;
    other[changed] = (other[changed] + 1) % static_cast<int32_t>(model->config().vocab_size);
    const Values after = read(other);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + changed * width, after.begin()));
    EXPECT_NE(before[changed * width], after[changed * width]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, MemoryStreams, testing::ValuesIn(memory_models()), memory_name);

}  // namespace
}  // namespace fwpkm
