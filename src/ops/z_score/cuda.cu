// A warp for each row. README.md derives backward.
#include "ops/common/device.cuh"
#include "ops/z_score/z_score.h"

namespace fwpkm {
namespace {

constexpr int kWarps = 8;

__global__ void forward_kernel(const float* x, DeviceRows x_rows, float* y, DeviceRows y_rows,
                               float* saved, int64_t rows, int64_t width) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) {
    return;
  }
  const float* from = x + x_rows[row];
  // Relative to the first feature: equal features then have std 0.
  const float first = from[0];
  float mean = 0;
  for (int64_t i = lane; i < width; i += 32) {
    mean += from[i] - first;
  }
  mean = warp_sum(mean) / static_cast<float>(width);
  float squares = 0;
  for (int64_t i = lane; i < width; i += 32) {
    const float c = (from[i] - first) - mean;
    squares += c * c;
  }
  squares = warp_sum(squares);
  const double s =
      width > 1 ? sqrt(static_cast<double>(squares) / static_cast<double>(width - 1)) : 0.0;
  const auto r = static_cast<float>(1.0 / (s + kZScoreEps));
  float* to = y + y_rows[row];
  for (int64_t i = lane; i < width; i += 32) {
    to[i] = ((from[i] - first) - mean) * r;
  }
  if (saved != nullptr && lane == 0) {
    saved[row] = static_cast<float>(s);
  }
}

__global__ void backward_kernel(const float* y, DeviceRows y_rows, const float* dy,
                                DeviceRows dy_rows, const float* saved, float* dx,
                                DeviceRows dx_rows, int64_t rows, int64_t width, bool accumulate) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) {
    return;
  }
  const float* value = y + y_rows[row];
  const float* d = dy + dy_rows[row];
  float mean = 0;
  for (int64_t i = lane; i < width; i += 32) {
    mean += d[i];
  }
  mean = warp_sum(mean) / static_cast<float>(width);
  float along = 0;  // <h, y>
  for (int64_t i = lane; i < width; i += 32) {
    along += (d[i] - mean) * value[i];
  }
  along = warp_sum(along);
  const double s = saved[row], divisor = s + kZScoreEps;
  const auto share = static_cast<float>(
      s > 0 ? static_cast<double>(along) * divisor / (static_cast<double>(width - 1) * s) : 0.0);
  const auto r = static_cast<float>(1.0 / divisor);
  float* to = dx + dx_rows[row];
  for (int64_t i = lane; i < width; i += 32) {
    put(to + i, ((d[i] - mean) - value[i] * share) * r, accumulate);
  }
}

}  // namespace

void z_score_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  if (rows.count == 0) {
    return;
  }
  forward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kWarps)), 32 * kWarps, 0,
                   this_stream()>>>(args.in[0].ptr<float>(), rows, args.out[0].ptr<float>(),
                                    DeviceRows(args.out[0]), args.saved[0].ptr<float>(), rows.count,
                                    args.in[0].dim(-1));
  check_launch("z_score");
}

void z_score_backward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.out[0]);
  if (!args.din[0] || rows.count == 0) {
    return;
  }
  backward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kWarps)), 32 * kWarps, 0,
                    this_stream()>>>(args.out[0].ptr<float>(), rows, args.dout[0].ptr<float>(),
                                     DeviceRows(args.dout[0]), args.saved[0].ptr<float>(),
                                     args.din[0].ptr<float>(), DeviceRows(args.din[0]), rows.count,
                                     args.in[0].dim(-1), args.accumulate[0]);
  check_launch("z_score backward");
}

}  // namespace fwpkm
