// Tensors as model code sees them, and the run that executes ops on them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/op.h"
#include "tensor/pool.h"
#include "tensor/view.h"

namespace fwpkm {

class Tape;

// A node holds a value and, while the tape replays backward, its gradient.
struct Node {
  View value;
  std::shared_ptr<Block> storage;
  bool wants_grad = false;

  View grad;  // of a parameter: given by the owner; of an activation: made by the tape
  std::shared_ptr<Block> grad_storage;
  bool is_parameter = false;
  bool grad_written = false;  // there is something in it to add to

  // Set where this node is a part of another one. Parts of one node must not overlap.
  std::shared_ptr<Node> parent;
  int64_t parts_elements = 0;  // of the parent: elements that its parts cover together
  bool counted = false;        // of a part: it is in its parent's parts_elements
};

// A handle to a node; cheap to copy. A default-made one stands for "not given".
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<Node> node) : node_(std::move(node)) {}

  explicit operator bool() const { return node_ != nullptr; }
  const View& view() const { return node_->value; }
  const Shape& shape() const { return node_->value.shape; }
  int64_t dim(int i) const { return node_->value.dim(i); }
  int64_t rows() const { return node_->value.rows(); }
  Node* node() const { return node_.get(); }
  const std::shared_ptr<Node>& shared() const { return node_; }

  // A parameter: memory that the caller owns, with the place where its gradient is added up
  // (empty: no gradient).
  static Tensor parameter(const View& value, const View& grad);
  // A constant view on memory that the caller owns.
  static Tensor constant(const View& value);
  // A part of this tensor: `part` must be a window on this tensor's value. Its gradient is the
  // same window of this tensor's gradient. Parts of one tensor must not overlap.
  Tensor part(const View& part) const;
  // All of this tensor under another shape.
  Tensor reshape(const Shape& shape) const;
  // Whether this is the only handle on its memory, so that it may be changed in place.
  bool sole() const;

 private:
  std::shared_ptr<Node> node_;
};

// Receives named tensors while a model runs.
using Trace = std::function<void(const std::string& name, const Tensor& value)>;

// Executes ops on a device. With a tape, calls are recorded so that backward can be replayed;
// without one nothing is saved and memory goes back to the pool as soon as handles are gone.
class Run {
 public:
  explicit Run(Pool& pool, Tape* tape = nullptr) : pool_(pool), tape_(tape) {}

  Device device() const { return pool_.device(); }
  Pool& pool() const { return pool_; }
  Tape* tape() const { return tape_; }
  bool recording() const { return tape_ != nullptr; }

  // The type of numbers that stay exact where activations do not (Device::wide).
  DType wide() const { return device().wide(); }

  // New memory of the device's float type; contents undefined.
  Tensor make(const char* name, const Shape& shape);
  Tensor make(const char* name, const Shape& shape, DType dtype);
  // Like make, for what outlives the run's pool (Pool::allocate_kept).
  Tensor make_kept(const char* name, const Shape& shape, DType dtype);
  // A copy of that kind.
  Tensor keep(const View& view);
  // Like make, of the type `wide`, but empty when nothing is recorded: for what only backward
  // needs.
  Tensor make_saved(const char* name, const Shape& shape);
  // Copies host numbers to the device, as `wide` or the type given.
  Tensor from_host(const char* name, const Shape& shape, std::span<const double> values);
  Tensor from_host(const char* name, const Shape& shape, std::span<const double> values,
                   DType dtype);
  Tensor from_host(const char* name, const Shape& shape, std::span<const int32_t> values);

  // Runs `op` forward and records the call. Outputs and saved tensors may be empty handles.
  void call(const Op& op, std::vector<Tensor> in, std::vector<Tensor> out,
            std::vector<Tensor> saved = {}, Attributes attributes = {},
            std::vector<Tensor> state = {});

  Trace trace;  // called with named values if set

 private:
  Pool& pool_;
  Tape* tape_;
};

// The values of a tensor as doubles, whatever its device, type and strides.
std::vector<double> to_host(const View& view);
// The numbers of a contiguous int32 view.
std::vector<int32_t> ints_to_host(const View& view);
// Fills a view of any float type.
void copy_from_host(const View& view, std::span<const double> values);
void fill_zero(const View& view);
// Lets `fill` write a contiguous view in memory of the host, all of it: the view itself where it
// lies there, else a copy that goes to the device afterwards.
void fill_on_host(const View& to, const std::function<void(const View& host)>& fill);
// The same for reading.
void read_on_host(const View& from, const std::function<void(const View& host)>& read);
// Copies between views of one shape, type and device, whatever their strides.
void copy_view(const View& from, const View& to);

}  // namespace fwpkm
