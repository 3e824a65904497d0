// Fast weights that rows of training batches keep from one sequence to the next (config `carry`).
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "model/model.h"

namespace fwpkm {

class CarriedMemory {
 public:
  // For batches of `rows` rows of this model. Holds nothing where the config carries nothing. Both
  // must outlive this.
  CarriedMemory(const Model& model, Pool& pool, int64_t rows);

  // Before a batch: drops what belongs to documents that do not go on.
  void start_batch(const std::vector<bool>& continues);
  // One entry per layer, or empty.
  std::span<RowMemory> layers() { return layers_; }
  bool empty() const { return layers_.empty(); }

  // A safetensors file; load gives exactly what was saved.
  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

 private:
  const Model& model_;
  Pool& pool_;
  int64_t rows_;
  std::vector<RowMemory> layers_;
};

}  // namespace fwpkm
