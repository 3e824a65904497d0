// Batches cut from documents, in one of two orders.
//
// shuffled: each source is its documents joined one after the other, the end-of-text token between
//   them, cut every `seq` tokens into sequences of seq + 1 (a sequence's last label is the next
//   one's first input). Sequences come in a seeded order:
//   - of a source with n documents, the joined text is repeated without end, and each block of
//     ceil(tokens / seq) sequences (one epoch, and up to seq - 1 tokens of the next, which then
//     starts there) has its own permutation, which is computed and never stored;
//   - of an endless source, each block of `window` tokens has.
//   Either way every token is an input once before any is again.
// streams: each row reads documents from beginning to end, in the order of their numbers: a row
//   that ends one takes the next that no row has taken. Row r of a batch goes on where row r of the
//   batch before stopped. A source with fewer documents than rows has each cut into equal parts,
//   which are then read as documents, so that rows do not all read the same text.
//
// Several sources share the tokens in proportion to their weights, exactly and without chance: the
// next sequence (or document) is always of the source that is furthest behind.
#pragma once

#include <memory>
#include <vector>

#include "text/batches.h"
#include "text/documents.h"

namespace fwpkm {

enum class BatchOrder { kShuffled, kStreams };

struct WeightedSource {
  std::shared_ptr<const DocumentSource> documents;
  // Put after every document; kNoEndOfText where documents hold their own.
  int32_t end_of_text;
  // Share of the tokens, relative to the other sources'.
  double weight = 1.0;
};

inline constexpr int32_t kNoEndOfText = -1;

struct BatchSettings {
  int64_t rows = 1;
  int64_t seq = 512;
  BatchOrder order = BatchOrder::kShuffled;
  uint64_t seed = 0;
  // Tokens of an endless source that are shuffled together.
  int64_t window = int64_t{1} << 20;
};

std::unique_ptr<BatchSource> make_batches(std::vector<WeightedSource> sources,
                                          const BatchSettings& settings);

}  // namespace fwpkm
