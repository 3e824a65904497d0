// The list of all ops, each with the cases that check, grade and time it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace fwpkm {

// How an input of a case is drawn.
enum class Draw : uint8_t {
  kNormal,  // standard normal
  kSmall,   // normal, standard deviation 0.1
  kUnit,    // uniform in [0.05, 0.95]
  kDecay,   // uniform in [-1, 0]
  kWhole,   // -1, 0 or 1
  kIndex,   // integer in 0..limit-1
  kLabel,   // integer in -1..limit-1 (-1: no label)
};

struct InputSpec {
  const char* name;
  Shape shape;  // rank 0: an optional input that is left out
  Draw draw = Draw::kNormal;
  int64_t limit = 0;       // for kIndex and kLabel
  bool grad = true;        // float inputs only: check the gradient
  bool half_grad = false;  // of a weight of 16 bits: the gradient has no more
};

// One case: inputs to draw and a call of the op. `build` returns the outputs to compare.
struct Case {
  std::string name;  // unique within the op: "rows=63,width=65"
  std::vector<InputSpec> inputs;
  std::function<std::vector<Tensor>(Run&, const std::vector<Tensor>&)> build;
  bool perf = false;        // large: timed, and checked only against float
  double flops = 0;         // of one forward, for timing
  double bytes = 0;         // least bytes that one forward moves
  double budget = 4.0;      // the kernel's error may be this many times the plain float code's
  double grad_step = 1e-5;  // of central differences
  double grad_tolerance = 1e-6;
};

// Where the documents of packed rows begin, [batch, time]: their lengths repeat 1, 5, 2, 60, from
// row to row from another one on.
std::vector<int32_t> packed_starts(int64_t batch, int64_t time);

struct OpInfo {
  const Op* op;
  std::vector<Case> (*cases)();
  // Names of its cases' inputs, between spaces, that are not 16 bits wide where activations are:
  const char* wide = "";
  // and of those that are, but whose gradients are not, because they are weights.
  const char* weights = "";
};

std::span<const OpInfo> all_ops();

}  // namespace fwpkm
