// Gated RMSNorm on a GPU: a warp for each row; the weight's gradient in groups of rows, then over
// the groups.
#include "ops/common/device.cuh"
#include "ops/norm_gate/norm_gate.h"

namespace fwpkm {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
constexpr int64_t kGroupRows = 256;  // of the weight's gradient

int64_t groups_of(int64_t rows) {
  return ceil_div(rows, kGroupRows);
}

__device__ double warp_sum_double(double x) {
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

__global__ void forward_kernel(const float* x, DeviceRows x_rows, const float* w, const float* z,
                               DeviceRows z_rows, float* y, DeviceRows y_rows, float* saved,
                               int64_t width, double eps) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= x_rows.count) {
    return;
  }
  const float* from = x + x_rows[row];
  const float* gate = z + z_rows[row];
  float* to = y + y_rows[row];
  const int lane = threadIdx.x % 32;
  double squares = 0;
  for (int64_t i = lane; i < width; i += 32) {
    squares += static_cast<double>(from[i]) * static_cast<double>(from[i]);
  }
  const double mean = warp_sum_double(squares) / static_cast<double>(width);
  const auto r = static_cast<float>(1 / sqrt(mean + eps));
  for (int64_t i = lane; i < width; i += 32) {
    to[i] = from[i] * r * w[i] * (gate[i] / (1 + expf(-gate[i])));
  }
  if (saved != nullptr && lane == 0) {
    saved[row] = r;
  }
}

__global__ void input_kernel(const float* x, DeviceRows x_rows, const float* w, const float* z,
                             DeviceRows z_rows, const float* dy, DeviceRows dy_rows,
                             const float* saved, float* dx, DeviceRows dx_rows, bool add_x,
                             float* dz, DeviceRows dz_rows, bool add_z, int64_t width) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= x_rows.count) {
    return;
  }
  const float* from = x + x_rows[row];
  const float* gate = z + z_rows[row];
  const float* d = dy + dy_rows[row];
  const float r = saved[row];
  const int lane = threadIdx.x % 32;
  float mean = 0;
  for (int64_t i = lane; i < width; i += 32) {
    const float s = 1 / (1 + expf(-gate[i])), xhat = from[i] * r;
    mean += d[i] * gate[i] * s * w[i] * xhat;
    if (dz != nullptr) {
      put(dz + dz_rows[row] + i, d[i] * xhat * w[i] * s * (1 + gate[i] * (1 - s)), add_z);
    }
  }
  if (dx == nullptr) {
    return;
  }
  mean = warp_sum(mean) / static_cast<float>(width);
  float* to = dx + dx_rows[row];
  for (int64_t i = lane; i < width; i += 32) {
    const float s = 1 / (1 + expf(-gate[i]));
    put(to + i, r * (d[i] * gate[i] * s * w[i] - from[i] * r * mean), add_x);
  }
}

// The sum over a block's warps of what each has for column `lane`; for the first warp.
__device__ float sum_over_warps(float x) {
  __shared__ float parts[kWarps][32];
  parts[threadIdx.x / 32][threadIdx.x % 32] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) {
    sum += parts[i][threadIdx.x % 32];
  }
  return sum;
}

// A block for each group of rows and 32 columns: partial [groups, width].
__global__ void weight_kernel(const float* x, DeviceRows x_rows, const float* z, DeviceRows z_rows,
                              const float* dy, DeviceRows dy_rows, const float* saved,
                              float* partial, int64_t width) {
  const int64_t column = blockIdx.y * int64_t{32} + threadIdx.x % 32;
  const int64_t begin = blockIdx.x * kGroupRows, end = min(x_rows.count, begin + kGroupRows);
  float sum = 0;
  for (int64_t row = begin + threadIdx.x / 32; row < end && column < width; row += kWarps) {
    const float gate = z[z_rows[row] + column];
    sum += dy[dy_rows[row] + column] * (gate / (1 + expf(-gate))) * x[x_rows[row] + column] *
           saved[row];
  }
  sum = sum_over_warps(sum);
  if (threadIdx.x < 32 && column < width) {
    partial[blockIdx.x * width + column] = sum;
  }
}

__global__ void groups_kernel(const float* partial, int64_t groups, int64_t width, float* dw,
                              bool accumulate) {
  const int64_t column = blockIdx.x * int64_t{32} + threadIdx.x % 32;
  float sum = 0;
  for (int64_t group = threadIdx.x / 32; group < groups && column < width; group += kWarps) {
    sum += partial[group * width + column];
  }
  sum = sum_over_warps(sum);
  if (threadIdx.x < 32 && column < width) {
    put(dw + column, sum, accumulate);
  }
}

unsigned row_blocks(int64_t rows) {
  return static_cast<unsigned>(ceil_div(rows, kWarps));
}

}  // namespace

void norm_gate_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  const int64_t width = args.in[0].dim(-1);
  if (rows.count * width == 0) {
    return;
  }
  forward_kernel<<<row_blocks(rows.count), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), args.in[2].ptr<float>(),
      DeviceRows(args.in[2]), args.out[0].ptr<float>(), DeviceRows(args.out[0]),
      args.saved[0].ptr<float>(), width, args.attr<NormGateSettings>().eps);
  check_launch("norm_gate");
}

void norm_gate_backward_cuda(const OpArgs& args) {
  const View &x = args.in[0], &z = args.in[2], &dy = args.dout[0];
  const int64_t width = x.dim(-1);
  const DeviceRows x_rows(x), z_rows(z), dy_rows(dy);
  if (width == 0) {
    return;
  }
  if ((args.din[0] || args.din[2]) && x_rows.count > 0) {
    input_kernel<<<row_blocks(x_rows.count), kThreads, 0, this_stream()>>>(
        x.ptr<float>(), x_rows, args.in[1].ptr<float>(), z.ptr<float>(), z_rows, dy.ptr<float>(),
        dy_rows, args.saved[0].ptr<float>(), args.din[0].ptr<float>(),
        DeviceRows(args.din[0] ? args.din[0] : x), args.accumulate[0], args.din[2].ptr<float>(),
        DeviceRows(args.din[2] ? args.din[2] : z), args.accumulate[2], width);
    check_launch("norm_gate backward");
  }
  if (args.din[1]) {
    const int64_t groups = groups_of(x_rows.count);
    const auto columns = static_cast<unsigned>(ceil_div(width, 32));
    auto* partial = static_cast<float*>(args.workspace);
    if (groups > 0) {
      weight_kernel<<<dim3(static_cast<unsigned>(groups), columns), kThreads, 0, this_stream()>>>(
          x.ptr<float>(), x_rows, z.ptr<float>(), z_rows, dy.ptr<float>(), dy_rows,
          args.saved[0].ptr<float>(), partial, width);
      check_launch("norm_gate weight");
    }
    groups_kernel<<<columns, kThreads, 0, this_stream()>>>(
        partial, groups, width, args.din[1].ptr<float>(), args.accumulate[1]);
    check_launch("norm_gate weight sum");
  }
}

size_t norm_gate_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[1]
             ? static_cast<size_t>(groups_of(args.in[0].rows()) * args.in[0].dim(-1)) *
                   sizeof(float)
             : 0;
}

}  // namespace fwpkm
