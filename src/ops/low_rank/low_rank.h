// W = left right + diagonal I for each head: a matrix of few parameters.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct LowRankSettings {
  double diagonal;
};

// left [H, N, R], right [H, R, N], contiguous -> W [H, N, N].
// Backward: dleft = dW right^T, dright = left^T dW.
Tensor low_rank(Run& run, const Tensor& left, const Tensor& right, double diagonal);

extern const Op kLowRank;
std::vector<struct Case> low_rank_cases();
void low_rank_forward_cpu(const OpArgs& args);
void low_rank_backward_cpu(const OpArgs& args);
void low_rank_forward_cuda(const OpArgs& args);
void low_rank_backward_cuda(const OpArgs& args);

}  // namespace fwpkm
