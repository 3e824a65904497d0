// Rows are short (8 logits): a few lanes of a warp for each.
#include "ops/common/device.cuh"
#include "ops/memory_gate/memory_gate.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // to a row
constexpr int kBlockRows = kThreads / kLanes;

// The mean of a row, for all of its lanes. All lanes of a warp must call this.
__device__ float mean_of(const float* x, int lane, int64_t width) {
  float sum = 0;
  for (int64_t i = lane; i < width; i += kLanes) {
    sum += x[i];
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  return sum / static_cast<float>(width);
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

__global__ void forward_kernel(const float* x, DeviceRows x_rows, float* g, int64_t rows,
                               int64_t width) {
  const int64_t row = blockIdx.x * int64_t{kBlockRows} + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  // Lanes past the end compute the last row again.
  const float mean = mean_of(x + x_rows[min(row, rows - 1)], lane, width);
  if (row < rows && lane == 0) {
    g[row] = sigmoid(mean);
  }
}

__global__ void backward_kernel(const float* x, DeviceRows x_rows, const float* dg, float* dx,
                                DeviceRows dx_rows, int64_t rows, int64_t width, bool accumulate) {
  const int64_t row = blockIdx.x * int64_t{kBlockRows} + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const float mean = mean_of(x + x_rows[min(row, rows - 1)], lane, width);
  if (row >= rows) {
    return;
  }
  // g (1 - g) as sigmoid(m) sigmoid(-m): 1 - g has few digits where g is close to 1.
  const float each = dg[row] * (sigmoid(mean) * sigmoid(-mean)) / static_cast<float>(width);
  float* to = dx + dx_rows[row];
  for (int64_t i = lane; i < width; i += kLanes) {
    put(to + i, each, accumulate);
  }
}

}  // namespace

void memory_gate_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  if (rows.count == 0) {
    return;
  }
  forward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kBlockRows)), kThreads, 0,
                   this_stream()>>>(args.in[0].ptr<float>(), rows, args.out[0].ptr<float>(),
                                    rows.count, args.in[0].dim(-1));
  check_launch("memory_gate");
}

void memory_gate_backward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  if (!args.din[0] || rows.count == 0) {
    return;
  }
  backward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kBlockRows)), kThreads, 0,
                    this_stream()>>>(args.in[0].ptr<float>(), rows, args.dout[0].ptr<float>(),
                                     args.din[0].ptr<float>(), DeviceRows(args.din[0]), rows.count,
                                     args.in[0].dim(-1), args.accumulate[0]);
  check_launch("memory_gate backward");
}

}  // namespace fwpkm
