// The tied output layer and its cross-entropy in one op.
//
//   logits = h E^T,  nll_t = logsumexp(logits_t) - logits_t[label_t],  loss = mean of nll
//
// With a tape the logits of all tokens are held once and turned into their gradient in place;
// without one only a block of rows exists at a time.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct LmLoss {
  Tensor loss;  // [1], mean over the tokens that have a label; 0 if none has
  Tensor nll;   // [..], per token, 0 without a label; carries no gradient
};

// h [.., D], table [V, D], labels [..] int32, -1 for none.
LmLoss lm_loss(Run& run, const Tensor& h, const Tensor& table, const Tensor& labels);

extern const Op kLmLoss;
std::vector<struct Case> lm_loss_cases();
void lm_loss_forward_cpu(const OpArgs& args);
void lm_loss_backward_cpu(const OpArgs& args);
size_t lm_loss_workspace_cpu(const OpArgs& args, bool backward);
void lm_loss_forward_cuda(const OpArgs& args);
void lm_loss_backward_cuda(const OpArgs& args);
size_t lm_loss_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
