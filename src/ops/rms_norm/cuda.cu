// RMSNorm on a GPU: a block for each row; the weight's gradient in groups of rows, then group by
// group.
#include "ops/common/device.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__global__ void forward_kernel(const float* x, DeviceRows x_rows, const float* w, float* y,
                               float* saved, int64_t width, float eps, float offset) {
  const int64_t row = blockIdx.x;
  const float* from = x + x_rows[row];
  float squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    squares += from[i] * from[i];
  }
  const float r = 1 / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    y[row * width + i] = from[i] * r * (offset + w[i]);
  }
  if (saved != nullptr && threadIdx.x == 0) {
    saved[row] = r;
  }
}

__global__ void input_kernel(const float* x, DeviceRows x_rows, const float* w, const float* dy,
                             DeviceRows dy_rows, const float* saved, float* dx, DeviceRows dx_rows,
                             int64_t width, float offset, bool accumulate) {
  const int64_t row = blockIdx.x;
  const float* from = x + x_rows[row];
  const float* d = dy + dy_rows[row];
  const float r = saved[row];
  float mean = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    mean += d[i] * (offset + w[i]) * from[i] * r;
  }
  mean = block_sum<kThreads>(mean) / static_cast<float>(width);
  float* to = dx + dx_rows[row];
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    put(to + i, r * (d[i] * (offset + w[i]) - from[i] * r * mean), accumulate);
  }
}

__global__ void weight_kernel(const float* x, DeviceRows x_rows, const float* dy,
                              DeviceRows dy_rows, const float* saved, float* partial, int64_t rows,
                              int64_t width) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (column >= width) {
    return;
  }
  const int64_t begin = blockIdx.y * kColumnRows;
  float sum = 0;
  for (int64_t row = begin; row < min(rows, begin + kColumnRows); ++row) {
    sum += dy[dy_rows[row] + column] * x[x_rows[row] + column] * saved[row];
  }
  partial[blockIdx.y * width + column] = sum;
}

}  // namespace

void rms_norm_forward_cuda(const OpArgs& args) {
  const auto settings = args.attr<RmsNormSettings>();
  const DeviceRows rows(args.in[0]);
  if (rows.count == 0) {
    return;
  }
  forward_kernel<<<static_cast<unsigned>(rows.count), kThreads, 0, this_stream()>>>(
      args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), args.out[0].ptr<float>(),
      args.saved[0].ptr<float>(), args.in[0].dim(-1), static_cast<float>(settings.eps),
      static_cast<float>(settings.offset));
  check_launch("rms_norm");
}

void rms_norm_backward_cuda(const OpArgs& args) {
  const auto settings = args.attr<RmsNormSettings>();
  const DeviceRows rows(args.in[0]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  if (args.din[0] && rows.count > 0) {
    input_kernel<<<static_cast<unsigned>(rows.count), kThreads, 0, this_stream()>>>(
        args.in[0].ptr<float>(), rows, args.in[1].ptr<float>(), args.dout[0].ptr<float>(), dy_rows,
        args.saved[0].ptr<float>(), args.din[0].ptr<float>(), DeviceRows(args.din[0]), width,
        static_cast<float>(settings.offset), args.accumulate[0]);
    check_launch("rms_norm backward");
  }
  if (args.din[1]) {
    const int64_t groups = column_groups(rows.count);
    auto* partial = static_cast<float*>(args.workspace);
    weight_kernel<<<dim3(static_cast<unsigned>(ceil_div(width, 128)),
                         static_cast<unsigned>(std::max<int64_t>(1, groups))),
                    128, 0, this_stream()>>>(
        args.in[0].ptr<float>(), rows, args.dout[0].ptr<float>(), dy_rows,
        args.saved[0].ptr<float>(), partial, rows.count, width);
    check_launch("rms_norm weight");
    add_column_groups(partial, groups, width, args.din[1].ptr<float>(), args.accumulate[1]);
  }
}

size_t rms_norm_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[1]
             ? static_cast<size_t>(std::max<int64_t>(1, column_groups(args.in[0].rows())) *
                                   args.in[0].dim(-1)) *
                   sizeof(float)
             : 0;
}

}  // namespace fwpkm
