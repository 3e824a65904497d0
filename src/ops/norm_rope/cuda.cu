// A warp for each row; the weight's gradient in groups of rows, then group by group.
#include "ops/common/device.cuh"
#include "ops/norm_rope/norm_rope.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

// Which angles a row is turned by.
struct Turns {
  const float* cos;
  const float* sin;
  int64_t tokens, heads, half;

  explicit Turns(const OpArgs& args)
      : cos(args.in[2].ptr<float>()),
        sin(args.in[3].ptr<float>()),
        tokens(args.in[0].dim(1)),
        heads(args.in[0].dim(2)),
        half(args.in[2] ? args.in[2].dim(1) : 0) {}

  __device__ int64_t at(int64_t row) const { return half > 0 ? row / heads % tokens * half : 0; }
  // Feature i of a row of dy, turned back by the angles from `at` on.
  __device__ float back(const float* dy, int64_t at, int64_t i) const {
    if (i >= 2 * half) {
      return dy[i];
    }
    return i < half ? dy[i] * cos[at + i] + dy[i + half] * sin[at + i]
                    : dy[i] * cos[at + i - half] - dy[i - half] * sin[at + i - half];
  }
};

__global__ void forward_kernel(const float* x, DeviceRows x_rows, const float* w, Turns turns,
                               float* y, DeviceRows y_rows, float* saved, int64_t width,
                               float eps) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; row < x_rows.count;
       row += int64_t{gridDim.x} * (kThreads / 32)) {
    const float* from = x + x_rows[row];
    float* to = y + y_rows[row];
    float squares = 0;
    for (int64_t i = lane; i < width; i += 32) {
      squares += from[i] * from[i];
    }
    const float r = 1 / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
    const int64_t half = turns.half, at = turns.at(row);
    for (int64_t i = lane; i < half; i += 32) {
      const float c = turns.cos[at + i], s = turns.sin[at + i];
      const float a = from[i] * r * (1 + w[i]), b = from[i + half] * r * (1 + w[i + half]);
      to[i] = a * c - b * s;
      to[i + half] = b * c + a * s;
    }
    for (int64_t i = 2 * half + lane; i < width; i += 32) {
      to[i] = from[i] * r * (1 + w[i]);
    }
    if (saved != nullptr && lane == 0) {
      saved[row] = r;
    }
  }
}

__global__ void input_kernel(const float* x, DeviceRows x_rows, const float* w, Turns turns,
                             const float* dy, DeviceRows dy_rows, const float* saved, float* dx,
                             DeviceRows dx_rows, int64_t width, bool accumulate) {
  const int lane = threadIdx.x % 32;
  for (int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32; row < x_rows.count;
       row += int64_t{gridDim.x} * (kThreads / 32)) {
    const float* from = x + x_rows[row];
    const float* d = dy + dy_rows[row];
    float* to = dx + dx_rows[row];
    const float r = saved[row];
    const int64_t at = turns.at(row);
    float mean = 0;
    for (int64_t i = lane; i < width; i += 32) {
      mean += turns.back(d, at, i) * (1 + w[i]) * from[i] * r;
    }
    mean = warp_sum(mean) / static_cast<float>(width);
    for (int64_t i = lane; i < width; i += 32) {
      // Rounded step by step as the plain code does: in short rows nearly everything cancels.
      const float g = __fmul_rn(turns.back(d, at, i), 1 + w[i]);
      put(to + i, __fmul_rn(r, g - __fmul_rn(from[i] * r, mean)), accumulate);
    }
  }
}

// Rows of a group: few groups are left to add up.
int64_t group_rows(int64_t rows) {
  return std::max(kColumnRows, ceil_div(rows, 512));
}
int64_t groups_of(int64_t rows) {
  return std::max<int64_t>(1, ceil_div(rows, group_rows(rows)));
}

__global__ void weight_kernel(const float* x, DeviceRows x_rows, Turns turns, const float* dy,
                              DeviceRows dy_rows, const float* saved, float* partial,
                              int64_t per_group, int64_t width) {
  const int64_t group = blockIdx.x, begin = group * per_group;
  const int64_t end = min(x_rows.count, begin + per_group);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      sum += turns.back(dy + dy_rows[row], turns.at(row), i) * x[x_rows[row] + i] * saved[row];
    }
    partial[group * width + i] = sum;
  }
}

}  // namespace

void norm_rope_forward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]);
  const int64_t width = args.in[0].dim(3);
  if (rows.count == 0 || width == 0) {
    return;
  }
  forward_kernel<<<blocks_for(rows.count * 32, kThreads), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), Turns(args), args.out[0].ptr<float>(),
      DeviceRows(args.out[0]), args.saved[0].ptr<float>(), width,
      static_cast<float>(args.attr<NormRopeSettings>().eps));
  check_launch("norm_rope");
}

void norm_rope_backward_cuda(const OpArgs& args) {
  const DeviceRows rows(args.in[0]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(3);
  if (width == 0) {
    return;
  }
  if (args.din[0] && rows.count > 0) {
    input_kernel<<<blocks_for(rows.count * 32, kThreads), kThreads, 0, this_stream()>>>(
        args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), Turns(args),
        args.dout[0].ptr<float>(), dy_rows, args.saved[0].ptr<float>(), args.din[0].ptr<float>(),
        DeviceRows(args.din[0]), width, args.accumulate[0]);
    check_launch("norm_rope backward");
  }
  if (args.din[1]) {
    const int64_t groups = groups_of(rows.count);
    auto* partial = static_cast<float*>(args.workspace);
    weight_kernel<<<static_cast<unsigned>(groups), 128, 0, this_stream()>>>(
        args.in[0].ptr<float>(), rows, Turns(args), args.dout[0].ptr<float>(), dy_rows,
        args.saved[0].ptr<float>(), partial, group_rows(rows.count), width);
    check_launch("norm_rope weight");
    add_column_groups(partial, groups, width, args.din[1].ptr<float>(), args.accumulate[1]);
  }
}

size_t norm_rope_workspace_cuda(const OpArgs& args, bool backward) {
  const View& x = args.in[0];
  return backward && args.din[1]
             ? static_cast<size_t>(groups_of(x.rows()) * x.dim(3)) * sizeof(float)
             : 0;
}

}  // namespace fwpkm
