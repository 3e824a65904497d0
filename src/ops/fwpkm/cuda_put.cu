// Rows that were written go into the table: a warp for each entry of the list.
#include <algorithm>

#include "ops/common/device.cuh"
#include "ops/fwpkm/written.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

// Rows of `width` words of type T; kAhead of them are on their way at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    put_kernel(const int32_t* writes, const int32_t* counts, int64_t entries, int64_t owners,
               const T* rows, int64_t width, T* values) {
  constexpr int kAhead = 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; i < owners * entries;
       i += int64_t{gridDim.x} * (kThreads / 32)) {
    const int32_t row = writes[3 * i + 2];
    if (i % entries >= counts[i / entries] || row < 0) {
      continue;
    }
    const T* from = rows + row * width;
    T* to = values + writes[3 * i + 1] * width;
    for (int64_t first = lane; first < width; first += 32 * kAhead) {
      T held[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        held[u] = from[min(first + 32 * u, width - 1)];
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (first + 32 * u < width) {
          to[first + 32 * u] = held[u];
        }
      }
    }
  }
}

}  // namespace

void put_written_cuda(const FwpkmResult& r, const View& values) {
  const int64_t owners = r.counts.dim(0), entries = r.writes.dim(0) / owners;
  if (owners * entries == 0) {
    return;
  }
  const View& rows = r.rows.view();
  const auto launch = [&]<typename T>(T*) {
    put_kernel<T><<<static_cast<unsigned>(
                        std::min<int64_t>(ceil_div(owners * entries, kThreads / 32), kMostBlocks)),
                    kThreads, 0, this_stream()>>>(
        r.writes.view().ptr<int32_t>(), r.counts.view().ptr<int32_t>(), entries, owners,
        static_cast<const T*>(rows.data), rows.dim(1) * int64_t{sizeof(float)} / int64_t{sizeof(T)},
        static_cast<T*>(values.data));
  };
  if (in_runs_of(4, {rows, values})) {
    launch(static_cast<float4*>(nullptr));
  } else {
    launch(static_cast<float*>(nullptr));
  }
  check_launch("keeping written rows");
}

}  // namespace fwpkm
