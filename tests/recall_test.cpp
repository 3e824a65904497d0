// The recall corpus: marks by brute force, answers that only the statement gives.
#include "text/recall.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "temp_dir.h"
#include "token_hash.h"

namespace fwpkm {
namespace {

using Key = std::pair<int32_t, int32_t>;

// Reads a sequence from its tokens alone and checks that the marks say the same.
void expect_exact(const RecallSettings& settings, const RecallSequence& sequence) {
  struct Seen {
    int32_t value;
    int64_t position;
    int32_t readings;
  };
  const std::vector<int32_t>& tokens = sequence.tokens;
  const int32_t first_value = static_cast<int32_t>(kRecallFirstKey + settings.keys);
  std::map<Key, Seen> seen;
  size_t mark = 0, i = 0;
  for (; i + 4 <= tokens.size() && tokens[i] != kRecallEnd; i += 4) {
    const Key key{tokens[i + 1], tokens[i + 2]};
    const int32_t value = tokens[i + 3];
    const auto position = static_cast<int64_t>(i + 3);
    for (int32_t k : {key.first, key.second}) {
      ASSERT_GE(k, kRecallFirstKey);
      ASSERT_LT(k, first_value);
    }
    ASSERT_GE(value, first_value);
    ASSERT_LT(value, recall_vocab_size(settings));
    auto found = seen.find(key);
    if (tokens[i] == kRecallFact) {
      if (sequence.reading == 0) {
        ASSERT_EQ(found, seen.end()) << "stated twice";
      }
      if (found != seen.end()) {
        ASSERT_EQ(found->second.value, value);
        found->second.position = position;
        ++found->second.readings;
      } else {
        seen[key] = {value, position, 1};
      }
      continue;
    }
    ASSERT_EQ(tokens[i], kRecallQuestion);
    ASSERT_NE(found, seen.end()) << "asked before it was stated";
    ASSERT_LT(mark, sequence.marks.size());
    const RecallSequence::Mark& m = sequence.marks[mark++];
    EXPECT_EQ(m.position, position);
    EXPECT_EQ(m.answer, value);
    EXPECT_EQ(m.answer, found->second.value);
    EXPECT_EQ(m.distance, position - found->second.position);
    EXPECT_EQ(m.readings, found->second.readings);
    found->second.position = position;
    ++found->second.readings;
  }
  EXPECT_EQ(mark, sequence.marks.size());
  EXPECT_EQ(static_cast<int64_t>(seen.size()), recall_facts(settings));
  for (; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i], kRecallEnd);
  }
}

TEST(Recall, DefaultsHaveSeventyFactsIn512Tokens) {
  const RecallSettings settings;
  EXPECT_EQ(recall_facts(settings), 70);
  EXPECT_EQ(recall_vocab_size(settings), 131);
  const RecallSequence sequence = recall_sequence(settings, 1, 0);
  EXPECT_EQ(sequence.tokens.size(), 511u);
  EXPECT_EQ(sequence.marks.size(), 57u);
  EXPECT_GE(settings.values, 64);
}

TEST(Recall, MarksAreExact) {
  const std::vector<RecallSettings> all = {
      {},           {8, 1, 1, 2},      {11, 0, 2, 3},      {512, 64, 64, 64},
      {9000, 0},    {4000, 30, 16, 9}, {4000, 900, 32, 2}, {1600, 256, 16, 100},
      {100, 2, 64},
  };
  for (const RecallSettings& settings : all) {
    for (int64_t index = 0; index < 20; ++index) {
      const RecallSequence sequence = recall_sequence(settings, 5, index);
      EXPECT_EQ(std::ssize(sequence.tokens), settings.tokens);
      expect_exact(settings, sequence);
    }
  }
}

TEST(Recall, ReadingsRepeatTheFactsAndAskTheSame) {
  RecallSettings settings;
  settings.facts = 64;
  const RecallSequence one = recall_readings(settings, 3, 8, 1);
  for (int64_t readings : {1, 2, 5}) {
    const RecallSequence sequence = recall_readings(settings, 3, 8, readings);
    EXPECT_EQ(sequence.reading, 256);
    EXPECT_EQ(std::ssize(sequence.tokens), 256 * (readings + 1));
    EXPECT_EQ(sequence.marks.size(), 64u);
    expect_exact(settings, sequence);
    for (int64_t r = 0; r < readings; ++r) {
      EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.begin() + 256,
                             sequence.tokens.begin() + r * 256));
    }
    EXPECT_TRUE(std::equal(one.tokens.begin() + 256, one.tokens.end(),
                           sequence.tokens.begin() + readings * 256));
  }
}

TEST(Recall, SequencesArePinned) {
  const RecallSequence sequence = recall_sequence({}, 1, 0);
  EXPECT_EQ(token_hash(sequence.tokens), 7637680061964917767ull);
}

TEST(Recall, DocumentsAreTheSequencesInAnyOrder) {
  const RecallSettings settings;
  const auto train = recall_documents(settings, 9),
             valid = recall_documents(settings, 9, Split::kValid);
  EXPECT_EQ(train->documents(), kEndless);
  EXPECT_NE(train->fingerprint(), valid->fingerprint());
  std::set<uint64_t> seen;
  for (int64_t d : {700, 3, 0, 5, 3, 1}) {
    std::vector<int32_t> tokens(511), part(7);
    train->read(d, 0, tokens);
    EXPECT_EQ(tokens, recall_sequence(settings, 9, 2 * d).tokens);
    train->read(d, 101, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), tokens.begin() + 101));
    seen.insert(token_hash(tokens));
    valid->read(d, 0, tokens);
    EXPECT_EQ(tokens, recall_sequence(settings, 9, 2 * d + 1).tokens);
    seen.insert(token_hash(tokens));
  }
  EXPECT_EQ(seen.size(), 10u);  // five documents each, none like another
}

TEST(Recall, AnswersCannotBeGuessed) {
  const RecallSettings settings;
  const auto values = static_cast<size_t>(settings.values);
  std::vector<double> count(values), given_last(values * values);
  std::vector<std::vector<double>> by_key(static_cast<size_t>(settings.keys), count);
  double total = 0, repeats_last_value = 0;
  for (int64_t index = 0; index < 4000; ++index) {
    const RecallSequence sequence = recall_sequence(settings, 11, index);
    for (const RecallSequence::Mark& m : sequence.marks) {
      const auto at = static_cast<size_t>(m.position);
      const auto answer = static_cast<size_t>(m.answer - kRecallFirstKey - settings.keys);
      count[answer] += 1;
      by_key[static_cast<size_t>(sequence.tokens[at - 1] - kRecallFirstKey)][answer] += 1;
      // The value right before the question, where the question is not about that fact.
      if (m.distance > kRecallItem) {
        repeats_last_value += sequence.tokens[at - 4] == m.answer ? 1 : 0;
        total += 1;
      }
    }
  }
  const auto chi_square = [](const std::vector<double>& counts) {
    const double mean =
        std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
    double sum = 0;
    for (double c : counts) {
      sum += (c - mean) * (c - mean) / mean;
    }
    return sum;
  };
  // 63 degrees of freedom: mean 63, deviation 11.
  EXPECT_LT(chi_square(count), 63 + 4 * 11.3);
  double all_keys = 0;
  for (const auto& counts : by_key) {
    all_keys += chi_square(counts);
  }
  EXPECT_LT(all_keys, 64 * 63 + 4 * 90);  // 4032 degrees of freedom
  EXPECT_GT(all_keys, 64 * 63 - 4 * 90);
  EXPECT_NEAR(repeats_last_value / total, 1.0 / 64, 0.0015);
}

TEST(Recall, DistancesSpreadFromNearToFar) {
  std::map<int, int> octaves;
  int total = 0;
  for (int64_t index = 0; index < 500; ++index) {
    for (const RecallSequence::Mark& m : recall_sequence({}, 2, index).marks) {
      ++octaves[static_cast<int>(std::bit_width(static_cast<uint64_t>(m.distance)))];
      ++total;
    }
  }
  for (int octave = 3; octave <= 9; ++octave) {  // 4..7 up to 256..511
    EXPECT_GT(octaves[octave], total / 25) << "distances from " << (1 << (octave - 1));
  }
}

TEST(Recall, BadSettingsAreNamed) {
  expect_error([] { recall_sequence({7}, 1, 0); }, "[recall] tokens=7");
  expect_error([] { recall_sequence({511, 5, 2}, 1, 0); }, "facts=5", "0..4");
  expect_error([] { recall_sequence({40, 10}, 1, 0); }, "facts=10", "tokens=40");
  expect_error([] { recall_documents({40, 10}, 1); }, "facts=10", "tokens=40");
  expect_error([] { recall_sequence({511, 0, 64, 1}, 1, 0); }, "values=1");
  expect_error([] { recall_readings({}, 1, 0, 0); }, "readings=0");
  std::vector<int32_t> out(10);
  expect_error([&] { recall_documents({}, 1)->read(0, 502, out); }, "502..512", "511");
}

}  // namespace
}  // namespace fwpkm
