#include "text/joined.h"

#include <algorithm>

#include "base/error.h"
#include "text/permutation.h"

namespace fwpkm {
namespace {

// Documents between two entries of the table of a source with n documents.
constexpr int64_t kStride = 64;
// Empty documents in a row after which an endless source counts as empty.
constexpr int64_t kPatience = 1 << 20;

}  // namespace

int64_t JoinedDocuments::size(const Piece& piece) const {
  return piece.tokens == 0 ? 0 : piece.tokens + (source_.end_of_text == kNoEndOfText ? 0 : 1);
}

void JoinedDocuments::read(const Piece& piece, int64_t offset, std::span<int32_t> out) const {
  const int64_t count = std::min<int64_t>(piece.tokens - offset, std::ssize(out));
  if (count > 0) {
    documents().read(piece.document, piece.begin + offset, out.first(static_cast<size_t>(count)));
  }
  if (count < std::ssize(out)) {
    out.back() = source_.end_of_text;
  }
}

ShuffledSequences::ShuffledSequences(WeightedSource source, const BatchSettings& settings,
                                     uint64_t stream)
    : text_(std::move(source)), seq_(settings.seq), seed_(settings.seed), stream_(stream) {
  if (text_.endless()) {
    sequences_ = std::max<int64_t>(1, settings.window / seq_);
  } else {
    measure();
    sequences_ = (tokens_ + seq_ - 1) / seq_;
  }
}

void ShuffledSequences::measure() {
  const int64_t documents = text_.documents().documents();
  for (int64_t d = 0; d < documents; ++d) {
    if (d % kStride == 0) {
      starts_.push_back(tokens_);
    }
    tokens_ += text_.size(text_.whole(d));
  }
  require(tokens_ > 0, "batches", "source \"{}\" has no tokens in its {} documents; leave it out",
          text_.documents().fingerprint(), documents);
}

// Endless sources: finds where the documents of the block begin, up to its last label.
void ShuffledSequences::enter_block() {
  starts_.clear();
  int64_t position = -state_.first.offset, empty = 0;
  for (int64_t d = state_.first.document; position <= sequences_ * seq_; ++d) {
    starts_.push_back(position);
    const int64_t size = text_.size(text_.whole(d));
    position += size;
    empty = size == 0 ? empty + 1 : 0;
    require(empty < kPatience, "batches", "source \"{}\" has {} empty documents in a row",
            text_.documents().fingerprint(), empty);
  }
}

TextPlace ShuffledSequences::seek(int64_t position) const {
  // The last of several that begin here: those before it are empty.
  const int64_t entry =
      std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
  const int64_t start = starts_[static_cast<size_t>(entry)];
  if (text_.endless()) {
    return {state_.first.document + entry, position - start};
  }
  TextPlace place{entry * kStride, position - start};
  for (int64_t size; place.offset >= (size = text_.size(text_.whole(place.document)));
       ++place.document) {
    place.offset -= size;
  }
  return place;
}

void ShuffledSequences::next(std::span<int32_t> out) {
  if (text_.endless() && starts_.empty()) {
    enter_block();
  }
  const Permutation order(static_cast<uint64_t>(sequences_), seed_,
                          mix_bits(stream_) + static_cast<uint64_t>(state_.block));
  int64_t position = static_cast<int64_t>(order(static_cast<uint64_t>(state_.taken))) * seq_;
  if (!text_.endless()) {
    position = (state_.block * sequences_ * seq_ + position) % tokens_;
  }
  TextPlace place = seek(position);
  for (std::span<int32_t> rest = out; !rest.empty();) {
    if (!text_.endless() && place.document == text_.documents().documents()) {
      place.document = 0;
    }
    const Piece piece = text_.whole(place.document);
    const int64_t left = text_.size(piece) - place.offset;
    const size_t count = std::min(rest.size(), static_cast<size_t>(left));
    text_.read(piece, place.offset, rest.first(count));
    rest = rest.subspan(count);
    place = {place.document + 1, 0};
  }
  if (++state_.taken == sequences_) {
    if (text_.endless()) {
      state_.first = seek(sequences_ * seq_);
      starts_.clear();
    }
    state_.taken = 0;
    ++state_.block;
  }
}

void ShuffledSequences::check(const State& state) const {
  const int64_t most = INT64_MAX / 4 / (sequences_ * seq_);
  require(state.block >= 0 && state.block <= most && state.taken >= 0 && state.taken < sequences_,
          "batches", "saved place: block {}, sequence {} of it; they can be 0..{} and 0..{}",
          state.block, state.taken, most, sequences_ - 1);
  if (text_.endless()) {
    const TextPlace& first = state.first;
    require(first.document >= 0 && first.document <= kLastDocument && first.offset >= 0 &&
                (first.offset == 0 || first.offset < text_.size(text_.whole(first.document))),
            "batches", "saved place: there is no token {} in a document {}", first.offset,
            first.document);
  }
}

void ShuffledSequences::restore(const State& state) {
  state_ = state;
  if (text_.endless()) {
    starts_.clear();
  }
}

}  // namespace fwpkm
