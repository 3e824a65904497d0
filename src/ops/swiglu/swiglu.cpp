#include "ops/swiglu/swiglu.h"

#include "ops/swiglu/reference.h"

namespace fwpkm {

const Op kSwiglu = {
    .name = "swiglu",
    .reference_f64 = {&swiglu_forward_reference<double>, &swiglu_backward_reference<double>},
    .reference_f32 = {&swiglu_forward_reference<float>, &swiglu_backward_reference<float>},
    .cpu = {&swiglu_forward_cpu, &swiglu_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&swiglu_forward_cuda, &swiglu_backward_cuda),
};

Tensor swiglu(Run& run, const Tensor& gate, const Tensor& up) {
  require(gate.shape() == up.shape() && gate.view().contiguous() && up.view().contiguous(),
          kSwiglu.name, "gate {} and up {} must have one shape", gate.shape().str(),
          up.shape().str());
  Tensor y = run.make("swiglu.y", gate.shape());
  run.call(kSwiglu, {gate, up}, {y});
  return y;
}

}  // namespace fwpkm
