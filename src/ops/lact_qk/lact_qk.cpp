#include "ops/lact_qk/lact_qk.h"

#include "ops/lact_qk/reference.h"

namespace fwpkm {

const Op kLactQk = {
    .name = "lact_qk",
    .reference_f64 = {&lact_qk_forward_reference<double>, &lact_qk_backward_reference<double>},
    .reference_f32 = {&lact_qk_forward_reference<float>, &lact_qk_backward_reference<float>},
    .cpu = {&lact_qk_forward_cpu, &lact_qk_backward_cpu, &lact_qk_workspace_cpu},
    .cuda =
        FWPKM_CUDA_KERNELS(&lact_qk_forward_cuda, &lact_qk_backward_cuda, &lact_qk_workspace_cuda),
};

LactQk lact_qk(Run& run, const Tensor& q, const Tensor& k, const Tensor& scale,
               const Tensor& offset, int64_t heads, const Tensor& cos, const Tensor& sin) {
  const char* tag = kLactQk.name;
  require(q.view().rank() == 4 && q.shape() == k.shape(), tag,
          "q and k must both be [B, T, Ha, Da]: q is {}, k is {}", q.shape().str(),
          k.shape().str());
  const int64_t features = q.dim(2) * q.dim(3);
  for (const Tensor* x : {&q, &k}) {
    require(x->view().stride(3) == 1 && (x->dim(2) == 1 || x->view().stride(2) == x->dim(3)), tag,
            "the features of a token must be next to each other");
  }
  require(heads >= 1 && features % heads == 0, tag, "{} heads do not divide {} features", heads,
          features);
  require(scale.shape() == Shape({features, 2}) && offset.shape() == scale.shape() &&
              scale.view().contiguous() && offset.view().contiguous(),
          tag, "scale and offset must be contiguous [{}, 2]: scale is {}, offset is {}", features,
          scale.shape().str(), offset.shape().str());
  require_rope_tables(tag, cos, sin, q.dim(1), q.dim(3));
  LactQk out = {run.make("lact_qk.q", q.shape()), run.make("lact_qk.k", q.shape())};
  run.call(kLactQk, {q, k, scale, offset, cos, sin}, {out.q, out.k},
           {run.make_saved("lact_qk.length", {2, q.dim(0) * q.dim(1), heads})},
           LactQkSettings{heads});
  return out;
}

}  // namespace fwpkm
