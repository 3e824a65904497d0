#include "ops/lact/lact.h"

#include "ops/lact/reference.h"

namespace fwpkm {

const Op kLact = {
    .name = "lact",
    .reference_f64 = {&lact_forward_reference<double>, &lact_backward_reference<double>},
    .reference_f32 = {&lact_forward_reference<float>, &lact_backward_reference<float>},
    .cpu = {&lact_forward_cpu, &lact_backward_cpu, &lact_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&lact_forward_cuda, &lact_backward_cuda, &lact_workspace_cuda),
};

LactState LactState::make(Run& run, int64_t batch, int64_t heads, int64_t width, int64_t chunk) {
  LactState state;
  state.weights = run.make_kept("state.lact.weights", {batch, heads, 3, width, width}, run.wide());
  state.momentum =
      run.make_kept("state.lact.momentum", {batch, heads, 3, width, width}, run.wide());
  state.norms = run.make_kept("state.lact.norms", {batch, heads, 3, width}, run.wide());
  state.pending =
      run.make_kept("state.lact.pending", {batch, heads, chunk, 2 * width + 4}, run.wide());
  fill_zero(state.pending.view());  // all of it is saved, also where no token is yet
  return state;
}

namespace {

// [B, T, heads, features] with the features of a token next to each other.
void require_tokens_whole(const Tensor& x, const Tensor& q) {
  require(x.view().rank() == 4 && x.dim(0) == q.dim(0) && x.dim(1) == q.dim(1) &&
              x.dim(2) * x.dim(3) == q.dim(2) * q.dim(3) && x.view().stride(3) == 1 &&
              (x.dim(2) == 1 || x.view().stride(2) == x.dim(3)),
          kLact.name,
          "q, k and v must be [B, T, heads, features] of one size, the features of a token next to "
          "each other: q is {}, another {}",
          q.shape().str(), x.shape().str());
}

}  // namespace

Tensor lact(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lr,
            const Tensor& momentum, const LactWeights& start, int64_t chunk, LactState* state) {
  const char* tag = kLact.name;
  for (const Tensor* x : {&q, &k, &v}) {
    require_tokens_whole(*x, q);
  }
  // Backward writes their gradients in an order of its own.
  require(q.node() != k.node() && q.node() != v.node() && k.node() != v.node(), tag,
          "q, k and v must be three tensors");
  const int64_t batch = q.dim(0), length = q.dim(1), features = q.dim(2) * q.dim(3);
  const int64_t heads = momentum.view().rank() == 3 ? momentum.dim(2) : 0;
  require(length >= 1 && chunk >= 1, tag, "{} tokens in chunks of {} are not a sequence", length,
          chunk);
  require(heads >= 1 && features % heads == 0 &&
              momentum.shape() == Shape({batch, length, heads}) &&
              lr.shape() == Shape({batch, length, heads, 3}) && lr.view().contiguous() &&
              momentum.view().contiguous(),
          tag,
          "lr must be contiguous [B, T, H, 3] and momentum [B, T, H], with H dividing {} features: "
          "lr is {}, momentum is {}",
          features, lr.shape().str(), momentum.shape().str());
  const int64_t width = features / heads;
  const bool begins = state == nullptr || state->tokens == 0;
  for (const Tensor* w : {&start.w0, &start.w1, &start.w2}) {
    require(!begins || (*w && w->shape() == Shape({heads, width, width}) && w->view().contiguous()),
            tag, "a sequence starts with three contiguous weights [{}, {}, {}], not {}", heads,
            width, width, *w ? w->shape().str() : "none");
  }
  Tensor o = run.make("lact.o", {batch, length, heads, width});
  if (state == nullptr) {
    const int64_t updates = (length - 1) / chunk;
    Tensor saved;
    if (updates > 0) {
      saved = run.make_saved("lact.momentum", {batch * heads, updates, 3, width, width});
    }
    run.call(kLact, {q, k, v, lr, momentum, start.w0, start.w1, start.w2}, {o}, {saved},
             LactSettings{chunk, 0, true});
    return o;
  }
  for (const Tensor* x : {&q, &k, &v, &lr, &momentum, &start.w0, &start.w1, &start.w2}) {
    require(!run.recording() || !*x || !x->node()->wants_grad, tag,
            "calls with a state have no gradients");
  }
  require(
      state->weights.shape() == Shape({batch, heads, 3, width, width}) &&
          state->pending.shape() == Shape({batch, heads, chunk, 2 * width + 4}),
      tag, "the state is for weights {} and pending tokens {}, not for {} of {} and chunks of {}",
      state->weights.shape().str(), state->pending.shape().str(), batch, q.shape().str(), chunk);
  const LactWeights from = begins ? start : LactWeights();
  run.call(kLact, {q, k, v, lr, momentum, from.w0, from.w1, from.w2}, {o}, {Tensor()},
           LactSettings{chunk, state->tokens % chunk, begins},
           {state->weights, state->momentum, state->norms, state->pending});
  state->tokens += length;
  return o;
}

}  // namespace fwpkm
