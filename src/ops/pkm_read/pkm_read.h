// The read of the slow product-key memory ("Memory+" form).
//
// Each head's query has two halves, one for each of the two codebooks of n sub-keys. The k best
// sub-keys of both codebooks by dot product make k*k slots; the k slots of the highest score sums
// are read: y = sum over heads and slots of softmax(score) * value. The softmax is per head.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

struct PkmSettings {
  int64_t heads = 1;      // H
  int64_t topk = 8;       // k, slots read by each head
  int64_t n_subkeys = 2;  // n, sub-keys in a codebook; there are n*n slots
  // On a GPU, kPkmSquares numbers or null: backward leaves sums of squares of the values' gradient
  // there, so that its norm need not read it again. First how many there are; none if the gradient
  // was added to.
  double* squares = nullptr;
};
inline constexpr int64_t kPkmSquares = 1 + (int64_t{1} << 15);
// On a GPU forward saves its reads sorted by slot, with all that sorting takes: how many int32 that
// is, at least what RowSumPlan takes of its list (pkm_list asks).
constexpr int64_t pkm_list_size(int64_t reads) {
  return (21 * reads + (int64_t{1} << 17)) / 4 + 1;
}

struct PkmRead {
  Tensor output;  // [M, dv]
  Tensor slots;  // [M, H*k] int32; each head's by falling score, of equal ones the lower slot first
  Tensor weights;  // [M, H*k], of the slots; a head's sum to 1
};

// q [M, H*dk] or [.., H, dk], keys [H*2*n, dk/2] (by head, codebook, sub-key), values [n*n, dv];
// all contiguous. Slot i*n + j belongs to sub-key i of codebook 0 and j of codebook 1. Gradients
// flow from the output to q, keys and values; slots and weights carry none.
PkmRead pkm_read(Run& run, const Tensor& q, const Tensor& keys, const Tensor& values,
                 PkmSettings settings);

extern const Op kPkmRead;
std::vector<struct Case> pkm_read_cases();
void pkm_read_forward_cpu(const OpArgs& args);
void pkm_read_backward_cpu(const OpArgs& args);
size_t pkm_read_workspace_cpu(const OpArgs& args, bool backward);
void pkm_read_forward_cuda(const OpArgs& args);
void pkm_read_backward_cuda(const OpArgs& args);
size_t pkm_read_workspace_cuda(const OpArgs& args, bool backward);

// The sizes of a call.
struct PkmSizes {
  explicit PkmSizes(const OpArgs& args) {
    const auto s = args.attr<PkmSettings>();
    heads = s.heads;
    k = s.topk;
    n = s.n_subkeys;
    half = args.in[1].dim(1);
    dv = args.in[2].dim(1);
    row = heads * 2 * half;
    tokens = args.in[0].shape.size() / row;
    reads = heads * k;
  }
  int64_t heads, k, n;
  int64_t tokens;  // M
  int64_t half;    // dk/2
  int64_t row;     // H*dk, elements from a token's query to the next
  int64_t dv;
  int64_t reads;  // H*k, slots that a token reads
};

}  // namespace fwpkm
