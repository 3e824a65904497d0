// The documents of one source as one text: an end-of-text token after each, empty ones left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/batch_sources.h"

namespace fwpkm {

// A document, or a part of one that is read as if it were one.
struct Piece {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t tokens = 0;  // without the end of text
};

// A token of a document; the end of text stands at offset length(document).
struct TextPlace {
  int64_t document = 0;
  int64_t offset = 0;
};

class JoinedDocuments {
 public:
  explicit JoinedDocuments(WeightedSource source) : source_(std::move(source)) {}

  const DocumentSource& documents() const { return *source_.documents; }
  bool endless() const { return documents().documents() == kEndless; }
  Piece whole(int64_t document) const { return {document, 0, documents().length(document)}; }
  // Tokens with the end of text; 0 for an empty piece.
  int64_t size(const Piece& piece) const;
  // Fills `out` with tokens of the piece from `offset` on. They must be there.
  void read(const Piece& piece, int64_t offset, std::span<int32_t> out) const;

 private:
  WeightedSource source_;
};

// A source cut into sequences of seq + 1 tokens, in shuffled order.
class ShuffledSequences {
 public:
  struct State {
    int64_t block = 0;  // blocks finished
    int64_t taken = 0;  // sequences taken of the block
    TextPlace first;    // endless sources: where the block begins
  };

  // `stream` tells the permutations of several sources apart.
  ShuffledSequences(WeightedSource source, const BatchSettings& settings, uint64_t stream);

  void next(std::span<int32_t> out);
  const State& state() const { return state_; }
  // Throws where such a state cannot be.
  void check(const State& state) const;
  void restore(const State& state);  // a checked one
  int64_t sequences_per_block() const { return sequences_; }

 private:
  void measure();
  void enter_block();
  TextPlace seek(int64_t position) const;

  JoinedDocuments text_;
  int64_t seq_;
  uint64_t seed_, stream_;
  int64_t sequences_ = 0;
  int64_t tokens_ = 0;  // of all documents; 0: endless
  State state_;
  // Where every kStride-th document begins (n documents), or every document of the block (endless,
  // from the beginning of the block).
  std::vector<int64_t> starts_;
};

}  // namespace fwpkm
