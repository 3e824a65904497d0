#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json_fields.h"
#include "text/batch_sources.h"
#include "text/joined.h"

namespace fwpkm {
namespace {

using nlohmann::json;

constexpr int64_t kLargest = int64_t{1} << 40;
// Empty documents in a row after which a source counts as empty, where it has so many.
constexpr int64_t kPatience = 1 << 20;

const char* order_name(BatchOrder order) {
  return order == BatchOrder::kShuffled ? "shuffled" : "streams";
}

void check_settings(const std::vector<WeightedSource>& sources, const BatchSettings& settings) {
  require(settings.rows >= 1 && settings.rows <= 1 << 20, "batches", "rows={} must be 1..{}",
          settings.rows, 1 << 20);
  require(settings.seq >= 1 && settings.seq <= kLargest, "batches", "seq={} must be 1..{}",
          settings.seq, kLargest);
  require(settings.window >= 1 && settings.window <= kLargest, "batches", "window={} must be 1..{}",
          settings.window, kLargest);
  require(!sources.empty(), "batches", "no sources; give at least one");
  const DocumentSource* first = sources.front().documents.get();
  for (const WeightedSource& source : sources) {
    require(source.documents != nullptr, "batches", "a source is null; give documents");
    const std::string name = source.documents->fingerprint();
    const int64_t vocab = source.documents->vocab_size();
    require(vocab == first->vocab_size(), "batches",
            "sources \"{}\" and \"{}\" have {} and {} tokens in their vocabularies; use one "
            "tokenizer for all",
            first->fingerprint(), name, first->vocab_size(), vocab);
    require(std::isfinite(source.weight) && source.weight > 0, "batches",
            "weight={} of source \"{}\" must be above 0; leave the source out instead",
            source.weight, name);
    require(source.end_of_text >= kNoEndOfText && source.end_of_text < vocab, "batches",
            "end_of_text={} of source \"{}\" must be 0..{}, or {} for none", source.end_of_text,
            name, vocab - 1, kNoEndOfText);
    require(source.documents->documents() != 0, "batches",
            "source \"{}\" has no documents; leave it out", name);
  }
}

// A number of a saved state.
int64_t number(const json& state, const char* key) {
  const auto found = state.is_object() ? state.find(key) : state.end();
  int64_t value = 0;
  require(found != state.end() && Codec<int64_t>::read(*found, value), "batches",
          "saved place: \"{}\" is missing or not an integer in {}", key, shown(state));
  return value;
}

const json& list(const json& state, const char* key, size_t size) {
  const auto found = state.find(key);
  require(found != state.end() && found->is_array() && found->size() == size, "batches",
          "saved place: \"{}\" is not a list of {}", key, size);
  return *found;
}

// What both orders share: mixing, and a state that knows what it belongs to.
class MixedBatches : public BatchSource {
 public:
  MixedBatches(const std::vector<WeightedSource>& sources, const BatchSettings& settings)
      : settings_(settings), served_(sources.size(), 0) {
    vocab_ = sources.front().documents->vocab_size();
    for (const WeightedSource& source : sources) {
      weights_.push_back(source.weight);
      names_.push_back({{"data", source.documents->fingerprint()},
                        {"weight", source.weight},
                        {"end_of_text", source.end_of_text}});
    }
  }

  int64_t vocab_size() const override { return vocab_; }

  json state() const override {
    json state = identity();
    state["served"] = served_;
    save(state);
    return state;
  }

  void restore(const json& state) override {
    require(state.is_object(), "batches", "saved place: not an object but {}", shown(state));
    const json mine = identity();
    for (const auto& [key, value] : mine.items()) {
      if (key != "sources") {
        const auto found = state.find(key);
        require(found != state.end(), "batches", "saved place: \"{}\" is missing", key);
        require(*found == value, "batches",
                "the saved place is for {}={}, this run has {}={}; go on with the same, or start "
                "anew",
                key, shown(*found), key, shown(value));
      }
    }
    const json& saved = list(state, "sources", names_.size());
    for (size_t i = 0; i < names_.size(); ++i) {
      require(
          saved[i] == names_[i], "batches",
          "the saved place is for source {} = {}, this run has {}; go on with the same data, or "
          "start anew",
          i, saved[i].dump(), names_[i].dump());
    }
    std::vector<int64_t> served;
    for (const json& value : list(state, "served", served_.size())) {
      served.push_back(0);
      require(Codec<int64_t>::read(value, served.back()) && served.back() >= 0, "batches",
              "saved place: served={} is not a number of tokens", shown(value));
    }
    load(state);
    served_ = std::move(served);
  }

 protected:
  virtual void save(json& state) const = 0;
  // Changes nothing where it throws.
  virtual void load(const json& state) = 0;

  // The source that is furthest behind its share; the first of several.
  size_t next_source() const {
    size_t best = 0;
    for (size_t i = 1; i < served_.size(); ++i) {
      if (behind(i) < behind(best)) {
        best = i;
      }
    }
    return best;
  }
  void serve(size_t source, int64_t tokens) { served_[source] += tokens; }

  Batch empty_batch() const {
    const auto rows = static_cast<size_t>(settings_.rows);
    return {settings_.rows, settings_.seq,
            std::vector<int32_t>(rows * static_cast<size_t>(settings_.seq + 1)),
            std::vector<bool>(rows, false)};
  }
  std::span<int32_t> row_of(Batch& batch, int64_t row) const {
    const auto width = static_cast<size_t>(settings_.seq + 1);
    return std::span(batch.tokens).subspan(static_cast<size_t>(row) * width, width);
  }

  BatchSettings settings_;

 private:
  double behind(size_t source) const {
    return static_cast<double>(served_[source]) / weights_[source];
  }
  json identity() const {
    return {{"order", order_name(settings_.order)},
            {"rows", settings_.rows},
            {"seq", settings_.seq},
            {"seed", settings_.seed},
            {"window", settings_.window},
            {"sources", names_}};
  }

  int64_t vocab_;
  std::vector<double> weights_;
  std::vector<json> names_;
  std::vector<int64_t> served_;  // tokens handed out, per source
};

class ShuffledBatches final : public MixedBatches {
 public:
  ShuffledBatches(std::vector<WeightedSource> sources, const BatchSettings& settings)
      : MixedBatches(sources, settings) {
    for (size_t i = 0; i < sources.size(); ++i) {
      sequences_.emplace_back(std::move(sources[i]), settings, i);
    }
  }

  Batch next() override {
    Batch batch = empty_batch();
    for (int64_t r = 0; r < settings_.rows; ++r) {
      const size_t source = next_source();
      sequences_[source].next(row_of(batch, r));
      serve(source, settings_.seq);
    }
    return batch;
  }

 private:
  void save(json& state) const override {
    for (const ShuffledSequences& sequences : sequences_) {
      const ShuffledSequences::State& s = sequences.state();
      state["places"].push_back({{"block", s.block},
                                 {"taken", s.taken},
                                 {"document", s.first.document},
                                 {"offset", s.first.offset}});
    }
  }

  void load(const json& state) override {
    std::vector<ShuffledSequences::State> places;
    for (const json& place : list(state, "places", sequences_.size())) {
      places.push_back({number(place, "block"),
                        number(place, "taken"),
                        {number(place, "document"), number(place, "offset")}});
      sequences_[places.size() - 1].check(places.back());
    }
    for (size_t i = 0; i < places.size(); ++i) {
      sequences_[i].restore(places[i]);
    }
  }

  std::vector<ShuffledSequences> sequences_;
};

class StreamBatches final : public MixedBatches {
 public:
  StreamBatches(std::vector<WeightedSource> sources, const BatchSettings& settings)
      : MixedBatches(sources, settings), rows_(static_cast<size_t>(settings.rows)) {
    for (WeightedSource& source : sources) {
      sources_.emplace_back(std::move(source), settings.rows);
    }
  }

  Batch next() override {
    Batch batch = empty_batch();
    for (int64_t r = 0; r < settings_.rows; ++r) {
      Row& row = rows_[static_cast<size_t>(r)];
      const std::span<int32_t> out = row_of(batch, r);
      batch.continues[static_cast<size_t>(r)] = row.offset > 0;
      // The last token is the next batch's first, so the row comes to stand on it, not behind it.
      for (size_t filled = 0; filled < out.size();) {
        const Pieces& pieces = sources_[row.source];
        const Piece piece = row.ordinal < 0 ? Piece{} : pieces.piece(row.ordinal);
        const int64_t left = pieces.text.size(piece) - row.offset;
        if (left <= 0) {
          row = take();
          continue;
        }
        const size_t count = std::min(out.size() - filled, static_cast<size_t>(left));
        pieces.text.read(piece, row.offset, out.subspan(filled, count));
        filled += count;
        row.offset += static_cast<int64_t>(count) - (filled == out.size() ? 1 : 0);
      }
    }
    return batch;
  }

 private:
  // A source's documents, or equal parts of them, numbered through all epochs.
  struct Pieces {
    Pieces(WeightedSource source, int64_t rows) : text(std::move(source)) {
      documents = text.endless() ? kLastDocument + 1 : text.documents().documents();
      per_document = (rows + documents - 1) / documents;
    }
    Piece piece(int64_t ordinal) const {
      const int64_t document = ordinal / per_document % documents, part = ordinal % per_document;
      const int64_t length = text.documents().length(document);
      const auto border = [&](int64_t p) {  // length * p / per_document, without overflow
        return length / per_document * p + length % per_document * p / per_document;
      };
      return {document, border(part), border(part + 1) - border(part)};
    }

    JoinedDocuments text;
    int64_t documents, per_document;
    int64_t taken = 0;
  };

  struct Row {
    size_t source = 0;
    int64_t ordinal = -1;  // none yet
    int64_t offset = 0;
  };

  Row take() {
    const size_t source = next_source();
    Pieces& pieces = sources_[source];
    const int64_t patience = std::min(pieces.documents, kPatience) * pieces.per_document;
    for (int64_t tried = 0; tried < patience; ++tried) {
      const int64_t ordinal = pieces.taken++;
      if (const int64_t size = pieces.text.size(pieces.piece(ordinal)); size > 0) {
        serve(source, size);
        return {source, ordinal, 0};
      }
    }
    fail("batches", "source \"{}\" has no tokens in {} documents; leave it out",
         pieces.text.documents().fingerprint(), patience / pieces.per_document);
  }

  void save(json& state) const override {
    for (const Pieces& pieces : sources_) {
      state["taken"].push_back(pieces.taken);
    }
    for (const Row& row : rows_) {
      state["places"].push_back(
          {{"source", row.source}, {"document", row.ordinal}, {"offset", row.offset}});
    }
  }

  void load(const json& state) override {
    std::vector<int64_t> taken;
    for (const json& value : list(state, "taken", sources_.size())) {
      taken.push_back(0);
      require(Codec<int64_t>::read(value, taken.back()) && taken.back() >= 0 &&
                  taken.back() <= kLastDocument,
              "batches", "saved place: taken={} is not a number of documents", shown(value));
    }
    std::vector<Row> rows;
    for (const json& place : list(state, "places", rows_.size())) {
      const int64_t source = number(place, "source");
      require(source >= 0 && source < std::ssize(sources_), "batches",
              "saved place: there is no source {}", source);
      const Row row{static_cast<size_t>(source), number(place, "document"),
                    number(place, "offset")};
      const Pieces& pieces = sources_[row.source];
      require(row.ordinal < 0 ? row.ordinal == -1 && row.offset == 0
                              : row.ordinal < taken[row.source] && row.offset >= 0 &&
                                    row.offset < pieces.text.size(pieces.piece(row.ordinal)),
              "batches", "saved place: there is no token {} in a document {} of {} taken",
              row.offset, row.ordinal, taken[row.source]);
      rows.push_back(row);
    }
    rows_ = std::move(rows);
    for (size_t i = 0; i < taken.size(); ++i) {
      sources_[i].taken = taken[i];
    }
  }

  std::vector<Pieces> sources_;
  std::vector<Row> rows_;
};

}  // namespace

std::unique_ptr<BatchSource> make_batches(std::vector<WeightedSource> sources,
                                          const BatchSettings& settings) {
  check_settings(sources, settings);
  if (settings.order == BatchOrder::kShuffled) {
    return std::make_unique<ShuffledBatches>(std::move(sources), settings);
  }
  return std::make_unique<StreamBatches>(std::move(sources), settings);
}

}  // namespace fwpkm
