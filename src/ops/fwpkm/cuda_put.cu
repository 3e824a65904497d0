// Rows that were written go into the table: a warp for each entry of the list.
#include "ops/common/device.cuh"
#include "ops/fwpkm/written.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__global__ void put_kernel(const int32_t* writes, const int32_t* counts, int64_t entries,
                           int64_t owners, const float* rows, int64_t width, float* values) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; i < owners * entries;
       i += int64_t{gridDim.x} * (kThreads / 32)) {
    const int32_t row = writes[3 * i + 2];
    if (i % entries >= counts[i / entries] || row < 0) {
      continue;
    }
    const float* from = rows + row * width;
    float* to = values + writes[3 * i + 1] * width;
    for (int64_t c = lane; c < width; c += 32) {
      to[c] = from[c];
    }
  }
}

}  // namespace

void put_written_cuda(const FwpkmResult& r, const View& values) {
  const int64_t owners = r.counts.dim(0), entries = r.writes.dim(0) / owners;
  if (owners * entries == 0) {
    return;
  }
  put_kernel<<<blocks_for(owners * entries * 32, kThreads), kThreads, 0, this_stream()>>>(
      r.writes.view().ptr<int32_t>(), r.counts.view().ptr<int32_t>(), entries, owners,
      r.rows.view().ptr<float>(), r.rows.dim(1), values.ptr<float>());
  check_launch("keeping written rows");
}

}  // namespace fwpkm
