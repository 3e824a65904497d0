// Where training gets its tokens: batches of rows, and the place in the data as something to save.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace fwpkm {

struct Batch {
  int64_t rows = 0;
  int64_t seq = 0;
  // [rows, seq + 1]: inputs are the first seq tokens of a row, labels the last seq.
  std::vector<int32_t> tokens;
  // Per row: it goes on with the document of the same row in the batch before.
  std::vector<bool> continues;
};

// An endless, seeded stream of batches. The same settings and seed give the same batches, and a
// restored source goes on exactly where the saved one stood.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Batch next() = 0;
  virtual int64_t vocab_size() const = 0;
  virtual nlohmann::json state() const = 0;
  // Refuses, by name, a state that is not of this source.
  virtual void restore(const nlohmann::json& state) = 0;
};

}  // namespace fwpkm
