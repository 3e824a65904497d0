#include "ops/memory_norm/memory_norm.h"

#include "ops/memory_norm/reference.h"

namespace fwpkm {

const Op kMemoryNorm = {
    .name = "memory_norm",
    .reference_f64 = {&memory_norm_forward_reference<double>,
                      &memory_norm_backward_reference<double>},
    .reference_f32 = {&memory_norm_forward_reference<float>,
                      &memory_norm_backward_reference<float>},
    .cpu = {&memory_norm_forward_cpu, &memory_norm_backward_cpu, &memory_norm_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&memory_norm_forward_cuda, &memory_norm_backward_cuda,
                               &memory_norm_workspace_cuda),
};

Tensor MemoryGate::make(Run& run, const Tensor& x) const {
  const int64_t width = x.dim(-1);
  require(norm && norm.shape() == Shape({width}) && weight.view().rank() == 2 &&
              weight.dim(0) >= 1 && weight.dim(1) == width && bias &&
              bias.shape() == Shape({weight.dim(0)}),
          kMemoryNorm.name, "a gate needs a norm [{0}], weights [R, {0}] and R biases", width);
  const Shape& shape = x.shape();
  return run.make("memory_norm.g",
                  Shape(std::span(shape.dims).first(static_cast<size_t>(shape.rank - 1))),
                  run.wide());
}

MemoryNorm memory_norm(Run& run, const Tensor& x, const Tensor& q_norm, const Tensor& v_norm,
                       const MemoryGate& gate, double eps) {
  const View& view = x.view();
  const Shape weight = {x.dim(-1)};
  require(view.rank() >= 2 && view.stride(-1) == 1 && q_norm.shape() == weight &&
              v_norm.shape() == weight,
          kMemoryNorm.name, "norms must have one weight per feature: x is {}, they are {} and {}",
          x.shape().str(), q_norm.shape().str(), v_norm.shape().str());
  MemoryNorm r;
  Tensor logits;
  if (gate.weight) {
    r.g = gate.make(run, x);
    logits = run.make_saved("memory_norm.logits", {x.rows()});
  }
  r.q = run.make("memory_norm.q", x.shape());
  r.v = run.make("memory_norm.v", x.shape());
  run.call(kMemoryNorm, {x, q_norm, v_norm, gate.norm, gate.weight, gate.bias}, {r.q, r.v, r.g},
           {run.make_saved("memory_norm.r", {x.rows()}), logits}, MemoryNormSettings{eps});
  return r;
}

}  // namespace fwpkm
