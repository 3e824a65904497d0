// Logits by cuBLAS in blocks of rows, then a thread block for each row. Numbers of labels are
// counted on the device, so that nobody waits for it.
#include "ops/common/device.cuh"
#include "ops/lm_loss/lm_loss.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 512;
// Logits that exist at a time without a tape, and that one product makes with one.
constexpr int64_t kFreeLogits = int64_t{1} << 25, kKeptLogits = int64_t{1} << 30;

int64_t rows_at_once(int64_t logits, int64_t vocab) {
  return std::max<int64_t>(128, logits / vocab);
}

// nll and log-sum-exp (where wanted) of a row of logits.
__global__ void loss_kernel(const float* logits, const int32_t* labels, int64_t vocab, float* nll,
                            float* lse) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const float* x = logits + row * vocab;
  float top = -INFINITY, sum = 0;
  if (label >= 0) {
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      top = fmaxf(top, x[i]);
    }
    top = block_max<kThreads>(top);
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      sum += expf(x[i] - top);
    }
    sum = block_sum<kThreads>(sum);
  }
  if (threadIdx.x == 0) {
    nll[row] = label >= 0 ? (top - x[label]) + logf(sum) : 0;
    if (lse != nullptr) {
      lse[row] = label >= 0 ? top + logf(sum) : 0;
    }
  }
}

// The sum of `value` over the block of kThreads, for its first thread.
template <typename T>
__device__ T sum_for_first(T value) {
  __shared__ T parts[kThreads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      parts[threadIdx.x] += parts[threadIdx.x + step];
    }
    __syncthreads();
  }
  return parts[0];
}

__device__ int64_t labelled(const int32_t* labels, int64_t rows) {
  int64_t count = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
    count += labels[i] >= 0 ? 1 : 0;
  }
  return max(int64_t{1}, sum_for_first(count));
}

// One block.
__global__ void mean_kernel(const float* nll, const int32_t* labels, int64_t rows, float* loss) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
    sum += nll[i];
  }
  sum = sum_for_first(sum);
  const int64_t count = labelled(labels, rows);
  if (threadIdx.x == 0) {
    loss[0] = static_cast<float>(sum / static_cast<double>(count));
  }
}

// One block: the gradient of a token's nll.
__global__ void scale_kernel(const float* dloss, const int32_t* labels, int64_t rows,
                             float* scale) {
  const int64_t count = labelled(labels, rows);
  if (threadIdx.x == 0) {
    scale[0] = dloss[0] / static_cast<float>(count);
  }
}

// Logits become (softmax - onehot) * scale; rows without a label become zero.
__global__ void gradient_kernel(float* logits, const int32_t* labels, const float* lse,
                                int64_t vocab, const float* scale) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const float shift = lse[row], by = scale[0];
  float* x = logits + row * vocab;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    x[i] = label < 0 ? 0 : by * (expf(x[i] - shift) - (i == label ? 1.0f : 0.0f));
  }
}

}  // namespace

void lm_loss_forward_cuda(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const int32_t* labels = args.in[2].ptr<int32_t>();
  float* nll = args.out[1].ptr<float>();
  float *kept = args.saved[0].ptr<float>(), *lse = args.saved[1].ptr<float>();
  const int64_t step = rows_at_once(kept != nullptr ? kKeptLogits : kFreeLogits, vocab);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    float* logits = kept != nullptr ? kept + first * vocab : static_cast<float*>(args.workspace);
    gpu_gemm({.transpose_b = true,
              .m = count,
              .n = vocab,
              .k = width,
              .lda = width,
              .ldb = width,
              .ldc = vocab},
             args.in[0].ptr<float>() + first * width, args.in[1].ptr<float>(), logits);
    loss_kernel<<<static_cast<unsigned>(count), kThreads, 0, this_stream()>>>(
        logits, labels + first, vocab, nll + first, lse != nullptr ? lse + first : nullptr);
    check_launch("lm_loss");
  }
  mean_kernel<<<1, kThreads, 0, this_stream()>>>(nll, labels, rows, args.out[0].ptr<float>());
  check_launch("lm_loss mean");
}

void lm_loss_backward_cuda(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const int32_t* labels = args.in[2].ptr<int32_t>();
  if (rows == 0) {
    if (args.din[1] && !args.accumulate[1]) {
      fill_zero(args.din[1]);
    }
    return;
  }
  auto* scale = static_cast<float*>(args.workspace);
  scale_kernel<<<1, kThreads, 0, this_stream()>>>(args.dout[0].ptr<float>(), labels, rows, scale);
  check_launch("lm_loss scale");
  float* logits = args.saved[0].ptr<float>();
  gradient_kernel<<<static_cast<unsigned>(rows), kThreads, 0, this_stream()>>>(
      logits, labels, args.saved[1].ptr<float>(), vocab, scale);
  check_launch("lm_loss gradient");
  const int64_t step = rows_at_once(kKeptLogits, vocab);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    if (args.din[1]) {
      gpu_gemm({.transpose_a = true,
                .m = vocab,
                .n = width,
                .k = count,
                .lda = vocab,
                .ldb = width,
                .ldc = width,
                .beta = args.accumulate[1] || first > 0 ? 1.0f : 0.0f},
               logits + first * vocab, args.in[0].ptr<float>() + first * width,
               args.din[1].ptr<float>());
    }
    if (args.din[0]) {
      gpu_gemm({.m = count,
                .n = width,
                .k = vocab,
                .lda = vocab,
                .ldb = width,
                .ldc = width,
                .beta = args.accumulate[0] ? 1.0f : 0.0f},
               logits + first * vocab, args.in[1].ptr<float>(),
               args.din[0].ptr<float>() + first * width);
    }
  }
}

size_t lm_loss_workspace_cuda(const OpArgs& args, bool backward) {
  if (backward) {
    return 256;  // the scale
  }
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0);
  return args.saved[0]
             ? 0
             : static_cast<size_t>(std::min(rows, rows_at_once(kFreeLogits, vocab)) * vocab) *
                   sizeof(float);
}

}  // namespace fwpkm
