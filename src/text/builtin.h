// The built-in corpus: long documents in simple English about people and towns, made from a seed.
//
// Every document has a world of its own (names, professions, homes, pets, belongings, codes, ...),
// so nothing in it can be known before it is read; it tells facts once, in passing, and comes back
// to them much later in other words: what follows "Where can I find Mara Holt?" was said thousands
// of characters ago. Some facts change on the way, and the last word counts. Tokens are bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/documents.h"

namespace fwpkm {

inline constexpr int32_t kByteEndOfText = 256;
inline constexpr int64_t kByteVocab = 257;

struct BuiltinText {
  std::string text;
  // A place that the text before it determines: bytes begin..end repeat what was last said at
  // `stated`.
  struct Recall {
    int64_t begin, end, stated;
  };
  std::vector<Recall> recalls;  // by `begin`
};

// Document `index`, whatever was made before. `tokens` is about how long it gets (from 3/4 to 5/4
// of it, and at least a paragraph); 0 draws 2,000 to 20,000.
BuiltinText builtin_text(uint64_t seed, int64_t index, int64_t tokens = 0,
                         Split split = Split::kTrain);

// These texts as bytes, endless. Training takes the worlds of even number, validation the odd.
std::unique_ptr<DocumentSource> builtin_documents(uint64_t seed, int64_t tokens = 0,
                                                  Split split = Split::kTrain);

}  // namespace fwpkm
