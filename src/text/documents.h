// Documents as token sequences, addressed by number: what batches are cut from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace fwpkm {

inline constexpr int64_t kEndless = -1;
// The largest number a document of an endless source can have.
inline constexpr int64_t kLastDocument = (int64_t{1} << 60) - 1;

// Which documents of a generated source: those to train on, or others that training never sees.
enum class Split { kTrain, kValid };

// Calls are const and may come from several threads. Documents do not hold an end-of-text token
// of their own unless the reader is told so (WeightedSource::end_of_text).
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // How many there are; kEndless where every number 0..kLastDocument is one.
  virtual int64_t documents() const = 0;
  // Tokens of a document; 0 is allowed.
  virtual int64_t length(int64_t document) const = 0;
  // Tokens begin..begin+out.size() of a document, which must lie inside it. A document may be
  // larger than memory, so readers ask for pieces.
  virtual void read(int64_t document, int64_t begin, std::span<int32_t> out) const = 0;
  // Every token is below it.
  virtual int64_t vocab_size() const = 0;
  // Names the data: equal texts mean equal documents. A saved place in the data is refused for
  // data of another name.
  virtual std::string fingerprint() const = 0;
};

}  // namespace fwpkm
