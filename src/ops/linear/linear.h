// y = x W^T (+ b) (+ residual): every projection of the models.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// x [.., K] contiguous, w [N, K], b [N] or none, residual [.., N] or none -> y [.., N].
// Backward: dx = dy W, dW = dy^T x, db = column sums of dy, dresidual = dy (shared where possible).
Tensor linear(Run& run, const Tensor& x, const Tensor& w, const Tensor& b = {},
              const Tensor& residual = {});

extern const Op kLinear;
std::vector<struct Case> linear_cases();
void linear_forward_cpu(const OpArgs& args);
void linear_backward_cpu(const OpArgs& args);
void linear_forward_cuda(const OpArgs& args);
void linear_backward_cuda(const OpArgs& args);
size_t linear_workspace_cuda(const OpArgs& args, bool backward);

// Up to this many rows a product is a walk over the weights, bound by memory: each weight row is
// read once for all of them.
inline constexpr int64_t kFewRows = 4;

}  // namespace fwpkm
