#include "bench/gpu.h"

#include <algorithm>
#include <limits>

#include "ops/common/device.cuh"
#include "tensor/pool.h"

namespace fwpkm {
namespace {

// Numbers that look random: products of zeros are faster than others.
template <typename T>
__global__ void fill_kernel(T* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    to[i] = from_float<T>(static_cast<float>(x >> 8) * 0x1.0p-24f - 0.5f);
  }
}

// Milliseconds of the fastest of several runs.
template <typename Fn>
double best_ms(int repeats, Fn&& fn) {
  cudaEvent_t start, end;
  check_cuda(cudaEventCreate(&start), "making an event");
  check_cuda(cudaEventCreate(&end), "making an event");
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    check_cuda(cudaEventRecord(start, this_stream()), "timing");
    fn();
    check_cuda(cudaEventRecord(end, this_stream()), "timing");
    check_cuda(cudaEventSynchronize(end), "timing");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start, end), "timing");
    best = std::min(best, static_cast<double>(ms));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return best;
}

template <typename T>
double product_ms(const Product& p, int repeats) {
  Pool pool(Device::cuda(DTypeOf<T>::value));
  const auto filled = [&](int64_t count, uint32_t seed) {
    auto block = pool.allocate(static_cast<size_t>(count) * sizeof(T));
    fill_kernel<<<blocks_for(count, 256), 256, 0, this_stream()>>>(static_cast<T*>(block->data()),
                                                                   count, seed);
    check_launch("filling");
    return block;
  };
  const auto a = filled(p.m * p.k, 1), b = filled(p.k * p.n, 2);
  const auto c = pool.allocate(static_cast<size_t>(p.m * p.n) * sizeof(float));
  const GpuGemm g = {.transpose_a = p.transpose_a,
                     .transpose_b = p.transpose_b,
                     .m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .lda = p.transpose_a ? p.m : p.k,
                     .ldb = p.transpose_b ? p.k : p.n,
                     .ldc = p.n};
  return best_ms(repeats, [&] {
    const auto *x = static_cast<const T*>(a->data()), *y = static_cast<const T*>(b->data());
    if (p.transpose_a) {
      gpu_gemm(g, x, y, static_cast<float*>(c->data()));
    } else {
      gpu_gemm(g, x, y, static_cast<T*>(c->data()));
    }
  });
}

}  // namespace

double gpu_product_rate(const std::vector<Product>& products, int repeats, DType real) {
  double ms = 0, flops = 0;
  for (const Product& p : products) {
    const double one =
        real == DType::kBF16 ? product_ms<bf16>(p, repeats) : product_ms<float>(p, repeats);
    ms += one * static_cast<double>(p.count);
    flops += p.flops() * static_cast<double>(p.count);
  }
  return flops / ms / 1e6;
}

double gpu_copy_rate() {
  constexpr size_t kBytes = size_t{1} << 30;
  Pool pool(Device::cuda(DType::kF32));
  const auto from = pool.allocate(kBytes), to = pool.allocate(kBytes);
  const double ms = best_ms(8, [&] {
    check_cuda(
        cudaMemcpyAsync(to->data(), from->data(), kBytes, cudaMemcpyDeviceToDevice, this_stream()),
        "copying");
  });
  return 2.0 * static_cast<double>(kBytes) / ms * 1e3;
}

}  // namespace fwpkm
