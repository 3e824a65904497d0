// Telling models apart by what they compute: content hashes of the config and of every tensor.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/parameters.h"

namespace fwpkm {

// The same on every machine (little-endian), whatever the file's type and place: weights are hashed
// as they are on the device, after conversion. A model has one on devices in float and another on
// the reference device, in double.
struct ModelFingerprint {
  uint64_t config = 0;            // every key but name and train.*
  std::vector<uint64_t> tensors;  // hash_wide of each, in the order of the parameter table

  // All of it as 32 hexadecimal digits.
  std::string hex() const;
  bool operator==(const ModelFingerprint&) const = default;
};

uint64_t config_fingerprint(const ModelConfig& config);
// Reads all weights, on all threads.
ModelFingerprint compute_fingerprint(const ModelConfig& config, const Parameters& parameters);

// What differs first, as in "tensor model.norm.weight differs, and 3 more"; empty if nothing does.
// `specs` names the tensors of a model whose fingerprint one of the two is.
std::string describe_difference(const ModelFingerprint& a, const ModelFingerprint& b,
                                std::span<const ParameterSpec> specs);

// Computes a fingerprint when it is first asked for; threads may ask at once. Weights with
// gradients are being trained: their fingerprint is computed anew each time.
class FingerprintOnce {
 public:
  ModelFingerprint get(const ModelConfig& config, const Parameters& parameters);

 private:
  std::once_flag once_;
  ModelFingerprint value_;
};

}  // namespace fwpkm
