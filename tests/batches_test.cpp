// Batches: every token once, rows that go on, exact places to save, fair shares.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/random.h"
#include "temp_dir.h"
#include "text/batch_sources.h"
#include "text/builtin.h"
#include "text/permutation.h"
#include "text/recall.h"
#include "token_hash.h"

namespace fwpkm {
namespace {

constexpr int32_t kEnd = 0;

// Documents of given lengths whose tokens are all different: 1, 2, 3, ... through the source.
class Numbered final : public DocumentSource {
 public:
  explicit Numbered(std::vector<int64_t> lengths, int64_t documents = 0, int64_t first = 1,
                    int64_t vocab = 1 << 30)
      : lengths_(std::move(lengths)), documents_(documents), vocab_(vocab) {
    starts_.push_back(first);
    for (int64_t length : lengths_) {
      starts_.push_back(starts_.back() + length);
    }
  }
  // Endless sources go round their lengths, with new numbers.
  int64_t documents() const override {
    return documents_ == kEndless ? kEndless : std::ssize(lengths_);
  }
  int64_t length(int64_t d) const override { return lengths_[at(d)]; }
  void read(int64_t d, int64_t begin, std::span<int32_t> out) const override {
    ASSERT_LE(begin + std::ssize(out), length(d));
    ASSERT_FALSE(out.empty());
    longest_read = std::max(longest_read, std::ssize(out));
    const int64_t round = d / std::ssize(lengths_) * (starts_.back() - starts_.front());
    std::iota(out.begin(), out.end(), static_cast<int32_t>(starts_[at(d)] + begin + round));
  }
  int64_t vocab_size() const override { return vocab_; }
  std::string fingerprint() const override {
    return fmt::format("numbered {} {} {}", fmt::join(lengths_, ","), documents_, starts_.front());
  }

  mutable int64_t longest_read = 0;

 private:
  size_t at(int64_t d) const { return static_cast<size_t>(d % std::ssize(lengths_)); }
  std::vector<int64_t> lengths_, starts_;
  int64_t documents_, vocab_;
};

WeightedSource numbered(std::vector<int64_t> lengths, int64_t documents = 0, double weight = 1,
                        int64_t first = 1, int32_t end = kEnd) {
  return {std::make_shared<Numbered>(std::move(lengths), documents, first), end, weight};
}

// The documents joined, `tokens` of them, repeated if they end.
std::vector<int32_t> joined(const WeightedSource& source, int64_t tokens) {
  std::vector<int32_t> all;
  for (int64_t d = 0; std::ssize(all) < tokens; ++d) {
    const int64_t count = source.documents->documents();
    const int64_t document = count == kEndless ? d : d % count;
    std::vector<int32_t> text(static_cast<size_t>(source.documents->length(document)));
    if (!text.empty()) {
      source.documents->read(document, 0, text);
      all.insert(all.end(), text.begin(), text.end());
      if (source.end_of_text != kNoEndOfText) {
        all.push_back(source.end_of_text);
      }
    }
  }
  all.resize(static_cast<size_t>(tokens));
  return all;
}

int64_t tokens_of(const std::vector<int64_t>& lengths, int32_t end = kEnd) {
  int64_t sum = 0;
  for (int64_t length : lengths) {
    sum += length == 0 ? 0 : length + (end == kNoEndOfText ? 0 : 1);
  }
  return sum;
}

std::vector<int32_t> row(const Batch& batch, int64_t r) {
  const auto begin = batch.tokens.begin() + r * (batch.seq + 1);
  return {begin, begin + batch.seq + 1};
}

const std::vector<std::vector<int64_t>> kShapes = {
    {1}, {7}, {8}, {9}, {1, 1, 1}, {3, 8, 9, 7, 1}, {0, 5, 0, 0, 30, 0}, {100}, {40, 2, 33, 16, 8}};

TEST(Permutations, AreOneToOneAndDiffer) {
  for (uint64_t n : {1, 2, 3, 5, 64, 100, 1000, 4097}) {
    std::vector<bool> hit(n, false);
    uint64_t fixed = 0;
    const Permutation order(n, 1, 2), other(n, 1, 3);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t j = order(i);
      ASSERT_LT(j, n);
      EXPECT_FALSE(hit[j]);
      hit[j] = true;
      fixed += j == other(i) ? 1 : 0;
    }
    if (n >= 64) {
      EXPECT_LT(fixed, n / 4);
    }
  }
  const uint64_t huge = (1ull << 50) + 12345;
  const Permutation order(huge, 1, 2);
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_LT(order(huge - 1 - i), huge);
  }
}

// Cuts the joined text itself and expects the same sequences, in some order, block by block.
void expect_packed(const WeightedSource& source, int64_t per_block, const BatchSettings& settings) {
  const int64_t seq = settings.seq, blocks = 3;
  const auto text = joined(source, blocks * per_block * seq + 1);
  const auto batches = make_batches({source}, settings);
  std::vector<std::vector<int32_t>> got;
  while (std::ssize(got) < blocks * per_block) {
    const Batch batch = batches->next();
    ASSERT_EQ(std::ssize(batch.tokens), settings.rows * (seq + 1));
    for (int64_t r = 0; r < settings.rows; ++r) {
      got.push_back(row(batch, r));
      EXPECT_FALSE(batch.continues[static_cast<size_t>(r)]);
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    std::vector<std::vector<int32_t>> want;
    for (int64_t s = b * per_block; s < (b + 1) * per_block; ++s) {
      want.emplace_back(text.begin() + s * seq, text.begin() + s * seq + seq + 1);
    }
    std::vector<std::vector<int32_t>> have(got.begin() + b * per_block,
                                           got.begin() + (b + 1) * per_block);
    std::sort(want.begin(), want.end());
    std::sort(have.begin(), have.end());
    EXPECT_EQ(have, want) << source.documents->fingerprint() << " seq " << seq << " block " << b;
  }
}

TEST(Batches, ShuffledHasEveryTokenOnce) {
  for (const auto& lengths : kShapes) {
    for (int64_t seq : {1, 2, 7, 8, 9, 50}) {
      for (int64_t rows : {1, 3}) {
        for (int32_t end : {kEnd, kNoEndOfText}) {
          const int64_t per_block = (tokens_of(lengths, end) + seq - 1) / seq;
          expect_packed(numbered(lengths, 0, 1, 1, end), per_block,
                        {rows, seq, BatchOrder::kShuffled, 5});
          expect_packed(numbered(lengths, kEndless, 1, 1, end), std::max<int64_t>(1, 64 / seq),
                        {rows, seq, BatchOrder::kShuffled, 5, 64});
        }
      }
    }
  }
  // More documents than the table has entries.
  std::vector<int64_t> many(1000);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<int64_t>(i * 7 % 5);
  }
  expect_packed(numbered(many), (tokens_of(many) + 12) / 13, {4, 13, BatchOrder::kShuffled, 1});
}

TEST(Batches, ShufflesAnewBySeedAndEpoch) {
  const BatchSettings settings{1, 4, BatchOrder::kShuffled, 1};
  BatchSettings other = settings;
  other.seed = 2;
  const WeightedSource source = numbered(std::vector<int64_t>(50, 7));
  const auto a = make_batches({source}, settings), b = make_batches({source}, settings);
  const auto c = make_batches({source}, other);
  std::vector<int32_t> first, second, third;
  for (int i = 0; i < 200; ++i) {
    const Batch batch = a->next();
    EXPECT_EQ(batch.tokens, b->next().tokens);
    (i < 100 ? first : second).push_back(batch.tokens[0]);
    if (i < 100) {
      third.push_back(c->next().tokens[0]);
    }
  }
  EXPECT_NE(first, second);
  EXPECT_NE(first, third);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

// Reads each row as one text and takes it apart again.
TEST(Batches, StreamsGoOnRowByRow) {
  for (const auto& lengths : kShapes) {
    for (int64_t seq : {1, 2, 7, 8, 9, 50}) {
      for (int64_t rows : {1, 2, 4}) {
        for (int64_t documents : {int64_t{0}, kEndless}) {
          const WeightedSource source = numbered(lengths, documents);
          const auto batches = make_batches({source}, {rows, seq, BatchOrder::kStreams, 1});
          std::vector<std::vector<int32_t>> text(static_cast<size_t>(rows));
          std::vector<int32_t> before(static_cast<size_t>(rows), -1);
          for (int step = 0; step < 40; ++step) {
            const Batch batch = batches->next();
            for (int64_t r = 0; r < rows; ++r) {
              const auto i = static_cast<size_t>(r);
              const std::vector<int32_t> tokens = row(batch, r);
              if (step > 0) {
                EXPECT_EQ(tokens[0], text[i].back()) << "the last label is the next input";
                text[i].pop_back();
              }
              // A row goes on unless its first token is the first of a document.
              const bool begins = text[i].empty() || text[i].back() == kEnd;
              EXPECT_EQ(batch.continues[i], !begins);
              text[i].insert(text[i].end(), tokens.begin(), tokens.end());
            }
          }
          // Within a row numbers count up to an end of text.
          std::map<int32_t, int> begun;
          for (const auto& tokens : text) {
            for (size_t i = 0; i < tokens.size(); ++i) {
              if (tokens[i] == kEnd) {
                EXPECT_TRUE(i > 0 && tokens[i - 1] != kEnd) << "an empty document";
              } else if (i > 0 && tokens[i - 1] != kEnd) {
                EXPECT_EQ(tokens[i], tokens[i - 1] + 1);
              } else {
                ++begun[tokens[i]];
              }
            }
          }
          if (documents == kEndless) {
            for (const auto& [token, times] : begun) {
              EXPECT_EQ(times, 1) << "a document was read twice";
            }
          }
        }
      }
    }
  }
}

TEST(Batches, StreamsReadDocumentsInOrderAndAllOfThem) {
  const auto batches = make_batches({numbered({3, 8, 9, 7, 1})}, {1, 5, BatchOrder::kStreams, 1});
  std::vector<int32_t> inputs;
  for (int i = 0; i < 30; ++i) {
    const Batch batch = batches->next();
    inputs.insert(inputs.end(), batch.tokens.begin(), batch.tokens.end() - 1);
  }
  EXPECT_EQ(inputs, joined(numbered({3, 8, 9, 7, 1}), 150));
}

TEST(Batches, StreamsCutDocumentsWhereRowsAreMore) {
  const auto batches = make_batches({numbered({100, 50})}, {8, 10, BatchOrder::kStreams, 1});
  const Batch batch = batches->next();
  std::vector<int32_t> starts;
  for (int64_t r = 0; r < 8; ++r) {
    starts.push_back(row(batch, r)[0]);
  }
  EXPECT_EQ(starts, (std::vector<int32_t>{1, 26, 51, 76, 101, 113, 126, 138}));
}

// A source that is made of several, in many shapes.
std::vector<WeightedSource> random_sources(Random& random) {
  std::vector<WeightedSource> sources;
  const int64_t count = 1 + random.below(3);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> lengths{1 + random.below(40)};
    for (int64_t d = random.below(12); d > 0; --d) {
      lengths.push_back(random.below(4) == 0 ? random.below(3) : random.below(60));
    }
    sources.push_back(numbered(lengths, random.below(2) == 0 ? kEndless : 0,
                               0.25 + random.uniform(), 1 + i * 1000000));
  }
  return sources;
}

TEST(Batches, RestoredSourcesGoOnExactly) {
  Random random(17);
  for (int round = 0; round < 400; ++round) {
    const std::vector<WeightedSource> sources = random_sources(random);
    const BatchSettings settings{
        1 + random.below(5), 1 + random.below(30),
        random.below(2) == 0 ? BatchOrder::kShuffled : BatchOrder::kStreams, random.bits(),
        1 + random.below(200)};
    const auto whole = make_batches(sources, settings);
    for (int64_t skip = random.below(30); skip > 0; --skip) {
      whole->next();
    }
    const std::string saved = whole->state().dump();
    const auto resumed = make_batches(sources, settings);
    for (int64_t used = random.below(3); used > 0; --used) {
      resumed->next();  // what it did before must not matter
    }
    resumed->restore(nlohmann::json::parse(saved));
    EXPECT_EQ(resumed->state().dump(), saved);
    for (int step = 0; step < 25; ++step) {
      const Batch a = whole->next(), b = resumed->next();
      ASSERT_EQ(a.tokens, b.tokens) << "round " << round << " step " << step;
      ASSERT_EQ(a.continues, b.continues);
    }
    EXPECT_EQ(whole->state(), resumed->state());
  }
}

TEST(Batches, SharesFollowWeights) {
  for (BatchOrder order : {BatchOrder::kShuffled, BatchOrder::kStreams}) {
    const auto source = [](std::vector<int64_t> lengths, int64_t documents, double weight, int i) {
      return numbered(std::move(lengths), documents, weight, i * 100000000 + 1, kNoEndOfText);
    };
    const auto batches = make_batches({source({20, 5, 70}, kEndless, 5, 0),
                                       source({1, 1, 3}, 0, 3, 1), source({400}, kEndless, 2, 2)},
                                      {4, 16, order, 3, 256});
    std::vector<double> tokens(3, 0);
    for (int step = 0; step < 1000; ++step) {
      for (int32_t token : batches->next().tokens) {
        tokens[static_cast<size_t>(token / 100000000)] += 1.0 / (1000 * 4 * 17);
      }
    }
    EXPECT_NEAR(tokens[0], 0.5, 0.01);
    EXPECT_NEAR(tokens[1], 0.3, 0.01);
    EXPECT_NEAR(tokens[2], 0.2, 0.01);
  }
}

TEST(Batches, ReadsNoMoreThanASequenceAtOnce) {
  for (BatchOrder order : {BatchOrder::kShuffled, BatchOrder::kStreams}) {
    const auto source =
        std::make_shared<Numbered>(std::vector<int64_t>{int64_t{1} << 29, int64_t{1} << 29});
    const auto batches = make_batches({{source, kEnd}}, {2, 64, order, 1});
    for (int i = 0; i < 50; ++i) {
      batches->next();
    }
    EXPECT_LE(source->longest_read, 65);
  }
}

TEST(Batches, RecallSequencesFillRowsExactly) {
  const std::shared_ptr<const DocumentSource> source = recall_documents({}, 4);
  const auto batches = make_batches({{source, kRecallEnd}}, {2, 512, BatchOrder::kStreams, 1});
  const Batch batch = batches->next();
  for (int64_t r = 0; r < 2; ++r) {
    // A row's last label is the first token of its next document, so row 0 has taken two.
    const int64_t document = 2 * r;
    std::vector<int32_t> want = recall_sequence({}, 4, 2 * document).tokens, got = row(batch, r);
    want.push_back(kRecallEnd);
    got.pop_back();
    EXPECT_EQ(got, want);
  }
  EXPECT_FALSE(batches->next().continues[0]);
}

TEST(Batches, BuiltinTextIsPinned) {
  const std::shared_ptr<const DocumentSource> source = builtin_documents(1);
  const auto shuffled =
      make_batches({{source, kByteEndOfText}}, {4, 128, BatchOrder::kShuffled, 1});
  const auto streams = make_batches({{source, kByteEndOfText}}, {4, 128, BatchOrder::kStreams, 1});
  EXPECT_EQ(token_hash(shuffled->next().tokens), 17299368366205421120ull);
  EXPECT_EQ(token_hash(streams->next().tokens), 8258703862136130047ull);
}

TEST(Batches, OtherStatesAreRefusedByName) {
  const BatchSettings settings{2, 8, BatchOrder::kShuffled, 1};
  const auto source = numbered({30, 5});
  const auto state = make_batches({source}, settings)->state();
  const auto refused = [&](auto change, const std::string& what) {
    BatchSettings other = settings;
    change(other);
    expect_error([&] { make_batches({source}, other)->restore(state); }, "[batches]", what);
  };
  refused([](BatchSettings& s) { s.seq = 9; }, "seq=8");
  refused([](BatchSettings& s) { s.rows = 3; }, "rows=2");
  refused([](BatchSettings& s) { s.seed = 3; }, "seed=1");
  refused([](BatchSettings& s) { s.window = 3; }, "window=");
  refused([](BatchSettings& s) { s.order = BatchOrder::kStreams; }, "order=\"shuffled\"");
  expect_error(
      [&] {
        make_batches({numbered({30, 6})}, settings)->restore(state);
      },
      "numbered 30,5", "numbered 30,6");
  expect_error(
      [&] {
        make_batches({numbered({30, 5}, 0, 2)}, settings)->restore(state);
      },
      "\"weight\":1.0", "\"weight\":2.0");
  expect_error([&] { make_batches({source, source}, settings)->restore(state); }, "sources", "2");
}

TEST(Batches, BrokenStatesAreRefusedAndChangeNothing) {
  for (BatchOrder order : {BatchOrder::kShuffled, BatchOrder::kStreams}) {
    const BatchSettings settings{2, 8, order, 1, 32};
    const std::vector<WeightedSource> sources = {numbered({30, 5}), numbered({9}, kEndless)};
    const auto batches = make_batches(sources, settings);
    batches->next();
    const nlohmann::json good = batches->state();
    int refused = 0;
    const auto attempt = [&](const nlohmann::json& bad) {
      ++refused;
      expect_error([&] { batches->restore(bad); }, "[batches]");
      EXPECT_EQ(batches->state(), good);
    };
    attempt(nullptr);
    attempt(nlohmann::json::array());
    for (const auto& [key, value] : good.items()) {
      nlohmann::json bad = good;
      bad.erase(key);
      attempt(bad);
      bad[key] = "x";
      attempt(bad);
    }
    for (size_t place = 0; place < good["places"].size(); ++place) {
      for (const auto& [key, value] : good["places"][place].items()) {
        const bool unused =
            order == BatchOrder::kShuffled && place == 0 && (key == "document" || key == "offset");
        for (const nlohmann::json& wrong :
             {nlohmann::json("1"), nlohmann::json(-7), nlohmann::json(INT64_MAX)}) {
          if (!unused || wrong.is_string()) {
            nlohmann::json bad = good;
            bad["places"][place][key] = wrong;
            attempt(bad);
          }
        }
      }
    }
    EXPECT_GT(refused, 20);
  }
}

TEST(Batches, BadSettingsAreNamed) {
  const auto source = numbered({30});
  expect_error([&] { make_batches({}, {}); }, "[batches] no sources");
  expect_error([&] { make_batches({{nullptr, 0}}, {}); }, "[batches]", "null");
  expect_error([&] { make_batches({source}, {0, 8}); }, "rows=0");
  expect_error([&] { make_batches({source}, {1, 0}); }, "seq=0");
  expect_error([&] { make_batches({numbered({3}, 0, 0.0)}, {}); }, "weight=0");
  expect_error([&] { make_batches({numbered({3}, 0, NAN)}, {}); }, "weight=nan");
  expect_error([&] { make_batches({numbered({})}, {}); }, "no documents");
  expect_error([&] { make_batches({numbered({0, 0})}, {}); }, "no tokens");
  expect_error(
      [&] {
        make_batches({numbered({0, 0})}, {1, 8, BatchOrder::kStreams})->next();
      },
      "no tokens");
  const std::shared_ptr<const DocumentSource> recall = recall_documents({}, 1);
  expect_error([&] { make_batches({source, {recall, 0}}, {}); }, "131", "tokenizer");
  expect_error([&] { make_batches({{recall, 131}}, {}); }, "end_of_text=131", "0..130");
}

}  // namespace
}  // namespace fwpkm
