// A warp for each row.
#include "ops/blend/blend.h"
#include "ops/common/device.cuh"

namespace fwpkm {
namespace {

constexpr int kWarps = 8;

__global__ void forward_kernel(const float* a, DeviceRows a_rows, const float* b, DeviceRows b_rows,
                               const float* g, float* y, DeviceRows y_rows, int64_t rows,
                               int64_t width) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= rows) {
    return;
  }
  a += a_rows[row];
  b += b_rows[row];
  y += y_rows[row];
  const float of_a = g != nullptr ? g[row] : 1, of_b = g != nullptr ? 1 - g[row] : 1;
  for (int64_t i = threadIdx.x % 32; i < width; i += 32) {
    y[i] = of_a * a[i] + of_b * b[i];
  }
}

// Null gradients are not wanted. a and b may be one tensor, and so may da and db: the gradient of b
// is then added to that of a, by the same thread.
__global__ void backward_kernel(const float* a, DeviceRows a_rows, const float* b,
                                DeviceRows b_rows, const float* g, const float* dy,
                                DeviceRows dy_rows, float* da, DeviceRows da_rows, float* db,
                                DeviceRows db_rows, float* dg, int64_t rows, int64_t width,
                                bool add_a, bool add_b, bool add_g) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= rows) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const float of_a = g != nullptr ? g[row] : 1, of_b = g != nullptr ? 1 - g[row] : 1;
  a += a_rows[row];
  b += b_rows[row];
  dy += dy_rows[row];
  const int64_t da_at = da_rows[row], db_at = db_rows[row];
  float dot = 0;
  for (int64_t i = lane; i < width; i += 32) {
    const float d = dy[i];
    if (da != nullptr) {
      put(da + da_at + i, of_a * d, add_a);
    }
    if (db != nullptr) {
      put(db + db_at + i, of_b * d, add_b);
    }
    if (dg != nullptr) {
      dot += d * (a[i] - b[i]);
    }
  }
  if (dg != nullptr) {
    dot = warp_sum(dot);
    if (lane == 0) {
      put(dg + row, dot, add_g);
    }
  }
}

}  // namespace

void blend_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  if (rows.count == 0) {
    return;
  }
  forward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kWarps)), 32 * kWarps, 0,
                   this_stream()>>>(args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(),
                                    DeviceRows(args.in[1]), args.in[2].ptr<float>(),
                                    args.out[0].ptr<float>(), DeviceRows(args.out[0]), rows.count,
                                    args.in[0].dim(-1));
  check_launch("blend");
}

void blend_backward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  if (rows.count == 0) {
    return;
  }
  backward_kernel<<<static_cast<unsigned>(ceil_div(rows.count, kWarps)), 32 * kWarps, 0,
                    this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), DeviceRows(args.in[1]),
      args.in[2].ptr<float>(), args.dout[0].ptr<float>(), DeviceRows(args.dout[0]),
      args.din[0].ptr<float>(), DeviceRows(args.din[0]), args.din[1].ptr<float>(),
      DeviceRows(args.din[1]), args.din[2].ptr<float>(), rows.count, args.in[0].dim(-1),
      args.accumulate[0], args.accumulate[1], args.accumulate[2]);
  check_launch("blend backward");
}

}  // namespace fwpkm
