#include "ops/common/device.cuh"
#include "tensor/cuda.h"
#include "train/adamw_kernels.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__global__ void update_kernel(float* weight, float* grad, float* first, float* second, int64_t size,
                              float beta1, float beta2, float eps, float keep, float step,
                              float second_scale, float gradient_scale) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * kThreads) {
    const float g = grad[i] * gradient_scale;
    const float m = beta1 * first[i] + (1 - beta1) * g;
    const float v = beta2 * second[i] + (1 - beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weight[i] = keep * weight[i] - step * m / (sqrtf(v) * second_scale + eps);
    grad[i] = 0;
  }
}

__global__ void squares_kernel(const float* x, int64_t size, double* partial) {
  double sum = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * kThreads) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) {
      parts[threadIdx.x] += parts[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = parts[0];
  }
}

// Scratch of this thread, made once.
double* partials() {
  thread_local double* const one = static_cast<double*>(cuda::allocate(kBlocks * sizeof(double)));
  require(one != nullptr, "memory", "the GPU has no memory left");
  return one;
}

}  // namespace

void adamw_update_cuda(const View& p, const View& g, const View& m, const View& v,
                       const AdamWConstants& c) {
  update_kernel<<<blocks_for(p.size(), kThreads), kThreads, 0, this_stream()>>>(
      p.ptr<float>(), g.ptr<float>(), m.ptr<float>(), v.ptr<float>(), p.size(),
      static_cast<float>(c.beta1), static_cast<float>(c.beta2), static_cast<float>(c.eps),
      static_cast<float>(c.keep), static_cast<float>(c.step), static_cast<float>(c.second_scale),
      static_cast<float>(c.gradient_scale));
  check_launch("adamw");
}

double sum_of_squares_cuda(const View& x) {
  const unsigned blocks = blocks_for(x.size(), kThreads, kBlocks);
  squares_kernel<<<blocks, kThreads, 0, this_stream()>>>(x.ptr<float>(), x.size(), partials());
  check_launch("sum of squares");
  std::vector<double> host(blocks);
  cuda::copy_out(host.data(), partials(), blocks * sizeof(double));
  double sum = 0;
  for (const double part : host) {
    sum += part;
  }
  return sum;
}

}  // namespace fwpkm
