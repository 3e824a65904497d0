#include "ops/short_conv/short_conv.h"

#include "ops/short_conv/reference.h"

namespace fwpkm {

const Op kShortConv = {
    .name = "short_conv",
    .reference_f64 = {&short_conv_forward_reference<double>,
                      &short_conv_backward_reference<double>},
    .reference_f32 = {&short_conv_forward_reference<float>, &short_conv_backward_reference<float>},
    .cpu = {&short_conv_forward_cpu, &short_conv_backward_cpu, &short_conv_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&short_conv_forward_cuda, &short_conv_backward_cuda,
                               &short_conv_workspace_cuda),
};

Tensor short_conv(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& w,
                  const Tensor& tail, const Tensor& starts) {
  const int64_t heads = q.dim(2), channels = heads * (2 * q.dim(3) + v.dim(3));
  require(q.shape() == k.shape() && q.shape().rank == 4 && v.dim(2) == heads &&
              q.dim(1) == v.dim(1) && w.shape().rank == 3 && w.dim(0) == channels,
          kShortConv.name, "q {}, k {}, v {} and w {} do not fit", q.shape().str(), k.shape().str(),
          v.shape().str(), w.shape().str());
  require(w.dim(2) >= 1 && w.dim(2) <= kMaxTaps, kShortConv.name,
          "{} taps; at most {} are possible", w.dim(2), kMaxTaps);
  const Shape tail_shape = {q.dim(0), w.dim(2) - 1, channels};
  require(!tail || tail.shape() == tail_shape, kShortConv.name, "the tail must be {}, not {}",
          tail_shape.str(), tail ? tail.shape().str() : "");
  require(!starts || (!tail && starts.shape() == Shape({q.dim(0), q.dim(1)}) &&
                      starts.view().dtype == DType::kI32),
          kShortConv.name, "starts must be int32 [{}, {}], and go with no tail", q.dim(0),
          q.dim(1));
  Tensor y = run.make("short_conv.y", {q.dim(0), q.dim(1), channels});
  run.call(kShortConv, {q, k, v, w, starts}, {y},
           {tail && run.recording() ? run.make("short_conv.tail", tail_shape) : Tensor()}, {},
           tail ? std::vector<Tensor>{tail} : std::vector<Tensor>{});
  return y;
}

}  // namespace fwpkm
