#include <cublas_v2.h>

#include <map>

#include "base/error.h"
#include "ops/common/device.cuh"
#include "tensor/cuda.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "cuda";

void check_cublas(cublasStatus_t status, const char* what) {
  require(status == CUBLAS_STATUS_SUCCESS, kTag, "{} failed: {}", what,
          cublasGetStatusString(status));
}

// What a thread works with.
struct Context {
  cudaStream_t stream = nullptr;
  cublasHandle_t blas = nullptr;
  void* blas_workspace = nullptr;

  Context() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    check_cublas(cublasCreate(&blas), "starting cuBLAS");
    check_cublas(cublasSetStream(blas, stream), "cuBLAS's stream");
    // A workspace of its own, so that products repeat bit for bit and can be part of a graph.
    constexpr size_t kBytes = 32u << 20;
    check_cuda(cudaMalloc(&blas_workspace, kBytes), "cuBLAS's workspace");
    check_cublas(cublasSetWorkspace(blas, blas_workspace, kBytes), "cuBLAS's workspace");
    check_cublas(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH), "cuBLAS's precision");
  }
};

Context& context() {
  // Never taken down: the driver may be gone before a thread's last words.
  thread_local Context* const one = new Context();
  return *one;
}

// Copies elements of any size that divides 16.
template <typename T>
__global__ void copy_view_kernel(const T* from, T* to, int64_t count, int rank, View f, View t) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    int64_t left = i, source = 0, target = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t at = left % f.shape.dims[d];
      left /= f.shape.dims[d];
      source += at * f.strides[d];
      target += at * t.strides[d];
    }
    to[target] = from[source];
  }
}

__global__ void add_groups_kernel(const float* partial, int64_t groups, int64_t columns, float* to,
                                  bool accumulate) {
  const int64_t c = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (c < columns) {
    float sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      sum += partial[g * columns + c];
    }
    put(to + c, sum, accumulate);
  }
}

}  // namespace

cudaStream_t this_stream() {
  return context().stream;
}

void check_cuda(cudaError_t error, const char* what) {
  require(error == cudaSuccess, kTag, "{} failed: {}", what, cudaGetErrorString(error));
}

void add_column_groups(const float* partial, int64_t groups, int64_t columns, float* to,
                       bool accumulate) {
  add_groups_kernel<<<static_cast<unsigned>(ceil_div(columns, 128)), 128, 0, this_stream()>>>(
      partial, groups, columns, to, accumulate);
  check_launch("adding up columns");
}

void gpu_gemm(const GpuGemm& g, const float* a, const float* b, float* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) {
    return;
  }
  // cuBLAS is column-major: the transposed product.
  check_cublas(cublasGemmStridedBatchedEx(
                   context().blas, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                   g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(g.n),
                   static_cast<int>(g.m), static_cast<int>(g.k), &g.alpha, b, CUDA_R_32F,
                   static_cast<int>(g.ldb), g.stride_b, a, CUDA_R_32F, static_cast<int>(g.lda),
                   g.stride_a, &g.beta, c, CUDA_R_32F, static_cast<int>(g.ldc), g.stride_c,
                   static_cast<int>(g.batch), CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT),
               "a product");
}

namespace cuda {

bool built() {
  return true;
}

int devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string describe() {
  cudaDeviceProp properties{};
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaGetDeviceProperties(&properties, device), "asking what the device is");
  return fmt::format("{}, {:.1f} GiB", properties.name,
                     static_cast<double>(properties.totalGlobalMem) / (1 << 30));
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

void* allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(error, "asking for memory");
  return data;
}

void release(void* data) noexcept {
  cudaFree(data);
}

void copy_in(void* to, const void* host, size_t bytes) {
  // From pageable memory: the call returns when the bytes are taken.
  check_cuda(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, this_stream()),
             "copying to the GPU");
  check_cuda(cudaStreamSynchronize(this_stream()), "copying to the GPU");
}

void copy_out(void* host, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, this_stream()),
             "copying from the GPU");
  check_cuda(cudaStreamSynchronize(this_stream()), "copying from the GPU");
}

void copy(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, this_stream()),
             "copying on the GPU");
}

void fill(void* to, int byte, size_t bytes) {
  check_cuda(cudaMemsetAsync(to, byte, bytes, this_stream()), "filling memory");
}

void copy_view(const View& from, const View& to) {
  if (from.size() == 0) {
    return;
  }
  if (from.contiguous() && to.contiguous()) {
    copy(to.data, from.data, static_cast<size_t>(from.bytes()));
    return;
  }
  const auto run = [&]<typename T>(T*) {
    copy_view_kernel<T><<<blocks_for(from.size(), 256), 256, 0, this_stream()>>>(
        static_cast<const T*>(from.data), static_cast<T*>(to.data), from.size(), from.rank(), from,
        to);
  };
  switch (dtype_size(from.dtype)) {
    case 8:
      run(static_cast<int64_t*>(nullptr));
      break;
    case 4:
      run(static_cast<int32_t*>(nullptr));
      break;
    case 2:
      run(static_cast<int16_t*>(nullptr));
      break;
    default:
      run(static_cast<int8_t*>(nullptr));
  }
  check_launch("copying a view");
}

void synchronize() {
  check_cuda(cudaStreamSynchronize(this_stream()), "waiting for the GPU");
}

}  // namespace cuda
}  // namespace fwpkm
