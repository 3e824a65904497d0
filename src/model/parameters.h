// The parameter table: every tensor of a model, under the authors' names.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/tensor.h"

namespace fwpkm {

// How a tensor starts.
struct Init {
  enum class Kind : uint8_t { kZero, kOne, kNormal, kUniform, kLogUniform };
  Kind kind = Kind::kZero;
  double scale = 0;  // standard deviation; half width; upper end (of log U(0, scale))
};

struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init;
  bool decay = false;  // weight decay applies: matrices only
  bool fast = false;   // a fast weight: written by the memory, never by an optimizer
};

// In the order of the layers. Tied output weights are not listed twice.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

// Owns the weights of one model and, if asked for, their gradients: one block of each kind.
class Parameters {
 public:
  // Memory is reserved but not set; call initialize() or load.
  Parameters(const ModelConfig& config, Device device, bool gradients, bool dry = false);

  Device device() const { return device_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // By name; a name that is not in the table is a programming error and throws.
  const Tensor& at(const std::string& name) const;
  const Tensor& at(size_t index) const { return tensors_[index]; }
  bool has_gradients() const { return static_cast<bool>(grads_); }

  void initialize(uint64_t seed);
  void zero_gradients();
  size_t value_bytes() const { return values_->bytes(); }
  size_t gradient_bytes() const { return grads_ ? grads_->bytes() : 0; }

 private:
  Device device_;
  Pool pool_;
  std::vector<ParameterSpec> specs_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t> index_;
  std::shared_ptr<Block> values_, grads_;
};

}  // namespace fwpkm
