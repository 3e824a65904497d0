// The calls of CUDA's runtime that the program makes. The GPU is this process: its memory is the
// host's, and all that is queued happens at once, unless a graph is being recorded.
#include <cuda.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"

namespace emulated {
namespace {

constexpr size_t kMemory = size_t{8} << 30;
constexpr int kProcessors = 4;

struct Graph {
  std::vector<std::function<void()>> calls;
};
thread_local std::unique_ptr<Graph> recorded;

double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

// What is reserved has addresses only; what is mapped has memory.
CUresult reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* const memory =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *at = reinterpret_cast<CUdeviceptr>(memory);
  return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult give_back(CUdeviceptr at, size_t bytes) {
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                unsigned long long) {
  *handle = 1;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle) {
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle,
             unsigned long long) {
  const int error = mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE);
  return error != 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr at, size_t bytes) {
  auto* const memory = reinterpret_cast<void*>(at);
  madvise(memory, bytes, MADV_DONTNEED);
  mprotect(memory, bytes, PROT_NONE);
  return CUDA_SUCCESS;
}
CUresult allow(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

}  // namespace

void enqueue(std::function<void()> what) {
  if (recorded != nullptr) {
    recorded->calls.push_back(std::move(what));
  } else {
    what();
  }
}

}  // namespace emulated

using emulated::Graph;

extern "C" {

// Full of what is not a number, so that it shows if somebody reads what nobody wrote.
cudaError_t cudaMalloc(void** to, size_t bytes) {
  constexpr size_t kAlign = 512;
  *to = std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign);
  if (*to == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*to, 0xff, std::min(bytes, size_t{64} << 20));
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  return cudaMalloc(to, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  emulated::enqueue([=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  emulated::enqueue([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = emulated::kMemory;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an emulated error";
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount            ? emulated::kProcessors
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
           : attribute == cudaDevAttrComputeCapabilityMajor       ? 9
                                                                  : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int) {
  *all = {};
  std::strcpy(all->name, "an emulated GPU");
  all->multiProcessorCount = emulated::kProcessors;
  all->major = 9;
  all->totalGlobalMem = emulated::kMemory;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new double(0));
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<double*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<double*>(event) = emulated::now_ms();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = static_cast<float>(*reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status =
      emulated::recorded != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  emulated::recorded = std::make_unique<Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(emulated::recorded.release());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  *ready = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& call : reinterpret_cast<Graph*>(graph)->calls) {
    call();
  }
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** call, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string, void*> calls = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(&emulated::reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&emulated::give_back)},
      {"cuMemCreate", reinterpret_cast<void*>(&emulated::create)},
      {"cuMemRelease", reinterpret_cast<void*>(&emulated::release)},
      {"cuMemMap", reinterpret_cast<void*>(&emulated::map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&emulated::unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&emulated::allow)}};
  const auto it = calls.find(name);
  *found = it != calls.end() ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  *call = it != calls.end() ? it->second : nullptr;
  return cudaSuccess;
}

}  // extern "C"
