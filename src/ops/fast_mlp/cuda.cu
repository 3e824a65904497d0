// Products by cuBLAS over all rows of a chunk, with kernels between them. Weights are kept in
// float; products take copies, which in bf16 mode are rounded.
#include "ops/fast_mlp/cuda.cuh"

namespace fwpkm {
namespace {

template <typename T, typename Real>
void forward_span(const OpArgs& args, const FastMlpSizes& s,
                  const FastMlpForwardBuffers<Real>& buffers, const FastMlpSpan& span) {
  const FastMlpStack stack(s);
  const int64_t h = s.hidden, m = span.height();
  const bool writes = span.writers > 0;
  const auto up_gate = stack.up_gate_of(buffers.matrices, span.set);
  const auto down = stack.down_of(buffers.matrices, span.set);
  const auto q = span.matrices(buffers.q, s.dk), a = span.matrices(buffers.a, h);
  fast_mlp_gather(s, span, args.in[0].ptr<T>(), s.dk, buffers.q);
  fast_product(span.sets, {.transpose_b = true}, q, up_gate, buffers.up_gate, m * 2 * h);
  fast_mlp_hidden(s, span, buffers.biases, writes, buffers.up_gate, buffers.a);
  fast_product(span.sets, {.transpose_b = true}, a, down, buffers.y, m * s.dv);
  // With -lr in p, every product below is a part of the step.
  const auto scale =
      writes ? static_cast<float>(-s.set.lr * s.error_scale(span.begin / s.set.chunk)) : 0.0f;
  fast_mlp_errors<T>(args, s, span, buffers.y, buffers.biases, scale, writes ? buffers.p : nullptr);
  if (!writes) {
    return;
  }
  const auto p = span.matrices(buffers.p, s.dv);
  fast_product(span.sets, {}, p, down, buffers.da, m * h);
  fast_mlp_through_hidden(s, span, buffers.da, buffers.up_gate, nullptr, buffers.dup_gate);
  float* step = buffers.steps + span.set * stack.matrix;
  const FastProduct outer = {.transpose_a = true, .add = span.follows()};
  fast_product(span.sets, outer, span.matrices(buffers.dup_gate, 2 * h), q, step, stack.matrix);
  fast_product(span.sets, outer, p, a, step + stack.down, stack.matrix);
  fast_mlp_column_sums(s, span, buffers.dup_gate, buffers.p, buffers.parts, span.follows(),
                       buffers.bias_steps);
}

template <typename T, typename Real>
void forward(const OpArgs& args) {
  const FastMlpSizes s(args);
  const FastMlpForwardBuffers<Real> buffers(args, s);
  FastMlpMasters w = FastMlpMasters::of(args.in.subspan(2), s), after;
  if (s.set.write) {
    after = FastMlpMasters::of(args.out.subspan(2), s);
  }
  fast_mlp_load(s, w, nullptr, nullptr, {}, buffers.matrices, buffers.biases);
  for (int64_t c = 0; c < s.chunks; ++c) {
    for_fast_mlp_spans(
        s, c, [&](const FastMlpSpan& span) { forward_span<T, Real>(args, s, buffers, span); });
    if (c < s.writes) {
      const bool last = c + 1 == s.chunks;  // nobody reads these
      const FastMlpMasters to =
          args.saved[0] && c < s.versions ? FastMlpMasters::version(args, s, c) : after;
      fast_mlp_load(s, w, buffers.steps, buffers.bias_steps, to, last ? nullptr : buffers.matrices,
                    last ? nullptr : buffers.biases);
      w = to;
    }
  }
  if (s.set.write && w.at[0] != after.at[0]) {
    fast_mlp_load<Real>(s, w, nullptr, nullptr, after, nullptr, nullptr);
  }
}

}  // namespace

void fast_mlp_forward_cuda(const OpArgs& args) {
  with_fast_mlp_types(args, [&]<typename T, typename Real>(T*, Real*) { forward<T, Real>(args); });
}

size_t fast_mlp_workspace_cuda(const OpArgs& args, bool backward) {
  const FastMlpSizes s(args);
  OpArgs counted = args;
  counted.workspace = nullptr;
  size_t bytes = 0;
  with_fast_mlp_types(args, [&]<typename T, typename Real>(T*, Real*) {
    bytes = backward ? FastMlpBackwardBuffers<Real>(counted, s).bytes
                     : FastMlpForwardBuffers<Real>(counted, s).bytes;
  });
  return bytes;
}

}  // namespace fwpkm
