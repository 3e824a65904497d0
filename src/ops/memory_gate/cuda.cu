// Rows are short (8 logits): a few lanes of a warp for each.
#include "ops/common/device.cuh"
#include "ops/memory_gate/memory_gate.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // to a row
constexpr int kBlockRows = kThreads / kLanes;

// The mean of a row, for all of its lanes. All lanes of a warp must call this.
template <typename T>
__device__ float mean_of(const T* x, int lane, int64_t width) {
  float sum = 0;
  for (int64_t i = lane; i < width; i += kLanes) {
    sum += to_float(x[i]);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  return sum / static_cast<float>(width);
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

template <typename T>
__global__ void forward_kernel(const T* x, FastRows x_rows, float* g, uint32_t rows,
                               int64_t width) {
  const uint32_t row = blockIdx.x * kBlockRows + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  // Lanes past the end compute the last row again.
  const float mean = mean_of(x + x_rows[min(row, rows - 1)], lane, width);
  if (row < rows && lane == 0) {
    g[row] = sigmoid(mean);
  }
}

template <typename T>
__global__ void backward_kernel(const T* x, FastRows x_rows, const float* dg, T* dx,
                                FastRows dx_rows, uint32_t rows, int64_t width, bool accumulate) {
  const uint32_t row = blockIdx.x * kBlockRows + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes;
  const float mean = mean_of(x + x_rows[min(row, rows - 1)], lane, width);
  if (row >= rows) {
    return;
  }
  // g (1 - g) as sigmoid(m) sigmoid(-m): 1 - g has few digits where g is close to 1.
  const float each = dg[row] * (sigmoid(mean) * sigmoid(-mean)) / static_cast<float>(width);
  T* to = dx + dx_rows[row];
  for (int64_t i = lane; i < width; i += kLanes) {
    put(to + i, each, accumulate);
  }
}

unsigned blocks_of(int64_t rows) {
  require(rows < int64_t{1} << 31, "memory_gate", "{} rows are too many", rows);
  return static_cast<unsigned>(ceil_div(rows, kBlockRows));
}

template <typename T>
void forward(const OpArgs& args) {
  const View& x = args.in[0];
  forward_kernel<<<blocks_of(x.rows()), kThreads, 0, this_stream()>>>(
      x.ptr<T>(), FastRows(x), args.out[0].ptr<float>(), static_cast<uint32_t>(x.rows()),
      x.dim(-1));
  check_launch("memory_gate");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[0], &dx = args.din[0];
  backward_kernel<<<blocks_of(x.rows()), kThreads, 0, this_stream()>>>(
      x.ptr<T>(), FastRows(x), args.dout[0].ptr<float>(), dx.ptr<T>(), FastRows(dx),
      static_cast<uint32_t>(x.rows()), x.dim(-1), args.accumulate[0]);
  check_launch("memory_gate backward");
}

}  // namespace

void memory_gate_forward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
  }
}

void memory_gate_backward_cuda(const OpArgs& args) {
  if (args.din[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
  }
}

}  // namespace fwpkm
