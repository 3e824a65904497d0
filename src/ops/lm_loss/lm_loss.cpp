#include "ops/lm_loss/lm_loss.h"

#include "ops/lm_loss/reference.h"

namespace fwpkm {

const Op kLmLoss = {
    .name = "lm_loss",
    .reference_f64 = {&lm_loss_forward_reference<double>, &lm_loss_backward_reference<double>},
    .reference_f32 = {&lm_loss_forward_reference<float>, &lm_loss_backward_reference<float>},
    .cpu = {&lm_loss_forward_cpu, &lm_loss_backward_cpu, &lm_loss_workspace_cpu},
    .cuda =
        FWPKM_CUDA_KERNELS(&lm_loss_forward_cuda, &lm_loss_backward_cuda, &lm_loss_workspace_cuda),
};

LmLoss lm_loss(Run& run, const Tensor& h, const Tensor& table, const Tensor& labels) {
  require(h.dim(-1) == table.dim(1) && labels.view().dtype == DType::kI32 &&
              labels.view().size() == h.rows() && h.view().contiguous(),
          kLmLoss.name, "h {}, table {} and labels {} do not fit", h.shape().str(),
          table.shape().str(), labels.shape().str());
  LmLoss result = {run.make("loss", {1}, run.wide()), run.make("nll", labels.shape(), run.wide())};
  // The reference computes logits again in backward; only fast devices keep them.
  std::vector<Tensor> saved(2);
  if (run.device().kind != DeviceKind::kReference && run.recording()) {
    saved = {run.make("logits", {h.rows(), table.dim(0)}), run.make_saved("logsumexp", {h.rows()})};
  }
  run.call(kLmLoss, {h, table, labels}, {result.loss, result.nll}, saved);
  return result;
}

}  // namespace fwpkm
