// A warp for each row: its lanes take pairs, then the features that are not turned.
#include "ops/common/device.cuh"
#include "ops/rope/rope.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__global__ void turn_kernel(const float* x, DeviceRows x_rows, const float* cos, const float* sin,
                            float* y, DeviceRows y_rows, int64_t tokens, int64_t heads,
                            int64_t half, int64_t width, bool back, bool accumulate) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; row < x_rows.count;
       row += int64_t{gridDim.x} * (kThreads / 32)) {
    const float* from = x + x_rows[row];
    float* to = y + y_rows[row];
    const int64_t at = row / heads % tokens * half;
    for (int64_t i = lane; i < half; i += 32) {
      const float c = cos[at + i], s = back ? -sin[at + i] : sin[at + i];
      const float a = from[i], b = from[i + half];
      put(to + i, a * c - b * s, accumulate);
      put(to + i + half, b * c + a * s, accumulate);
    }
    for (int64_t i = 2 * half + lane; i < width; i += 32) {
      put(to + i, from[i], accumulate);
    }
  }
}

void turn(const OpArgs& args, const View& x, const View& y, bool back, bool accumulate) {
  const DeviceRows rows(x);
  const int64_t width = x.dim(3);
  if (rows.count == 0 || width == 0) {
    return;
  }
  turn_kernel<<<blocks_for(rows.count * 32, kThreads), kThreads, 0, this_stream()>>>(
      x.ptr<float>(), rows, args.in[1].ptr<float>(), args.in[2].ptr<float>(), y.ptr<float>(),
      DeviceRows(y), x.dim(1), x.dim(2), args.in[1] ? args.in[1].dim(1) : 0, width, back,
      accumulate);
  check_launch("rope");
}

}  // namespace

void rope_forward_cuda(const OpArgs& args) {
  turn(args, args.in[0], args.out[0], false, false);
}

void rope_backward_cuda(const OpArgs& args) {
  if (args.din[0]) {
    turn(args, args.dout[0], args.din[0], true, args.accumulate[0]);
  }
}

}  // namespace fwpkm
