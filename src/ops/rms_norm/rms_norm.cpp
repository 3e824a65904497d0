#include "ops/rms_norm/rms_norm.h"

#include "ops/rms_norm/reference.h"

namespace fwpkm {

const Op kRmsNorm = {
    .name = "rms_norm",
    .reference_f64 = {&rms_norm_forward_reference<double>, &rms_norm_backward_reference<double>},
    .reference_f32 = {&rms_norm_forward_reference<float>, &rms_norm_backward_reference<float>},
    .cpu = {&rms_norm_forward_cpu, &rms_norm_backward_cpu, &rms_norm_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&rms_norm_forward_cuda, &rms_norm_backward_cuda,
                               &rms_norm_workspace_cuda),
};

Tensor rms_norm(Run& run, const Tensor& x, const Tensor& w, RmsNormSettings settings) {
  require(w.shape() == Shape({x.dim(-1)}) && x.view().stride(-1) == 1, kRmsNorm.name,
          "the weight must have one value per feature: x is {}, w is {}", x.shape().str(),
          w.shape().str());
  require(!settings.single || settings.offset == 0, kRmsNorm.name,
          "single precision is for plain weights only");
  Tensor y = run.make("rms_norm.y", x.shape());
  run.call(kRmsNorm, {x, w}, {y}, {run.make_saved("rms_norm.r", {x.rows()})}, settings);
  return y;
}

}  // namespace fwpkm
