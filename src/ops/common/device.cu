#include <cublasLt.h>
#include <cublas_v2.h>

#include <atomic>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>

#include "base/error.h"
#include "ops/common/cuda_memory.h"
#include "ops/common/device.cuh"
#include "tensor/cuda.h"
#include "tensor/profile.h"

namespace fwpkm {
namespace {

constexpr const char* kTag = "cuda";

void check_cublas(cublasStatus_t status, const char* what) {
  require(status == CUBLAS_STATUS_SUCCESS, kTag, "{} failed: {}", what,
          cublasGetStatusString(status));
}

// A product on tensor cores, set up: what cuBLASLt wants to know of it, and how it does it.
struct TensorProduct {
  cublasLtMatmulDesc_t what = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t how{};
};
// Everything that TensorProduct depends on.
using ProductKey = std::tuple<bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                              int64_t, int64_t, int64_t, int64_t, bool, bool, bool, int>;

// What a thread works with.
struct Context {
  cudaStream_t stream = nullptr;  // in use
  cudaStream_t sides[2] = {};     // by Side
  cudaEvent_t border = nullptr;
  bool left = false;  // on the sides, by SideStream::leave
  cublasHandle_t blas = nullptr;
  cublasLtHandle_t lt = nullptr;
  void* blas_workspace = nullptr;
  std::map<ProductKey, TensorProduct> products;
  // Large enough for every way that cuBLAS knows on Hopper.
  static constexpr size_t kWorkspace = 64u << 20;
  // Where small products of floats are done in double.
  void* exact_scratch = nullptr;
  static constexpr size_t kExactScratch = 256u << 20;

  Context() {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
               "making a stream");
    for (const Side side : {Side::kLong, Side::kShort}) {
      const int priority = side == Side::kLong ? least : (least + greatest) / 2;
      check_cuda(cudaStreamCreateWithPriority(&side_stream(side), cudaStreamNonBlocking, priority),
                 "making a stream");
    }
    check_cuda(cudaEventCreateWithFlags(&border, cudaEventDisableTiming), "making an event");
    check_cublas(cublasCreate(&blas), "starting cuBLAS");
    check_cublas(cublasSetStream(blas, stream), "cuBLAS's stream");
    // A workspace of its own, so that products repeat bit for bit and can be part of a graph.
    check_cuda(cudaMalloc(&blas_workspace, kWorkspace), "cuBLAS's workspace");
    check_cublas(cublasSetWorkspace(blas, blas_workspace, kWorkspace), "cuBLAS's workspace");
    check_cublas(cublasLtCreate(&lt), "starting cuBLASLt");
    check_cublas(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH), "cuBLAS's precision");
  }

  cudaStream_t& side_stream(Side side) { return sides[static_cast<size_t>(side)]; }
};

Context& context() {
  // Never taken down: the driver may be gone before a thread's last words.
  thread_local Context* const one = new Context();
  return *one;
}

// Blocks that this thread let go of. They come back to kernels of the same stream, in order; a
// thread that hands a block to another has waited for its own kernels before.
class Released {
 public:
  ~Released() {
    for (auto& [bytes, blocks] : blocks_) {
      for (void* block : blocks) {
        cudaFree(block);  // fails where the driver is gone already, with everything
      }
    }
  }
  static Released& mine() {
    thread_local Released one;
    return one;
  }
  void* take(size_t bytes) {
    const auto it = blocks_.find(bytes);
    if (it == blocks_.end() || it->second.empty()) {
      return nullptr;
    }
    void* data = it->second.back();
    it->second.pop_back();
    held_ -= bytes;
    return data;
  }
  // False if the block is better given back.
  bool keep(void* data, size_t bytes) noexcept {
    if (bytes > kLargest || held_ + bytes > kMost) {
      return false;
    }
    blocks_[bytes].push_back(data);
    held_ += bytes;
    return true;
  }

 private:
  static constexpr size_t kLargest = size_t{4} << 20, kMost = size_t{64} << 20;
  std::map<size_t, std::vector<void*>> blocks_;
  size_t held_ = 0;
};

// The alignment of a pointer that cuBLASLt may count on.
int alignment_of(const void* p) {
  return p == nullptr ? 256 : 1 << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(p)));
}

TensorProduct prepare_product(const GpuGemm& g, cudaDataType_t out, int alignment) {
  TensorProduct p;
  const char* what = "preparing a product";
  check_cublas(cublasLtMatmulDescCreate(&p.what, CUBLAS_COMPUTE_32F, CUDA_R_32F), what);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(p.what, name, &value, sizeof(value)), what);
  };
  // cuBLAS is column-major: the transposed product, with a and b exchanged.
  set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (g.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
  }
  const auto layout = [&](cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld,
                          int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check_cublas(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), ld),
                 what);
    const auto batch = static_cast<int32_t>(g.batch);
    check_cublas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                  sizeof(batch)),
                 what);
    check_cublas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                  &stride, sizeof(stride)),
                 what);
    return made;
  };
  p.a = g.transpose_b ? layout(CUDA_R_16BF, g.k, g.n, g.ldb, g.stride_b)
                      : layout(CUDA_R_16BF, g.n, g.k, g.ldb, g.stride_b);
  p.b = g.transpose_a ? layout(CUDA_R_16BF, g.m, g.k, g.lda, g.stride_a)
                      : layout(CUDA_R_16BF, g.k, g.m, g.lda, g.stride_a);
  p.c = layout(out, g.n, g.m, g.ldc, g.stride_c);
  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&preference), what);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
                 what);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Context::kWorkspace);
  const auto bytes = static_cast<uint32_t>(alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
  // The first choice, never the fastest of several tries: the same run must give the same bits.
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context().lt, p.what, p.a, p.b, p.c,
                                                               p.c, preference, 1, &result, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  require(status == CUBLAS_STATUS_SUCCESS && found == 1, kTag,
          "cuBLASLt knows no way to multiply [{}, {}] by [{}, {}] in bf16: {}", g.m, g.k, g.k, g.n,
          cublasGetStatusString(status));
  p.how = result.algo;
  return p;
}

// [rows, columns] between a matrix of leading dimension ld and a packed one.
template <typename From, typename To>
__global__ void repack_kernel(const From* from, int64_t from_ld, To* to, int64_t to_ld,
                              int64_t columns, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / columns, column = i % columns;
    to[row * to_ld + column] = static_cast<To>(from[row * from_ld + column]);
  }
}

template <typename From, typename To>
void repack(const From* from, int64_t from_ld, To* to, int64_t to_ld, int64_t rows,
            int64_t columns) {
  if (rows * columns > 0) {
    repack_kernel<<<blocks_for(rows * columns, 256), 256, 0, this_stream()>>>(
        from, from_ld, to, to_ld, columns, rows * columns);
    check_launch("a product in double");
  }
}

// A product of floats in double, rounded once, if it is small enough for that: what the sums of
// small models lose would be most of what they are compared to. False if it is too large.
bool exact_product(const GpuGemm& g, const float* a, const float* b, float* c) {
  const int64_t sizes = g.m * g.k + g.k * g.n + g.m * g.n;
  if (g.batch != 1 || static_cast<size_t>(sizes) * sizeof(double) > Context::kExactScratch) {
    return false;
  }
  Context& own = context();
  if (own.exact_scratch == nullptr) {
    check_cuda(cudaMalloc(&own.exact_scratch, Context::kExactScratch), "memory for products");
  }
  const int64_t a_rows = g.transpose_a ? g.k : g.m, a_columns = g.transpose_a ? g.m : g.k;
  const int64_t b_rows = g.transpose_b ? g.n : g.k, b_columns = g.transpose_b ? g.k : g.n;
  auto* wide_a = static_cast<double*>(own.exact_scratch);
  double *wide_b = wide_a + g.m * g.k, *wide_c = wide_b + g.k * g.n;
  repack(a, g.lda, wide_a, a_columns, a_rows, a_columns);
  repack(b, g.ldb, wide_b, b_columns, b_rows, b_columns);
  if (g.beta != 0) {
    repack(c, g.ldc, wide_c, g.n, g.m, g.n);
  }
  const auto alpha = static_cast<double>(g.alpha), beta = static_cast<double>(g.beta);
  check_cublas(cublasDgemm(own.blas, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                           g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(g.n),
                           static_cast<int>(g.m), static_cast<int>(g.k), &alpha, wide_b,
                           static_cast<int>(b_columns), wide_a, static_cast<int>(a_columns), &beta,
                           wide_c, static_cast<int>(g.n)),
               "a product in double");
  repack(wide_c, g.n, c, g.ldc, g.m, g.n);
  return true;
}

void tensor_product(const GpuGemm& g, cudaDataType_t out, const bf16* a, const bf16* b, void* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) {
    return;
  }
  const void* add = g.add != nullptr ? g.add : c;
  const int alignment = std::min(std::min(alignment_of(a), alignment_of(b)),
                                 std::min(alignment_of(c), alignment_of(g.add)));
  const ProductKey key = {g.transpose_a,
                          g.transpose_b,
                          g.m,
                          g.n,
                          g.k,
                          g.lda,
                          g.ldb,
                          g.ldc,
                          g.batch,
                          g.stride_a,
                          g.stride_b,
                          g.stride_c,
                          g.beta != 0,
                          g.bias != nullptr,
                          out == CUDA_R_32F,
                          alignment};
  Context& own = context();
  auto it = own.products.find(key);
  if (it == own.products.end()) {
    it = own.products.emplace(key, prepare_product(g, out, alignment)).first;
  }
  const TensorProduct& p = it->second;
  if (g.bias != nullptr) {
    check_cublas(cublasLtMatmulDescSetAttribute(p.what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias,
                                                sizeof(g.bias)),
                 "a product's bias");
  }
  check_cublas(cublasLtMatmul(own.lt, p.what, &g.alpha, b, p.a, a, p.b, &g.beta, add, p.c, c, p.c,
                              &p.how, own.blas_workspace, Context::kWorkspace, own.stream),
               "a product");
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

__global__ void convert_kernel(const float* from, bf16* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = __float2bfloat16_rn(from[i]);
  }
}

// What comes on `waiting` waits for what `first` has now.
void wait_for(cudaStream_t waiting, cudaStream_t first) {
  if (Profile::waiting()) {
    return;
  }
  check_cuda(cudaEventRecord(context().border, first), "ordering streams");
  check_cuda(cudaStreamWaitEvent(waiting, context().border), "ordering streams");
}

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking what the device can do");
  return value;
}

}  // namespace

cudaStream_t this_stream() {
  return context().stream;
}

SideStream::SideStream(Side side) : before_(context().stream) {
  if (!Profile::waiting()) {
    context().stream = context().side_stream(side);
  }
}

SideStream::~SideStream() {
  context().stream = before_;
}

void SideStream::fork(Side side) {
  wait_for(context().side_stream(side), context().stream);
}

void SideStream::join(Side side) {
  wait_for(context().stream, context().side_stream(side));
}

void SideStream::leave() {
  context().left = true;
}

bool starts_early() {
  static const bool can = attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
  return can;
}

size_t most_shared_memory() {
  static const int bytes = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return static_cast<size_t>(bytes);
}

void check_cuda(cudaError_t error, const char* what) {
  require(error == cudaSuccess, kTag, "{} failed: {}", what, cudaGetErrorString(error));
}

void gpu_gemm(const GpuGemm& g, const float* a, const float* b, float* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) {
    return;
  }
  if (exact_product(g, a, b, c)) {
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

void gpu_gemm(const GpuGemm& g, const bf16* a, const bf16* b, bf16* c) {
  tensor_product(g, CUDA_R_16BF, a, b, c);
}

void gpu_gemm(const GpuGemm& g, const bf16* a, const bf16* b, float* c) {
  tensor_product(g, CUDA_R_32F, a, b, c);
}

namespace cuda {
namespace {

// What FWPKM_GPU_MEMORY allows, in MiB there; without it, everything.
size_t memory_limit() {
  static const size_t limit = [] {
    const char* text = std::getenv("FWPKM_GPU_MEMORY");
    if (text == nullptr) {
      return SIZE_MAX;
    }
    size_t mib = 0;
    const char* end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, mib);
    require(error == std::errc() && rest == end && mib > 0 && mib < (SIZE_MAX >> 20), kTag,
            "FWPKM_GPU_MEMORY is '{}'; it must be a number of MiB, such as 8192", text);
    return mib << 20;
  }();
  return limit;
}

}  // namespace

std::atomic<size_t>& memory_taken() {
  static std::atomic<size_t> bytes{0};
  return bytes;
}

bool memory_allowed(size_t bytes) {
  return memory_taken() + bytes <= memory_limit();
}

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
  const size_t limit = memory_limit(), taken = memory_taken();
  return std::min(free, limit > taken ? limit - taken : 0);
}

void* allocate(size_t bytes) {
  if (void* kept = Released::mine().take(bytes)) {
    return kept;
  }
  void* data = nullptr;
  if (!memory_allowed(bytes)) {
    return nullptr;
  }
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(error, "asking for memory");
  memory_taken() += bytes;
  return data;
}

void release(void* data, size_t bytes) noexcept {
  if (data != nullptr && !Released::mine().keep(data, bytes)) {
    cudaFree(data);
    memory_taken() -= bytes;
  }
}

void copy_in(void* to, const void* host, size_t bytes) {
  // From pageable memory: the call returns when the bytes are taken.
  check_cuda(cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, this_stream()),
             "copying to the GPU");
  check_cuda(cudaStreamSynchronize(this_stream()), "copying to the GPU");
}

void copy_out(void* host, const void* from, size_t bytes) {
  join_late();
  check_cuda(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, this_stream()),
             "copying from the GPU");
  check_cuda(cudaStreamSynchronize(this_stream()), "copying from the GPU");
}

void copy(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, this_stream()),
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

void convert(const View& from, const View& to) {
  require(from.size() == to.size() && from.contiguous() && to.contiguous(), kTag,
          "{} {} cannot be converted to {}", from.name, from.shape.str(), to.shape.str());
  convert_kernel<<<blocks_for(from.size(), 256), 256, 0, this_stream()>>>(
      from.ptr<float>(), to.ptr<bf16>(), from.size());
  check_launch("converting");
}

void join_late() {
  if (context().left) {
    SideStream::join(Side::kLong);
    SideStream::join(Side::kShort);
    context().left = false;
  }
}

void synchronize() {
  join_late();
  check_cuda(cudaStreamSynchronize(this_stream()), "waiting for the GPU");
}

void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  if (cudaMallocHost(&data, bytes) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return data;
}

void release_pinned(void* data) noexcept {
  cudaFreeHost(data);
}

void send(void* to, const void* host, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, this_stream()),
             "copying to the GPU");
}

void fetch(void* host, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, this_stream()),
             "copying from the GPU");
}

Graph::Graph(const std::function<void()>& work) {
  const cudaStream_t stream = this_stream();
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "recording a graph");
  cudaGraph_t recorded = nullptr;
  try {
    work();
    join_late();
  } catch (...) {
    cudaStreamEndCapture(stream, &recorded);
    if (recorded != nullptr) {
      cudaGraphDestroy(recorded);
    }
    cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &recorded), "recording a graph");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t error =
      cudaGraphInstantiate(&ready, recorded, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(recorded);
  check_cuda(error, "preparing a graph");
  graph_ = ready;
}

Graph::~Graph() {
  if (graph_ != nullptr) {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  }
}

void Graph::launch() {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), this_stream()),
             "starting a graph");
}

}  // namespace cuda
}  // namespace fwpkm
