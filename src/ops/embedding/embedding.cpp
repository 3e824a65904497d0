#include "ops/embedding/embedding.h"

#include "ops/embedding/reference.h"

namespace fwpkm {

const Op kEmbedding = {
    .name = "embedding",
    .reference_f64 = {&embedding_forward_reference<double>, &embedding_backward_reference<double>},
    .reference_f32 = {&embedding_forward_reference<float>, &embedding_backward_reference<float>},
    .cpu = {&embedding_forward_cpu, &embedding_backward_cpu},
    .cuda = FWPKM_CUDA_KERNELS(&embedding_forward_cuda, &embedding_backward_cuda,
                               &embedding_workspace_cuda),
};

Tensor embedding(Run& run, const Tensor& ids, const Tensor& table) {
  require(ids.view().dtype == DType::kI32 && table.shape().rank == 2 &&
              ids.shape().rank < kMaxRank && ids.view().contiguous(),
          kEmbedding.name, "ids {} and table {} do not fit", ids.shape().str(),
          table.shape().str());
  Shape shape = ids.shape();
  shape.dims[shape.rank++] = table.dim(1);
  Tensor y = run.make("embedding.y", shape);
  run.call(kEmbedding, {ids, table}, {y});
  return y;
}

}  // namespace fwpkm
