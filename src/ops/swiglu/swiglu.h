// y = silu(gate) * up, with silu(x) = x sigmoid(x).
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// gate [.., D], up [.., D], both contiguous -> y [.., D].
Tensor swiglu(Run& run, const Tensor& gate, const Tensor& up);

extern const Op kSwiglu;
std::vector<struct Case> swiglu_cases();
void swiglu_forward_cpu(const OpArgs& args);
void swiglu_backward_cpu(const OpArgs& args);
void swiglu_forward_cuda(const OpArgs& args);
void swiglu_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
