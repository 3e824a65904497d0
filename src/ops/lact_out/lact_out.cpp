#include "ops/lact_out/lact_out.h"

#include "ops/lact_out/reference.h"

namespace fwpkm {

const Op kLactOut = {
    .name = "lact_out",
    .reference_f64 = {&lact_out_forward_reference<double>, &lact_out_backward_reference<double>},
    .reference_f32 = {&lact_out_forward_reference<float>, &lact_out_backward_reference<float>},
    .cpu = {&lact_out_forward_cpu, &lact_out_backward_cpu, &lact_out_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&lact_out_forward_cuda, &lact_out_backward_cuda,
                               &lact_out_workspace_cuda),
    .pass_through = 0,
};

Tensor lact_out(Run& run, const Tensor& a, const Tensor& x, const Tensor& w, const Tensor& s,
                double eps) {
  const Shape& shape = x.shape();
  require(shape.rank == 4 && a.view().size() == x.view().size() && w.shape() == Shape({shape[3]}) &&
              s.shape() == Shape({shape[0], shape[1], shape[2]}),
          kLactOut.name,
          "x must be [B, T, H, D], a of its size, w [D] and s [B, T, H]: x is {}, a is {}, w is "
          "{}, s is {}",
          shape.str(), a.shape().str(), w.shape().str(), s.shape().str());
  require(a.view().contiguous() && x.view().contiguous() && s.view().contiguous(), kLactOut.name,
          "a, x and s must be contiguous");
  Tensor y = run.make("lact_out.y", a.shape());
  run.call(kLactOut, {a, x, w, s}, {y}, {run.make_saved("lact_out.r", {x.rows()})},
           LactOutSettings{eps});
  return y;
}

}  // namespace fwpkm
