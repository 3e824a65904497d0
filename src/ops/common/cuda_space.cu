// Addresses and memory taken separately, by the driver's own calls.
#include <cuda.h>

#include <algorithm>

#include "ops/common/cuda_memory.h"
#include "ops/common/device.cuh"
#include "tensor/cuda.h"

namespace fwpkm::cuda {
namespace {

// More than any card has; addresses cost nothing.
constexpr size_t kAddresses = size_t{1} << 40;
// The least that is asked for at a time: asking stops the GPU.
constexpr size_t kStep = size_t{64} << 20;

template <typename Fn>
Fn* driver_call(const char* name) {
  void* call = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &found), name);
  require(found == cudaDriverEntryPointSuccess && call != nullptr, "cuda",
          "this driver does not know {}; a newer one is needed", name);
  return reinterpret_cast<Fn*>(call);
}

struct Driver {
  decltype(cuMemAddressReserve)* reserve =
      driver_call<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* free = driver_call<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemCreate)* create = driver_call<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = driver_call<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemMap)* map = driver_call<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = driver_call<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* allow = driver_call<decltype(cuMemSetAccess)>("cuMemSetAccess");

  static const Driver& get() {
    static const Driver one;
    return one;
  }
};

void check(CUresult result, const char* what) {
  require(result == CUDA_SUCCESS, "cuda", "{} failed with error {} of the driver", what,
          static_cast<int>(result));
}

CUdeviceptr address(const std::byte* data) {
  return reinterpret_cast<CUdeviceptr>(data);
}

}  // namespace

bool AddressSpace::grow(size_t bytes) {
  if (bytes <= bytes_) {
    return true;
  }
  const Driver& driver = Driver::get();
  if (data_ == nullptr) {
    check_cuda(cudaFree(nullptr), "starting the GPU");
    CUdeviceptr start = 0;
    check(driver.reserve(&start, kAddresses, 0, 0, 0), "reserving addresses");
    data_ = reinterpret_cast<std::byte*>(start);
  }
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  // A quarter more than there is, or what is wanted; at the end only the latter.
  const auto whole = [](size_t size) { return (size + kStep - 1) / kStep * kStep; };
  for (const size_t more : {whole(std::max(bytes - bytes_, bytes_ / 4)), whole(bytes - bytes_)}) {
    if (bytes_ + more > kAddresses || !memory_allowed(more)) {
      continue;
    }
    CUmemGenericAllocationHandle memory{};
    const CUresult result = driver.create(&memory, more, &kind, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      continue;
    }
    check(result, "asking for memory");
    const CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr at = address(data_) + bytes_;
    check(driver.map(at, more, 0, memory, 0), "mapping memory");
    check(driver.release(memory), "mapping memory");  // the mapping keeps it
    check(driver.allow(at, more, &access, 1), "mapping memory");
    bytes_ += more;
    memory_taken() += more;
    return true;
  }
  return false;
}

void AddressSpace::drop() {
  if (data_ == nullptr) {
    return;
  }
  // Fails where the driver is gone already, with everything.
  if (cudaStreamSynchronize(this_stream()) == cudaSuccess) {
    const Driver& driver = Driver::get();
    if (bytes_ > 0) {
      driver.unmap(address(data_), bytes_);
      memory_taken() -= bytes_;
    }
    driver.free(address(data_), kAddresses);
  }
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace fwpkm::cuda
