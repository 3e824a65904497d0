// RMSNorm in single precision inside a double run, operation by operation as PyTorch's eager code
// does it. The released code computes the norm of PKM's queries so whatever the model's type is;
// golden numbers made with it in double carry its rounding, so that only the same rounding meets
// them to 1e-9. Used by `compat: official` on the reference device; nothing else needs it.
#pragma once

#include <cmath>
#include <vector>

namespace fwpkm {

// The order in which PyTorch adds a row of floats: vectors of 8 into 4 partial sums, these into
// one, the ragged end first of all, then the 8 lanes.
inline float pytorch_row_sum(const std::vector<float>& x) {
  constexpr size_t kLanes = 8, kPartials = 4;
  const size_t vectors = x.size() / kLanes;
  float sums[kPartials][kLanes] = {};
  for (size_t v = 0; v < vectors; ++v) {
    const bool ragged = v >= vectors / kPartials * kPartials;
    for (size_t l = 0; l < kLanes; ++l) {
      sums[ragged ? 0 : v % kPartials][l] += x[v * kLanes + l];
    }
  }
  float total = 0;
  for (size_t i = vectors * kLanes; i < x.size(); ++i) {
    total += x[i];
  }
  for (size_t l = 0; l < kLanes; ++l) {
    total += ((sums[0][l] + sums[1][l]) + sums[2][l]) + sums[3][l];
  }
  return total;
}

// One row: y = w * double(float(x) * r). Returns r.
inline float rms_norm_single_row(const double* x, const double* w, size_t width, double eps,
                                 double* y) {
  std::vector<float> single(x, x + width), squares(width);
  for (size_t i = 0; i < width; ++i) {
    squares[i] = single[i] * single[i];
  }
  const float variance = pytorch_row_sum(squares) / static_cast<float>(width);
  const float r = 1.0f / std::sqrt(variance + static_cast<float>(eps));
  for (size_t i = 0; i < width; ++i) {
    y[i] = w[i] * static_cast<double>(single[i] * r);
  }
  return r;
}

// Backward of one row: the input's gradient into dx, the weight's added to dw where wanted.
inline void rms_norm_single_row_backward(const double* x, const double* w, const double* dy,
                                         float r, size_t width, double* dx, double* dw) {
  std::vector<float> single(x, x + width), grad(width), products(width);
  for (size_t i = 0; i < width; ++i) {
    grad[i] = static_cast<float>(dy[i] * w[i]);
    products[i] = grad[i] * single[i];
    if (dw != nullptr) {
      dw[i] += dy[i] * static_cast<double>(single[i] * r);
    }
  }
  const float dr = pytorch_row_sum(products);
  const float dvariance = (-0.5f * dr) * (r * r * r);
  const float each = dvariance / static_cast<float>(width);
  for (size_t i = 0; i < width; ++i) {
    dx[i] = static_cast<double>(grad[i] * r + each * (2.0f * single[i]));
  }
}

}  // namespace fwpkm
