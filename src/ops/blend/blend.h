// y = g a + (1 - g) b with one gate per token, or y = a + b without gates.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// a, b [B, T, D] (rows may be strided), g [B, T] contiguous or an empty handle -> y [B, T, D]
// contiguous. Saves nothing.
// Backward: da = g dy, db = (1 - g) dy, dg = sum over features of dy (a - b). Without g both da and
// db are dy.
Tensor blend(Run& run, const Tensor& a, const Tensor& b, const Tensor& g);

extern const Op kBlend;
std::vector<struct Case> blend_cases();
void blend_forward_cpu(const OpArgs& args);
void blend_backward_cpu(const OpArgs& args);
void blend_forward_cuda(const OpArgs& args);
void blend_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
