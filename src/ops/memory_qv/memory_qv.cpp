#include "ops/memory_qv/memory_qv.h"

#include "ops/linear/linear.h"
#include "ops/z_score/z_score.h"

namespace fwpkm {
namespace {

// Whether the one op is worth it and can do it. Without a tape there is no backward, which has most
// of what it saves, and a few rows would pay for new weights at every call.
bool in_one(const Run& run, const Tensor& x, const MemoryProjection& q, const MemoryProjection& v) {
  const auto in_runs = [](int64_t width) { return width % 8 == 0 && width > 0 && width <= 2048; };
  return run.recording() && run.device().kind == DeviceKind::kCuda &&
         run.device().real == DType::kBF16 && x.view().contiguous() && x.rows() > 0 &&
         in_runs(x.dim(-1)) && in_runs(q.weight.dim(0)) && q.weight.dim(0) == v.weight.dim(0);
}

}  // namespace

const Op kMemoryQv = {
    .name = "memory_qv",
    .reference_f64 = {},
    .reference_f32 = {},
    .cpu = {},
    .cuda = FWPKM_CUDA_KERNELS(&memory_qv_forward_cuda, &memory_qv_backward_cuda,
                               &memory_qv_workspace_cuda),
};

MemoryQv memory_qv(Run& run, const Tensor& x, const MemoryProjection& q, const MemoryProjection& v,
                   const MemoryGate& gate, bool value_norm, double eps) {
  for (const MemoryProjection* p : {&q, &v}) {
    require(x.view().rank() >= 2 && p->norm.shape() == Shape({x.dim(-1)}) &&
                p->weight.view().rank() == 2 && p->weight.dim(1) == x.dim(-1) &&
                (!p->bias || p->bias.shape() == Shape({p->weight.dim(0)})),
            kMemoryQv.name, "norm {} and weights {} do not fit x, which is {}",
            p->norm.shape().str(), p->weight.shape().str(), x.shape().str());
  }
  MemoryQv r;
  if (!in_one(run, x, q, v)) {
    const MemoryNorm normed = memory_norm(run, x, q.norm, v.norm, gate, eps);
    r = {linear(run, normed.q, q.weight, q.bias), linear(run, normed.v, v.weight, v.bias),
         normed.g};
    r.v = value_norm ? z_score(run, r.v) : r.v;
    return r;
  }
  const int64_t outs = q.weight.dim(0);
  Shape shape = x.shape();
  Tensor logits;
  if (gate.weight) {
    r.g = gate.make(run, x);
    logits = run.make_saved("memory_qv.logits", {x.rows()});
  }
  shape.dims[static_cast<size_t>(shape.rank - 1)] = outs;
  r.q = run.make("memory_qv.q", shape);
  r.v = run.make("memory_qv.v", shape);
  run.call(
      kMemoryQv,
      {x, q.norm, v.norm, gate.norm, gate.weight, gate.bias, q.weight, q.bias, v.weight, v.bias},
      {r.q, r.v, r.g},
      {run.make_saved("memory_qv.r", {x.rows()}), logits,
       value_norm ? run.make_saved("memory_qv.spread", {x.rows()}) : Tensor(),
       run.make("memory_qv.xhat", x.shape()), run.make("memory_qv.weights", {2 * outs, x.dim(-1)})},
      MemoryQvSettings{eps});
  return r;
}

}  // namespace fwpkm
