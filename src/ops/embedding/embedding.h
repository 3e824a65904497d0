// Rows of a table by number.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// ids [..] int32 in 0..V-1 (checked by whoever reads them in), table [V, D] -> y [.., D].
// Backward adds dy into the rows of the table, tokens in order.
Tensor embedding(Run& run, const Tensor& ids, const Tensor& table);

extern const Op kEmbedding;
std::vector<struct Case> embedding_cases();
void embedding_forward_cpu(const OpArgs& args);
void embedding_backward_cpu(const OpArgs& args);
void embedding_forward_cuda(const OpArgs& args);
void embedding_backward_cuda(const OpArgs& args);
size_t embedding_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
