#include "ops/delta_rule/delta_rule.h"

#include "ops/delta_rule/reference.h"

namespace fwpkm {
namespace {

// S at the start of every chunk. The kernels in bf16 keep it as they multiply with it: rounded,
// transposed and filled up with zeros.
Tensor make_states(Run& run, int64_t batch, int64_t length, int64_t heads, int64_t dk, int64_t dv) {
  const DType real = run.device().real;
  const char* name = "delta_rule.states";
  const int64_t chunks = (length + delta_chunk(real) - 1) / delta_chunk(real);
  if (real != DType::kBF16) {
    return run.make_saved(name, {batch, heads, chunks, dk, dv});
  }
  return run.recording()
             ? run.make(name, {batch, heads, chunks, delta_padded(dv), delta_padded(dk)}, real)
             : Tensor();
}

}  // namespace

const Op kDeltaRule = {
    .name = "delta_rule",
    .reference_f64 = {&delta_rule_forward_reference<double>,
                      &delta_rule_backward_reference<double>},
    .reference_f32 = {&delta_rule_forward_reference<float>, &delta_rule_backward_reference<float>},
    .cpu = {&delta_rule_forward_cpu, &delta_rule_backward_cpu, &delta_rule_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&delta_rule_forward_cuda, &delta_rule_backward_cuda,
                               &delta_rule_workspace_cuda),
};

Tensor delta_rule(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                  const Tensor& beta, const Tensor& state) {
  const char* tag = kDeltaRule.name;
  require(q.view().rank() == 4 && q.shape() == k.shape(), tag,
          "q and k must both be [B, T, Hk, dk]: q is {}, k is {}", q.shape().str(),
          k.shape().str());
  const int64_t batch = q.dim(0), length = q.dim(1), dk = q.dim(3);
  require(
      v.view().rank() == 4 && v.dim(0) == batch && v.dim(1) == length && v.dim(2) % q.dim(2) == 0,
      tag, "v must be [B, T, Hv, dv] with Hv a multiple of Hk: v is {}, q is {}", v.shape().str(),
      q.shape().str());
  const int64_t heads = v.dim(2), dv = v.dim(3);
  require(q.view().stride(-1) == 1 && k.view().stride(-1) == 1 && v.view().stride(-1) == 1, tag,
          "the last dimension of q, k and v must be contiguous");
  const Shape per_head = {batch, length, heads};
  require(g.shape() == per_head && beta.shape() == per_head && g.view().contiguous() &&
              beta.view().contiguous(),
          tag, "g and beta must be contiguous {}: g is {}, beta is {}", per_head.str(),
          g.shape().str(), beta.shape().str());
  const Shape matrices = {batch, heads, dk, dv};
  require(!state || (state.shape() == matrices && state.view().contiguous()), tag,
          "the state must be contiguous {}, not {}", matrices.str(),
          state ? state.shape().str() : "");
  Tensor o = run.make("delta_rule.o", {batch, length, heads, dv});
  run.call(kDeltaRule, {q, k, v, g, beta}, {o}, {make_states(run, batch, length, heads, dk, dv)},
           {}, {state});
  return o;
}

}  // namespace fwpkm
