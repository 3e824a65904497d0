#include "ops/attention/attention.h"

#include "ops/attention/reference.h"

namespace fwpkm {

const Op kAttention = {
    .name = "attention",
    .reference_f64 = {&attention_forward_reference<double>, &attention_backward_reference<double>},
    .reference_f32 = {&attention_forward_reference<float>, &attention_backward_reference<float>},
    .cpu = {&attention_forward_cpu, &attention_backward_cpu, &attention_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&attention_forward_cuda, &attention_backward_cuda,
                               &attention_workspace_cuda),
};

Tensor attention(Run& run, const Tensor& q, const Tensor& k, const Tensor& v,
                 AttentionSettings settings, const Tensor& starts) {
  const Shape &qs = q.shape(), &ks = k.shape();
  require(qs.rank == 4 && ks.rank == 4 && ks == v.shape() && qs[0] == ks[0] && qs[3] == ks[3],
          kAttention.name,
          "q must be [B, Tq, Hq, D], k and v [B, Tk, Hkv, D]: q is {}, k is {}, v is {}", qs.str(),
          ks.str(), v.shape().str());
  require(ks[2] > 0 && qs[2] % ks[2] == 0, kAttention.name,
          "{} query heads cannot share {} key heads evenly", qs[2], ks[2]);
  require(q.view().stride(-1) == 1 && k.view().stride(-1) == 1 && v.view().stride(-1) == 1,
          kAttention.name, "features must be next to each other");
  const int64_t last = settings.q_offset + qs[1] - 1;  // position of the last query
  require(settings.q_offset >= 0 && settings.window >= 0 && ks[1] > 0 &&
              (settings.window == 0 || last - settings.window < ks[1] - 1),
          kAttention.name,
          "every query must see a key: {} queries from position {} on, {} keys, window {}", qs[1],
          settings.q_offset, ks[1], settings.window);
  require(!starts || (starts.shape() == Shape({qs[0], qs[1]}) &&
                      starts.view().dtype == DType::kI32 && starts.view().contiguous()),
          kAttention.name, "starts must be int32 [{}, {}]", qs[0], qs[1]);
  Tensor o = run.make("attention.o", qs);
  run.call(kAttention, {q, k, v, starts}, {o},
           {run.make_saved("attention.lse", {qs[0], qs[2], qs[1]})}, settings);
  return o;
}

}  // namespace fwpkm
