#include "text/recall.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "text/document_cache.h"
#include "text/permutation.h"

namespace fwpkm {
namespace {

constexpr int64_t kLongest = int64_t{1} << 32;

// How much sooner than a question a fact comes.
constexpr int64_t kEarly = 3;

// Streams of random numbers of one sequence.
enum Purpose : uint64_t { kKeys, kValues, kOrder, kPurposes };

void check(const RecallSettings& s) {
  check_recall_counts(s);
  require(s.tokens >= 2 * kRecallItem && s.tokens <= kLongest, "recall",
          "tokens={} must be {}..{}: a fact and a question take {}", s.tokens, 2 * kRecallItem,
          kLongest, 2 * kRecallItem);
  require(s.facts >= 0 && s.facts <= s.keys * s.keys, "recall",
          "facts={} must be 0..{}, the number of keys of two tokens; raise keys={}", s.facts,
          s.keys * s.keys, s.keys);
}

void check_mixed(const RecallSettings& settings) {
  check(settings);
  require(recall_facts(settings) < settings.tokens / kRecallItem, "recall",
          "facts={} leave no room for a question in tokens={}; lower facts or raise tokens",
          settings.facts, settings.tokens);
}

// The facts of sequence `index`; each is a pure function of its number.
class Facts {
 public:
  Facts(const RecallSettings& settings, uint64_t seed, int64_t index)
      : settings_(settings),
        keys_(static_cast<uint64_t>(settings.keys * settings.keys), seed, stream(index, kKeys)),
        values_(seed, stream(index, kValues)) {}

  static uint64_t stream(int64_t index, Purpose purpose) {
    return static_cast<uint64_t>(index) * kPurposes + purpose;
  }
  int32_t value(int64_t fact) const {
    const double u = values_.uniform_at(static_cast<uint64_t>(fact));
    const auto v = static_cast<int64_t>(u * static_cast<double>(settings_.values));
    return static_cast<int32_t>(kRecallFirstKey + settings_.keys + v);
  }
  void append(int32_t marker, int64_t fact, std::vector<int32_t>& tokens) const {
    const auto key = static_cast<int64_t>(keys_(static_cast<uint64_t>(fact)));
    tokens.insert(tokens.end(),
                  {marker, static_cast<int32_t>(kRecallFirstKey + key / settings_.keys),
                   static_cast<int32_t>(kRecallFirstKey + key % settings_.keys), value(fact)});
  }

 private:
  RecallSettings settings_;
  Permutation keys_;
  Random values_;
};

// A fact that was stated.
struct Stated {
  int64_t fact;
  int64_t item;  // where it was last seen
  int32_t readings;
};

class Mixer {
 public:
  Mixer(const RecallSettings& settings, uint64_t seed, int64_t index)
      : facts_(settings, seed, index),
        random_(seed, Facts::stream(index, kOrder)),
        facts_left_(recall_facts(settings)),
        questions_left_(settings.tokens / kRecallItem - facts_left_),
        repeats_(questions_left_ > facts_left_) {
    sequence_.tokens.reserve(static_cast<size_t>(settings.tokens));
    while (facts_left_ + questions_left_ > 0) {
      if (states_next()) {
        state();
      } else {
        ask();
      }
    }
    sequence_.tokens.resize(static_cast<size_t>(settings.tokens), kRecallEnd);
  }

  RecallSequence take() { return std::move(sequence_); }

 private:
  int64_t item() const { return std::ssize(sequence_.tokens) / kRecallItem; }

  // Facts come a few times as early as questions, so that there are many open ones to choose from
  // and some questions are far from their facts.
  bool states_next() {
    const int64_t early = kEarly * facts_left_;
    const bool wants = random_.below(early + questions_left_) < early;
    const bool can_ask = !open_.empty() || (repeats_ && !asked_.empty()) || facts_left_ == 0;
    return facts_left_ > 0 && (wants || !can_ask);
  }

  void state() {
    open_.push_back({stated_, item(), 1});
    facts_.append(kRecallFact, stated_++, sequence_.tokens);
    --facts_left_;
  }

  void ask() {
    if (open_.empty()) {
      std::swap(open_, asked_);
    }
    const auto chosen = open_.begin() + pick();
    Stated fact = *chosen;
    open_.erase(chosen);
    const int64_t position = std::ssize(sequence_.tokens) + kRecallItem - 1;
    sequence_.marks.push_back(
        {position, (item() - fact.item) * kRecallItem, facts_.value(fact.fact), fact.readings});
    fact.item = item();
    ++fact.readings;
    facts_.append(kRecallQuestion, fact.fact, sequence_.tokens);
    asked_.push_back(fact);
    --questions_left_;
  }

  // Which open fact to ask for.
  int64_t pick() {
    if (random_.uniform() < 0.5) {
      return random_.below(std::ssize(open_));
    }
    const double distance = std::exp(random_.uniform() * std::log(static_cast<double>(item())));
    const int64_t aim = item() - std::llround(distance);
    const auto at = std::lower_bound(open_.begin(), open_.end(), aim,
                                     [](const Stated& s, int64_t item) { return s.item < item; });
    const int64_t after = at - open_.begin();
    if (at == open_.end() || (at != open_.begin() && aim - (at - 1)->item < at->item - aim)) {
      return after - 1;
    }
    return after;
  }

  Facts facts_;
  Random random_;
  int64_t facts_left_, questions_left_;
  bool repeats_;
  int64_t stated_ = 0;
  std::vector<Stated> open_, asked_;  // both in the order in which they were last seen
  RecallSequence sequence_;
};

class RecallDocuments final : public DocumentSource {
 public:
  RecallDocuments(const RecallSettings& settings, uint64_t seed, Split split)
      : settings_(settings), seed_(seed), split_(split) {
    check_mixed(settings);
  }

  int64_t documents() const override { return kEndless; }
  int64_t length(int64_t) const override { return settings_.tokens; }
  int64_t vocab_size() const override { return recall_vocab_size(settings_); }
  std::string fingerprint() const override {
    return fmt::format("builtin:recall/1 seed={} split={} tokens={} facts={} keys={} values={}",
                       seed_, split_ == Split::kTrain ? "train" : "valid", settings_.tokens,
                       recall_facts(settings_), settings_.keys, settings_.values);
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    require(document >= 0 && document <= kLastDocument && begin >= 0 &&
                begin + std::ssize(out) <= settings_.tokens,
            "recall", "tokens {}..{} of sequence {} were asked for; it has {}", begin,
            begin + std::ssize(out), document, settings_.tokens);
    const DocumentCache::Tokens tokens = cache_.get(document, [&] {
      const int64_t index = 2 * document + (split_ == Split::kValid ? 1 : 0);
      return recall_sequence(settings_, seed_, index).tokens;
    });
    std::copy_n(tokens->begin() + begin, out.size(), out.begin());
  }

 private:
  RecallSettings settings_;
  uint64_t seed_;
  Split split_;
  mutable DocumentCache cache_;
};

}  // namespace

void check_recall_counts(const RecallSettings& s) {
  require(s.keys >= 1 && s.keys <= 1 << 15, "recall", "keys={} must be 1..{}", s.keys, 1 << 15);
  require(s.values >= 2 && s.values <= 1 << 20, "recall", "values={} must be 2..{}", s.values,
          1 << 20);
}

int64_t recall_vocab_size(const RecallSettings& settings) {
  return kRecallFirstKey + settings.keys + settings.values;
}

int64_t recall_facts(const RecallSettings& settings) {
  const int64_t items = settings.tokens / kRecallItem;
  if (settings.facts == 0) {
    const int64_t most = std::max<int64_t>(1, settings.keys * settings.keys / 2);
    return std::clamp<int64_t>((items * 55 + 50) / 100, 1, most);
  }
  return settings.facts;
}

RecallSequence recall_sequence(const RecallSettings& settings, uint64_t seed, int64_t index) {
  check_mixed(settings);
  return Mixer(settings, seed, index).take();
}

RecallSequence recall_readings(const RecallSettings& settings, uint64_t seed, int64_t index,
                               int64_t readings) {
  check(settings);
  const int64_t count = recall_facts(settings);
  require(readings >= 1 && readings <= kLongest / count / kRecallItem, "recall",
          "readings={} must be 1..{}", readings, kLongest / count / kRecallItem);
  const Facts facts(settings, seed, index);
  const Permutation order(static_cast<uint64_t>(count), seed, Facts::stream(index, kOrder));
  RecallSequence sequence;
  sequence.reading = count * kRecallItem;
  sequence.tokens.reserve(static_cast<size_t>(sequence.reading * (readings + 1)));
  for (int64_t r = 0; r < readings; ++r) {
    for (int64_t fact = 0; fact < count; ++fact) {
      facts.append(kRecallFact, fact, sequence.tokens);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto fact = static_cast<int64_t>(order(static_cast<uint64_t>(i)));
    sequence.marks.push_back({std::ssize(sequence.tokens) + kRecallItem - 1,
                              (count - fact + i) * kRecallItem, facts.value(fact),
                              static_cast<int32_t>(readings)});
    facts.append(kRecallQuestion, fact, sequence.tokens);
  }
  return sequence;
}

std::unique_ptr<DocumentSource> recall_documents(const RecallSettings& settings, uint64_t seed,
                                                 Split split) {
  return std::make_unique<RecallDocuments>(settings, seed, split);
}

}  // namespace fwpkm
