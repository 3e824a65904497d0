// A warp for each row.
#include "ops/common/device.cuh"
#include "ops/gate/gate.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__device__ int64_t first_row() {
  return (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
}
__device__ int64_t row_step() {
  return int64_t{gridDim.x} * (kThreads / 32);
}

__global__ void forward_kernel(const float* x, DeviceRows x_rows, const float* z, DeviceRows z_rows,
                               float* y, DeviceRows y_rows, int64_t width) {
  for (int64_t row = first_row(); row < x_rows.count; row += row_step()) {
    const int64_t from = x_rows[row], gate = z_rows[row], to = y_rows[row];
    for (int64_t i = threadIdx.x % 32; i < width; i += 32) {
      y[to + i] = x[from + i] / (1 + expf(-z[gate + i]));
    }
  }
}

// x and z may be one tensor: dz then adds to what was written to dx, in the same thread.
__global__ void backward_kernel(const float* x, DeviceRows x_rows, const float* z,
                                DeviceRows z_rows, const float* dy, DeviceRows dy_rows, float* dx,
                                DeviceRows dx_rows, float* dz, DeviceRows dz_rows, int64_t width,
                                bool add_x, bool add_z) {
  for (int64_t row = first_row(); row < x_rows.count; row += row_step()) {
    const int64_t from = x_rows[row], gate = z_rows[row], grad = dy_rows[row];
    const int64_t to_x = dx_rows[row], to_z = dz_rows[row];
    for (int64_t i = threadIdx.x % 32; i < width; i += 32) {
      const float s = 1 / (1 + expf(-z[gate + i])), d = dy[grad + i];
      if (dx != nullptr) {
        put(dx + to_x + i, d * s, add_x);
      }
      if (dz != nullptr) {
        put(dz + to_z + i, d * x[from + i] * s * (1 - s), add_z);
      }
    }
  }
}

}  // namespace

void gate_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  const int64_t width = args.in[0].dim(-1);
  if (rows.count == 0 || width == 0) {
    return;
  }
  forward_kernel<<<blocks_for(rows.count * 32, kThreads), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), DeviceRows(args.in[1]),
      args.out[0].ptr<float>(), DeviceRows(args.out[0]), width);
  check_launch("gate");
}

void gate_backward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  const int64_t width = args.in[0].dim(-1);
  if (rows.count == 0 || width == 0) {
    return;
  }
  backward_kernel<<<blocks_for(rows.count * 32, kThreads), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), DeviceRows(args.in[1]),
      args.dout[0].ptr<float>(), DeviceRows(args.dout[0]), args.din[0].ptr<float>(),
      DeviceRows(args.din[0]), args.din[1].ptr<float>(), DeviceRows(args.din[1]), width,
      args.accumulate[0], args.accumulate[1]);
  check_launch("gate backward");
}

}  // namespace fwpkm
