// Runs the cases of every op: kernel against reference, gradients against differences, timing.
#pragma once

#include <string>
#include <vector>

#include "ops/registry.h"

namespace fwpkm {

// The outcome of one case on one device.
struct CheckResult {
  std::string op;
  std::string name;
  std::string kind;  // "values", "grad" or "perf"
  bool ok = true;
  double error = 0;    // worst error found, relative to the largest value
  double limit = 0;    // what it was allowed to be
  std::string detail;  // which tensor was worst, or what was thrown
  double forward_ms = 0;
  double backward_ms = 0;
  double gflops = 0;
  double gbps = 0;
};

struct CheckOptions {
  std::string op;    // empty: all
  std::string only;  // empty: all; else only the case of this name
  Device device = Device::cpu();
  uint64_t seed = 1;
};

// Values and gradients of the device's kernels against the reference in double. The error allowed
// is the case's budget times the error of the plain float code.
std::vector<CheckResult> check_values(const CheckOptions& options);
// Gradients of the reference in double against central differences, in three random directions
// per input.
std::vector<CheckResult> check_gradients(const CheckOptions& options);
// Times the cases marked `perf` of every op whose other cases pass check_values.
std::vector<CheckResult> check_speed(const CheckOptions& options);

// The support table: which op has kernels where, as Markdown.
std::string support_table();

}  // namespace fwpkm
