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

// Sums of exponentials, of which the largest is known only at the end.
struct Exponentials {
  float top = -INFINITY, sum = 0;

  template <int kCount>
  __device__ void add(const float (&x)[kCount]) {
    float most = top;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      most = fmaxf(most, x[k]);
    }
    if (most > top) {
      sum *= expf(top - most);
      top = most;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      sum += expf(x[k] - top);
    }
  }
};

// Calls fn(position, values) for the runs of a row of logits that are this thread's; a row that
// does not allow runs of 8 is taken one by one.
template <typename T, typename Fn>
__device__ void over_row(T* x, int64_t vocab, bool runs, Fn&& fn) {
  if (runs) {
    for (int64_t i = 8 * int64_t{threadIdx.x}; i < vocab; i += 8 * kThreads) {
      float values[8];
      load_run(x + i, values);
      fn(i, values);
    }
  } else {
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      float values[1] = {to_float(x[i])};
      fn(i, values);
    }
  }
}

// nll and log-sum-exp (where wanted) of a row of logits, read once.
template <typename T>
__global__ void loss_kernel(const T* logits, const int32_t* labels, int64_t vocab, bool runs,
                            float* nll, float* lse) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const T* x = logits + row * vocab;
  float top = 0, sum = 0;
  if (label >= 0) {
    Exponentials own;
    over_row(x, vocab, runs,
             [&]<int kCount>(int64_t, const float(&values)[kCount]) { own.add(values); });
    top = block_max<kThreads>(own.top);
    sum = block_sum<kThreads>(own.top == -INFINITY ? 0.0f : own.sum * expf(own.top - top));
  }
  if (threadIdx.x == 0) {
    nll[row] = label >= 0 ? (top - to_float(x[label])) + logf(sum) : 0;
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
template <typename T>
__global__ void gradient_kernel(T* logits, const int32_t* labels, const float* lse, int64_t vocab,
                                bool runs, const float* scale) {
  const int64_t row = blockIdx.x;
  const int32_t label = labels[row];
  const float shift = lse[row], by = scale[0];
  T* x = logits + row * vocab;
  over_row(x, vocab, runs, [&]<int kCount>(int64_t i, float(&values)[kCount]) {
    for (int k = 0; k < kCount; ++k) {
      values[k] = label < 0 ? 0 : by * (expf(values[k] - shift) - (i + k == label ? 1.0f : 0.0f));
    }
    if constexpr (kCount == 1) {
      x[i] = from_float<T>(values[0]);
    } else {
      store_run(x + i, values);
    }
  });
}

template <typename T>
bool in_runs(const T* logits, int64_t vocab) {
  return vocab % 8 == 0 && reinterpret_cast<uintptr_t>(logits) % 32 == 0;
}

template <typename T>
void forward(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const int32_t* labels = args.in[2].ptr<int32_t>();
  float* nll = args.out[1].ptr<float>();
  T* kept = args.saved[0].ptr<T>();
  float* lse = args.saved[1].ptr<float>();
  const int64_t step = rows_at_once(kept != nullptr ? kKeptLogits : kFreeLogits, vocab);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    T* logits = kept != nullptr ? kept + first * vocab : static_cast<T*>(args.workspace);
    gpu_gemm({.transpose_b = true,
              .m = count,
              .n = vocab,
              .k = width,
              .lda = width,
              .ldb = width,
              .ldc = vocab},
             args.in[0].ptr<T>() + first * width, args.in[1].ptr<T>(), logits);
    loss_kernel<T><<<static_cast<unsigned>(count), kThreads, 0, this_stream()>>>(
        logits, labels + first, vocab, in_runs(logits, vocab), nll + first,
        lse != nullptr ? lse + first : nullptr);
    check_launch("lm_loss");
  }
  mean_kernel<<<1, kThreads, 0, this_stream()>>>(nll, labels, rows, args.out[0].ptr<float>());
  check_launch("lm_loss mean");
}

template <typename T>
void backward(const OpArgs& args) {
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
  T* logits = args.saved[0].ptr<T>();
  gradient_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, this_stream()>>>(
      logits, labels, args.saved[1].ptr<float>(), vocab, in_runs(logits, vocab), scale);
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
               logits + first * vocab, args.in[0].ptr<T>() + first * width,
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
               logits + first * vocab, args.in[1].ptr<T>(), args.din[0].ptr<T>() + first * width);
    }
  }
}

}  // namespace

void lm_loss_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void lm_loss_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t lm_loss_workspace_cuda(const OpArgs& args, bool backward) {
  if (backward) {
    return 256;  // the scale
  }
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0);
  return args.saved[0]
             ? 0
             : static_cast<size_t>(std::min(rows, rows_at_once(kFreeLogits, vocab)) * vocab) *
                   dtype_size(args.in[0].dtype);
}

}  // namespace fwpkm
