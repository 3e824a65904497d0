// How fast LaCT's fast weights learn, from projections of the token.
//
//   lr = softplus(x + softplus^-1(base)),   momentum = sigmoid(y)
//
// so that a projection of zero gives the base rate.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct LactRatesSettings {
  double shift;  // softplus^-1(base)
};

struct LactRates {
  Tensor lr;        // [B, T, H, 3], of W0, W1 and W2
  Tensor momentum;  // [B, T, H], in (0, 1)
};

// x [B, T, 3 H]: per head those of W0, W1 and W2. y [B, T, H]. Both contiguous; base > 0.
LactRates lact_rates(Run& run, const Tensor& x, const Tensor& y, double base);

extern const Op kLactRates;
std::vector<struct Case> lact_rates_cases();
void lact_rates_forward_cpu(const OpArgs& args);
void lact_rates_backward_cpu(const OpArgs& args);
void lact_rates_forward_cuda(const OpArgs& args);
void lact_rates_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
