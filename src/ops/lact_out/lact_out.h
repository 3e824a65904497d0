// What LaCT's fast weights add to its attention: y = a + x * rsqrt(mean(x^2) + eps) * w * silu(s),
// with one s for each head of a token.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct LactOutSettings {
  double eps;
};

// a: as many elements as x, in any shape; x [B, T, H, D], w [D], s [B, T, H]; all contiguous.
// -> y of a's shape. Saves 1/rms of each row.
//
// Backward: with r = 1/rms, xhat = x r, f = silu(s):  da = dy (shared where possible),
//   dx = r f (dy w - xhat mean(dy w xhat)),   dw = sum over rows of f dy xhat,
//   ds = silu'(s) sum(dy w xhat).
Tensor lact_out(Run& run, const Tensor& a, const Tensor& x, const Tensor& w, const Tensor& s,
                double eps);

extern const Op kLactOut;
std::vector<struct Case> lact_out_cases();
void lact_out_forward_cpu(const OpArgs& args);
void lact_out_backward_cpu(const OpArgs& args);
size_t lact_out_workspace_cpu(const OpArgs& args, bool backward);
void lact_out_forward_cuda(const OpArgs& args);
void lact_out_backward_cuda(const OpArgs& args);
size_t lact_out_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
