#include "ops/pkm_read/pkm_read.h"

#include "ops/pkm_read/reference.h"

namespace fwpkm {

const Op kPkmRead = {
    .name = "pkm_read",
    .reference_f64 = {&pkm_read_forward_reference<double>, &pkm_read_backward_reference<double>},
    .reference_f32 = {&pkm_read_forward_reference<float>, &pkm_read_backward_reference<float>},
    .cpu = {&pkm_read_forward_cpu, &pkm_read_backward_cpu, &pkm_read_workspace_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&pkm_read_forward_cuda, &pkm_read_backward_cuda,
                               &pkm_read_workspace_cuda),
    .late = true,
};

PkmRead pkm_read(Run& run, const Tensor& q, const Tensor& keys, const Tensor& values,
                 PkmSettings settings) {
  const int64_t heads = settings.heads, k = settings.topk, n = settings.n_subkeys;
  require(heads >= 1 && n >= 1 && k >= 1 && k <= n, kPkmRead.name,
          "needs heads >= 1 and 1 <= topk <= n_subkeys, but heads={}, topk={}, n_subkeys={}", heads,
          k, n);
  require(n <= 46340, kPkmRead.name, "n_subkeys={} makes more slots than 32 bits can count", n);
  require(keys.view().rank() == 2 && keys.dim(0) == heads * 2 * n, kPkmRead.name,
          "keys must be [heads*2*n_subkeys, dk/2] = [{}, ..], not {}", heads * 2 * n,
          keys.shape().str());
  require(values.view().rank() == 2 && values.dim(0) == n * n, kPkmRead.name,
          "values must be [n_subkeys^2, dv] = [{}, ..], not {}", n * n, values.shape().str());
  const int64_t dk = 2 * keys.dim(1), rank = q.view().rank();
  require((rank >= 2 && q.dim(-1) == heads * dk) ||
              (rank >= 3 && q.dim(-1) == dk && q.dim(-2) == heads),
          kPkmRead.name, "q must be [M, {}] or [.., {}, {}], not {}", heads * dk, heads, dk,
          q.shape().str());
  require(q.view().contiguous() && keys.view().contiguous() && values.view().contiguous(),
          kPkmRead.name, "q, keys and values must be contiguous");
  const int64_t tokens = q.shape().size() / (heads * dk);
  require(tokens * heads * k <= INT32_MAX, kPkmRead.name,
          "{} tokens x {} heads x {} slots are too many reads for one call", tokens, heads, k);

  PkmRead read;
  read.output = run.make("pkm_read.y", {tokens, values.dim(1)});
  read.slots = run.make("pkm_read.slots", {tokens, heads * k}, DType::kI32);
  read.weights = run.make("pkm_read.weights", {tokens, heads * k}, run.wide());
  Tensor list;
  if (run.recording() && run.device().kind == DeviceKind::kCuda && values.node()->wants_grad) {
    list = run.make("pkm_read.list", {pkm_list_size(tokens * heads * k)}, DType::kI32);
  }
  run.call(kPkmRead, {q, keys, values}, {read.output, read.slots, read.weights}, {list}, settings);
  read.slots.node()->wants_grad = false;
  read.weights.node()->wants_grad = false;
  return read;
}

}  // namespace fwpkm
