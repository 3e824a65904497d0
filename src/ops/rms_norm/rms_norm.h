// y = x * rsqrt(mean(x^2) + eps) * (offset + w), over the last dimension.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct RmsNormSettings {
  double eps = 1e-5;
  double offset = 1.0;  // 1: weights start at 0; 0: a plain weight
  // On the reference device work in single precision, rounding as the released code does
  // (single.h); only with offset 0. Other devices are in single precision anyway.
  bool single = false;
};

// x [.., D] (rows may be strided), w [D] -> y [.., D] contiguous. Saves 1/rms of each row.
Tensor rms_norm(Run& run, const Tensor& x, const Tensor& w, RmsNormSettings settings);

extern const Op kRmsNorm;
std::vector<struct Case> rms_norm_cases();
void rms_norm_forward_cpu(const OpArgs& args);
void rms_norm_backward_cpu(const OpArgs& args);
size_t rms_norm_workspace_cpu(const OpArgs& args, bool backward);
void rms_norm_forward_cuda(const OpArgs& args);
void rms_norm_backward_cuda(const OpArgs& args);
size_t rms_norm_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
