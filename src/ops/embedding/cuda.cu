// Backward without atomics: a block for each token of the vocabulary that occurs finds all its
// places in order. Tokens are sorted by id first, places in order within an id.
#include <cub/device/device_radix_sort.cuh>

#include "ops/common/device.cuh"
#include "ops/embedding/embedding.h"

namespace fwpkm {
namespace {

__global__ void forward_kernel(const int32_t* ids, const float* table, float* y, int64_t tokens,
                               int64_t width) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < tokens * width;
       i += int64_t{gridDim.x} * blockDim.x) {
    y[i] = table[ids[i / width] * width + i % width];
  }
}

__global__ void number_kernel(int32_t* places, int64_t tokens) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < tokens;
       i += int64_t{gridDim.x} * blockDim.x) {
    places[i] = static_cast<int32_t>(i);
  }
}

// A block for each place in the sorted list; those that begin an id add up its rows.
__global__ void backward_kernel(const int32_t* ids, const int32_t* places, const float* dy,
                                float* dtable, int64_t tokens, int64_t width) {
  const int64_t at = blockIdx.x;
  const int32_t id = ids[at];
  if (at > 0 && ids[at - 1] == id) {
    return;
  }
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = dtable[id * width + i];
    for (int64_t j = at; j < tokens && ids[j] == id; ++j) {
      sum += dy[places[j] * width + i];
    }
    dtable[id * width + i] = sum;
  }
}

// Parts of the workspace, each 256 bytes aligned.
struct Plan {
  size_t list, sort, total;

  explicit Plan(int64_t tokens) {
    list = (static_cast<size_t>(tokens) * sizeof(int32_t) + 255) / 256 * 256;
    sort = 0;
    check_cuda(cub::DeviceRadixSort::SortPairs(
                   nullptr, sort, static_cast<const int32_t*>(nullptr),
                   static_cast<int32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                   static_cast<int32_t*>(nullptr), static_cast<int>(tokens)),
               "embedding");
    total = 3 * list + sort;
  }
};

}  // namespace

void embedding_forward_cuda(const OpArgs& args) {
  const int64_t tokens = args.in[0].size(), width = args.in[1].dim(1);
  forward_kernel<<<blocks_for(tokens * width, 256), 256, 0, this_stream()>>>(
      args.in[0].ptr<int32_t>(), args.in[1].ptr<float>(), args.out[0].ptr<float>(), tokens, width);
  check_launch("embedding");
}

void embedding_backward_cuda(const OpArgs& args) {
  if (!args.din[1]) {
    return;
  }
  if (!args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  const int64_t tokens = args.in[0].size(), width = args.in[1].dim(1);
  if (tokens == 0) {
    return;
  }
  Plan plan(tokens);
  auto* at = static_cast<char*>(args.workspace);
  auto* places = reinterpret_cast<int32_t*>(at);
  auto* sorted_ids = reinterpret_cast<int32_t*>(at + plan.list);
  auto* sorted_places = reinterpret_cast<int32_t*>(at + 2 * plan.list);
  number_kernel<<<blocks_for(tokens, 256), 256, 0, this_stream()>>>(places, tokens);
  check_launch("embedding places");
  check_cuda(cub::DeviceRadixSort::SortPairs(
                 at + 3 * plan.list, plan.sort, args.in[0].ptr<int32_t>(), sorted_ids, places,
                 sorted_places, static_cast<int>(tokens), 0, 32, this_stream()),
             "embedding sort");
  backward_kernel<<<static_cast<unsigned>(tokens), 128, 0, this_stream()>>>(
      sorted_ids, sorted_places, args.dout[0].ptr<float>(), args.din[1].ptr<float>(), tokens,
      width);
  check_launch("embedding backward");
}

size_t embedding_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.in[0].size() > 0 ? Plan(args.in[0].size()).total : 0;
}

}  // namespace fwpkm
