#include "ops/fast_mlp/fast_mlp.h"

#include "ops/fast_mlp/reference.h"

namespace fwpkm {

const Op kFastMlp = {
    .name = "fast_mlp",
    .reference_f64 = {&fast_mlp_forward_reference<double>, &fast_mlp_backward_reference<double>},
    .reference_f32 = {&fast_mlp_forward_reference<float>, &fast_mlp_backward_reference<float>},
    .cpu = {&fast_mlp_forward_cpu, &fast_mlp_backward_cpu, &fast_mlp_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&fast_mlp_forward_cuda, &fast_mlp_backward_cuda,
                               &fast_mlp_workspace_cuda),
};

namespace {

// The same memory, kept alive, without a gradient.
Tensor detached(const Tensor& t) {
  Tensor constant = Tensor::constant(t.view());
  constant.node()->storage = t.node()->storage;
  return constant;
}

}  // namespace

FastMlpResult fast_mlp(Run& run, const Tensor& q, const Tensor& v,
                       const std::array<Tensor, 6>& weights, const FastMlpSettings& settings) {
  const char* tag = kFastMlp.name;
  require(settings.chunk >= 1 && settings.lookahead >= 0 && settings.bptt_chunks >= 0, tag,
          "needs chunk >= 1, lookahead >= 0 and bptt_chunks >= 0, but chunk={}, lookahead={}, "
          "bptt_chunks={}",
          settings.chunk, settings.lookahead, settings.bptt_chunks);
  require(q && q.view().rank() == 3 && q.view().contiguous() && q.view().size() > 0, tag,
          "q must be contiguous [B, T, dk] and not empty, not {}", q ? q.shape().str() : "missing");
  const int64_t batch = q.dim(0), length = q.dim(1), dk = q.dim(2);
  require(
      weights[1] && weights[5] && weights[1].view().rank() == 2 && weights[5].view().rank() == 2,
      tag, "b_up must be [R, h] and b_down [R, dv]");
  const int64_t sets = weights[1].dim(0), hidden = weights[1].dim(1), dv = weights[5].dim(1);
  require(sets == 1 || sets == batch, tag,
          "there are {} sets of weights for {} rows; there must be 1 or one for each row", sets,
          batch);
  const Shape shapes[] = {{sets, hidden, dk}, {sets, hidden},     {sets, hidden, dk},
                          {sets, hidden},     {sets, dv, hidden}, {sets, dv}};
  constexpr const char* kNames[] = {"fast_mlp.w_up",   "fast_mlp.b_up",   "fast_mlp.w_gate",
                                    "fast_mlp.b_gate", "fast_mlp.w_down", "fast_mlp.b_down"};
  std::vector<Tensor> in = {q, settings.write ? v : Tensor()};
  std::vector<View> views;
  for (int i = 0; i < 6; ++i) {
    require(weights[i] && weights[i].shape() == shapes[i] && weights[i].view().contiguous(), tag,
            "{} must be contiguous {}, not {}", kNames[i], shapes[i].str(),
            weights[i] ? weights[i].shape().str() : "missing");
    in.push_back(detached(weights[i]));
    views.push_back(weights[i].view());
  }
  const Shape values = {batch, length, dv};
  require(!settings.write || (v && v.shape() == values && v.view().contiguous()), tag,
          "v must be contiguous {}, not {}", values.str(), v ? v.shape().str() : "missing");

  FastMlpResult result;
  result.output = run.make("fast_mlp.vhat", values);
  result.losses = run.make("fast_mlp.losses", {batch, length}, run.wide());
  std::vector<Tensor> out = {result.output, result.losses};
  for (int i = 0; i < 6 && settings.write; ++i) {
    result.after[i] = run.make(kNames[i], shapes[i], run.wide());
    out.push_back(result.after[i]);
  }
  const FastMlpSizes s(settings, q.view(), views);
  Tensor saved;
  if (s.versions > 0) {
    saved = run.make_saved("fast_mlp.versions", {s.versions, sets, s.packed});
  }
  run.call(kFastMlp, std::move(in), out, {saved}, settings);
  for (size_t i = 1; i < out.size(); ++i) {
    out[i].node()->wants_grad = false;
  }
  return result;
}

}  // namespace fwpkm
