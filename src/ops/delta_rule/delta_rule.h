// The gated delta rule: a matrix of fast weights S [dk, dv] per value head, corrected token by
// token towards S^T k = v. With qn = q / sqrt(|q|^2 + eps) / sqrt(dk), kn = k / sqrt(|k|^2 + eps):
//
//   S = exp(g_t) S,   u = beta_t (v_t - S^T kn_t),   S = S + kn_t u^T,   o_t = S^T qn_t
//
// The chunk-parallel form that training uses, and its backward, are derived in README.md.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

// Tokens that are worked on at once. The state at the start of every chunk is saved for backward.
// A power of two from 16 on; README.md says why it is 32.
inline constexpr int64_t kDeltaChunk = 32;
// The same for the kernels in bf16 (tensor.cuh); 32 or 64.
inline constexpr int64_t kDeltaTensorChunk = 64;
inline constexpr double kDeltaEps = 1e-6;

inline int64_t delta_chunk(DType real) {
  return real == DType::kBF16 ? kDeltaTensorChunk : kDeltaChunk;
}
// Heads of the kernels in bf16 are filled up with zeros to whole tiles: 64 or 128 numbers.
inline constexpr int64_t kDeltaTensorWidth = 64;
inline int64_t delta_padded(int64_t width) {
  return (width + kDeltaTensorWidth - 1) / kDeltaTensorWidth * kDeltaTensorWidth;
}

// q, k [B, T, Hk, dk] and v [B, T, Hv, dv] may be strided (last stride 1), so that they can be
// parts of one tensor; g [B, T, Hv] (log of the decay, <= 0) and beta [B, T, Hv] (in 0..1) are
// contiguous. Hv is a multiple of Hk; value head h goes with key head h / (Hv / Hk).
// -> o [B, T, Hv, dv] contiguous.
// `state` [B, Hv, dk, dv] is where S starts and is overwritten with the last S; without it S starts
// at zero. No gradient flows into it.
Tensor delta_rule(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                  const Tensor& beta, const Tensor& state = {});

// The sizes of a call, from its inputs (in: q, k, v, g, beta).
struct DeltaSizes {
  int64_t batch, length, key_heads, value_heads, dk, dv;
  int64_t group;   // value heads per key head
  int64_t chunks;  // of delta_chunk tokens, the last one may be shorter

  explicit DeltaSizes(const OpArgs& args)
      : batch(args.in[0].dim(0)),
        length(args.in[0].dim(1)),
        key_heads(args.in[0].dim(2)),
        value_heads(args.in[2].dim(2)),
        dk(args.in[0].dim(3)),
        dv(args.in[2].dim(3)),
        group(value_heads / key_heads),
        chunks((length + delta_chunk(args.in[0].dtype) - 1) / delta_chunk(args.in[0].dtype)) {}

  int64_t matrix() const { return dk * dv; }
  // Offset of (b, t, value head h) in g, beta and their gradients.
  int64_t at(int64_t b, int64_t t, int64_t h) const { return (b * length + t) * value_heads + h; }
  // Offset of a matrix in `state`, and of a chunk's start in the saved states
  // [B, Hv, chunks, dk, dv]. In bf16 these are made otherwise (tensor.cuh).
  int64_t state_at(int64_t b, int64_t h) const { return (b * value_heads + h) * matrix(); }
  int64_t saved_at(int64_t b, int64_t h, int64_t chunk) const {
    return ((b * value_heads + h) * chunks + chunk) * matrix();
  }
};

// Element (b, t, h, 0) of a view [B, T, H, d].
template <typename T>
T* delta_row(const View& view, int64_t b, int64_t t, int64_t h) {
  return view.ptr<T>() + b * view.strides[0] + t * view.strides[1] + h * view.strides[2];
}

extern const Op kDeltaRule;
std::vector<struct Case> delta_rule_cases();
void delta_rule_forward_cpu(const OpArgs& args);
void delta_rule_backward_cpu(const OpArgs& args);
size_t delta_rule_workspace_cpu(const OpArgs& args, bool backward);
void delta_rule_forward_cuda(const OpArgs& args);
void delta_rule_backward_cuda(const OpArgs& args);
size_t delta_rule_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
