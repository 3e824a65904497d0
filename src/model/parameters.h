// The parameter table: every tensor of a model, under the authors' names.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/safetensors.h"
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
  bool half = false;   // has 16 bits where activations have: what products multiply, and PKM's rows
};

// In the order of the layers. Tied output weights are not listed twice.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

// Owns the weights of one model and, if asked for, their gradients: one block of each kind. Weights
// may also lie in a mapped file, whose pages all processes that map it share.
//
// Where activations are bf16, what products multiply is bf16 too. In training those weights are
// copies: an optimizer changes the masters, which are float as all other weights and, unless they
// are told otherwise, all gradients.
class Parameters {
 public:
  // Memory is reserved but not set; call initialize() or load. With `file`, a tensor that is there
  // with this shape, the device's type and its element's alignment stays there: it has its values
  // already, takes no memory and is read-only (a write to it faults). The file is held open.
  // `beside`: bytes that somebody else will want of a GPU; tables of fast weights go where they
  // leave room for that.
  Parameters(const ModelConfig& config, Device device, bool gradients, bool dry = false,
             std::shared_ptr<const SafeTensors> file = nullptr, size_t beside = 0);

  Device device() const { return device_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // By name; a name that is not in the table is a programming error and throws.
  const Tensor& at(const std::string& name) const;
  const Tensor& at(size_t index) const { return tensors_[index]; }
  // What is kept of a tensor in files and by optimizers: its master, or itself if it has none.
  const View& stored(size_t index) const { return stored_[index]; }
  // What is stored of a tensor, to be written; one that is mapped is refused. If the tensor has a
  // master, refresh() must follow.
  const View& writable(const std::string& name) const;
  // Makes the copies of masters anew.
  void refresh();
  bool mapped(size_t index) const { return mapped_[index]; }
  // Of a weight that has 16 bits here: the fingerprint of the numbers it was rounded from, so that
  // models of one file are told to be the same wherever they run; 0 if nobody gave one.
  uint64_t rounded_from(size_t p) const { return rounded_from_[p]; }
  void set_rounded_from(size_t p, uint64_t fingerprint) { rounded_from_[p] = fingerprint; }
  bool has_gradients() const { return static_cast<bool>(grads_); }

  void initialize(uint64_t seed);
  void zero_gradients();
  // Whether there is something in the gradients that backward is to add to; otherwise what comes
  // first overwrites them.
  void mark_gradients(bool written);
  // From now on those of PKM's values have the 16 bits of activations, if these have; they are in
  // the same memory. For sums of one batch, which are rounded once; if more were added to them,
  // they would be rounded each time.
  void narrow_gradients();
  // After backward: those that nobody wrote become zero.
  void settle_gradients();
  // While training steps have the tables of memories in a form of their own (FwpkmStore) or still
  // update PKM's (AdamW::start_late), nobody else may use them.
  void lend_tables(bool lent) { tables_lent_ = lent; }
  bool tables_lent() const { return tables_lent_; }
  // Of PKM's values on a GPU: sums of squares of the gradient, as PkmSettings::squares says. Else
  // null.
  double* gradient_squares(size_t index) const { return squares_[index]; }
  double* gradient_squares(const std::string& name) const { return squares_[index_of(name)]; }
  // Weights in memory of our own, and in the file.
  size_t value_bytes() const {
    return (values_ ? values_->bytes() : 0) + (halves_ ? halves_->bytes() : 0) + host_bytes_;
  }
  // Of them, tables that do not fit on a GPU: they lie in the host's memory, where kernels read and
  // write them.
  size_t host_bytes() const { return host_bytes_; }
  size_t mapped_bytes() const { return mapped_bytes_; }
  size_t gradient_bytes() const { return grads_ ? grads_->bytes() : 0; }

 private:
  size_t index_of(const std::string& name) const;
  void make_squares();
  // Whoever wrote the gradient left no squares.
  void drop_squares(size_t index);
  // The tensor's bytes in the file, or null if they cannot be used as they are.
  void* find_mapped(const ParameterSpec& spec) const;
  void require_writable(size_t index) const;
  // Takes memory of the host for the tables if the GPU has no room for `all` that is wanted of it.
  void place_tables(size_t bytes, size_t all);

  Device device_;
  std::shared_ptr<const SafeTensors> file_;
  Pool pool_;
  std::vector<ParameterSpec> specs_;
  std::vector<Tensor> tensors_;
  std::vector<View> stored_;
  std::vector<bool> mapped_;  // by index
  std::vector<uint64_t> rounded_from_;
  size_t mapped_bytes_ = 0;
  bool tables_lent_ = false;
  std::map<std::string, size_t> index_;
  std::shared_ptr<Block> values_, halves_, grads_, sums_;
  std::vector<double*> squares_;  // by index, in sums_ or null
  std::shared_ptr<void> tables_;  // in the host's memory
  size_t host_bytes_ = 0;
};

}  // namespace fwpkm
