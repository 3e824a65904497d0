#include "eval/recall.h"

#include <algorithm>

namespace fwpkm {
namespace {

// Streams of one batch: their state, and the tokens that the model expects next.
class Streams {
 public:
  // `memory` gets how the memories do, unless null.
  Streams(const Model& model, Pool& pool, int64_t batch, bool freeze, MemoryStats* memory)
      : model_(model),
        run_(pool),
        state_(model.start(run_, batch)),
        batch_(batch),
        freeze_(freeze),
        memory_(memory) {}

  void clear_mixers() { state_.reset_mixers(model_.config(), run_); }
  void flush() {
    if (!freeze_) {
      model_.flush(run_, &state_);
    }
  }

  // Feeds tokens begin..end of each sequence. Result: for each, what the model expects after them.
  std::vector<int32_t> feed(const std::vector<RecallSequence>& sequences, int64_t begin,
                            int64_t end, bool write) {
    std::vector<int32_t> tokens;
    for (const RecallSequence& s : sequences) {
      tokens.insert(tokens.end(), s.tokens.begin() + begin, s.tokens.begin() + end);
    }
    ForwardOptions options;
    options.states = {&state_};
    options.write_memory = write && !freeze_;
    std::vector<MemoryRecord> records;
    options.records = memory_ == nullptr ? nullptr : &records;
    const Tensor h =
        model_.hidden(run_, run_.from_host("tokens", {batch_, end - begin}, tokens), options);
    for (const MemoryRecord& record : records) {
      memory_->add(record, model_.config());
    }
    const std::vector<double> logits = to_host(model_.logits(run_, h).view());
    const int64_t vocab = model_.config().vocab_size;
    std::vector<int32_t> expected;
    for (int64_t i = 0; i < batch_ * (end - begin); ++i) {
      const auto row = logits.begin() + i * vocab;
      expected.push_back(static_cast<int32_t>(std::max_element(row, row + vocab) - row));
    }
    return expected;
  }

 private:
  const Model& model_;
  Run run_;
  State state_;
  int64_t batch_;
  bool freeze_;
  MemoryStats* memory_;
};

constexpr int64_t kPiece = 512;  // tokens fed at a time

// What the model expects after each token begin..end: [batch, end - begin].
std::vector<int32_t> feed_all(Streams* streams, const std::vector<RecallSequence>& sequences,
                              int64_t begin, int64_t end, bool write) {
  const auto batch = static_cast<int64_t>(sequences.size());
  std::vector<int32_t> all(static_cast<size_t>(batch * (end - begin)));
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t stop = std::min(end, at + kPiece);
    const std::vector<int32_t> piece = streams->feed(sequences, at, stop, write);
    for (int64_t b = 0; b < batch; ++b) {
      std::copy_n(piece.begin() + b * (stop - at), stop - at,
                  all.begin() + b * (end - begin) + at - begin);
    }
  }
  return all;
}

// Whether the pair whose query is token `query` is written when token `now` is read.
bool is_written(const ModelConfig& c, int64_t query, int64_t now) {
  const int64_t chunk = c.fwpkm.chunk, first = chunk + c.fwpkm.lookahead;
  const int64_t updates = now < first ? 0 : (now - first) / chunk + 1;
  return query < updates * chunk;
}

}  // namespace

RecallResult evaluate_recall(const Model& model, const RecallOptions& options,
                             const std::function<void(double)>& progress) {
  const ModelConfig& c = model.config();
  const int64_t vocab = recall_vocab_size(options.corpus);
  require(vocab == c.vocab_size, "eval",
          "the recall corpus has {} tokens, but the model has vocab_size={}; evaluate a model that "
          "was trained on builtin:recall with the same number of keys and values",
          vocab, c.vocab_size);
  RecallResult result;
  result.window = c.has_mixer(Mixer::kFa)     ? -1
                  : c.has_mixer(Mixer::kLact) ? c.lact.window
                  : c.has_mixer(Mixer::kSwa)  ? c.attention.window
                                              : 0;
  result.chunk = c.fwpkm.chunk;
  result.chance = 1 / static_cast<double>(options.corpus.values);
  for (int64_t from = 1; from <= options.corpus.tokens; from *= 2) {
    result.by_distance.push_back({from, 2 * from - 1, {}});
  }

  Pool pool(model.parameters().device());
  const auto rounds = static_cast<double>(1 + options.readings.size());
  // Odd sequences are held out from training.
  const auto for_batches = [&](double round, auto&& make, auto&& fn) {
    for (int64_t first = 0; first < options.sequences; first += options.batch) {
      std::vector<RecallSequence> sequences;
      for (int64_t i = first; i < std::min(options.sequences, first + options.batch); ++i) {
        sequences.push_back(make(2 * i + 1));
      }
      Streams streams(model, pool, static_cast<int64_t>(sequences.size()), options.freeze,
                      round == 0 ? &result.memory : nullptr);
      fn(&streams, sequences);
      if (progress) {
        progress((round + static_cast<double>(std::min(options.sequences, first + options.batch)) /
                              static_cast<double>(options.sequences)) /
                 rounds);
      }
    }
  };
  const auto is_far = [&](int64_t distance) {
    return result.window >= 0 && distance > result.window;
  };

  for_batches(
      0, [&](int64_t i) { return recall_sequence(options.corpus, options.seed, i); },
      [&](Streams* streams, const std::vector<RecallSequence>& sequences) {
        const auto length = static_cast<int64_t>(sequences[0].tokens.size());
        const std::vector<int32_t> expected = feed_all(streams, sequences, 0, length, true);
        for (size_t b = 0; b < sequences.size(); ++b) {
          for (const RecallSequence::Mark& mark : sequences[b].marks) {
            const int64_t now = mark.position - 1;
            const bool right =
                expected[b * static_cast<size_t>(length) + static_cast<size_t>(now)] == mark.answer;
            for (RecallResult::Distance& d : result.by_distance) {
              if (mark.distance >= d.from && mark.distance <= d.to) {
                d.share.add(right);
              }
            }
            RecallShare& share = !is_far(mark.distance)                    ? result.within_window
                                 : is_written(c, now - mark.distance, now) ? result.beyond_window
                                                                           : result.not_written;
            share.add(right);
            if (&share == &result.beyond_window && std::ssize(result.examples) < options.show) {
              const std::vector<int32_t>& tokens = sequences[b].tokens;
              const auto at = static_cast<size_t>(now);
              result.examples.push_back({{tokens[at - 1], tokens[at]},
                                         mark.answer,
                                         expected[b * static_cast<size_t>(length) + at],
                                         mark.distance});
            }
          }
        }
      });

  for (size_t r = 0; r < options.readings.size(); ++r) {
    RecallResult::Readings row{options.readings[r], {}, {}};
    for_batches(
        static_cast<double>(1 + r),
        [&](int64_t i) {
          return recall_readings(options.corpus, options.seed, i, options.readings[r]);
        },
        [&](Streams* streams, const std::vector<RecallSequence>& sequences) {
          const int64_t reading = sequences[0].reading, facts = reading * options.readings[r];
          for (int64_t at = 0; at < facts; at += reading) {
            streams->clear_mixers();
            feed_all(streams, sequences, at, at + reading, true);
            streams->flush();
          }
          const auto length = static_cast<int64_t>(sequences[0].tokens.size());
          const std::vector<int32_t> expected = feed_all(streams, sequences, facts, length, false);
          for (size_t b = 0; b < sequences.size(); ++b) {
            for (const RecallSequence::Mark& mark : sequences[b].marks) {
              const bool right =
                  expected[b * static_cast<size_t>(length - facts) +
                           static_cast<size_t>(mark.position - 1 - facts)] == mark.answer;
              row.all.add(right);
              if (is_far(mark.distance)) {
                row.beyond_window.add(right);
              }
            }
          }
        });
    result.by_readings.push_back(row);
  }
  return result;
}

}  // namespace fwpkm
