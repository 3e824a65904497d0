// A warp, or part of one, for each row, which it reads once. README.md derives backward.
#include "ops/common/rows.cuh"
#include "ops/z_score/z_score.h"

namespace fwpkm {
namespace {

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, T* y, FastRows y_rows, float* saved,
                   uint32_t width) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const T* from = x + x_rows[row];
    const LaneRuns<T, kCount, kHeld> values(plan, from);
    // Relative to the first feature: equal features then have std 0.
    const float first = to_float(from[0]);
    Wide<T> mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mean += Wide<T>(value[i]) - first;
      }
    });
    mean = lanes_sum(plan, mean) / Wide<T>(width);
    Wide<T> squares = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Wide<T> c = (Wide<T>(value[i]) - first) - mean;
        squares += c * c;
      }
    });
    squares = lanes_sum(plan, squares);
    const double s =
        width > 1 ? sqrt(static_cast<double>(squares) / static_cast<double>(width - 1)) : 0.0;
    const auto r = static_cast<Wide<T>>(1.0 / (s + kZScoreEps));
    if (!here) {
      return;
    }
    T* to = y + y_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = static_cast<float>(((Wide<T>(value[i]) - first) - mean) * r);
      }
      store_run(to + at, value);
    });
    if (saved != nullptr && plan.lane() == 0) {
      saved[row] = static_cast<float>(s);
    }
  });
}

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowPlan plan, const T* y, FastRows y_rows, const T* dy, FastRows dy_rows,
                    const float* saved, T* dx, FastRows dx_rows, uint32_t width, bool accumulate) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, y + y_rows[row]), grads(plan, dy + dy_rows[row]);
    float mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float d[kCount];
      grads.get(j, at, d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mean += d[i];
      }
    });
    mean = lanes_sum(plan, mean) / static_cast<float>(width);
    float along = 0;  // <h, y>
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        along += (d[i] - mean) * value[i];
      }
    });
    along = lanes_sum(plan, along);
    if (!here) {
      return;
    }
    const double s = saved[row], divisor = s + kZScoreEps;
    const auto share = static_cast<float>(
        s > 0 ? static_cast<double>(along) * divisor / (static_cast<double>(width - 1) * s) : 0.0);
    const auto r = static_cast<float>(1.0 / divisor);
    T* to = dx + dx_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d[i] = ((d[i] - mean) - value[i] * share) * r;
      }
      put_run(to + at, d, accumulate);
    });
  });
}

template <typename T>
void forward(const OpArgs& args) {
  const View &x = args.in[0], &y = args.out[0];
  const int64_t width = x.dim(-1);
  with_runs<3>(width, in_runs_of(8, {x, y}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(x.rows(), width / kCount);
    forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
        plan, x.ptr<T>(), FastRows(x), y.ptr<T>(), FastRows(y), args.saved[0].ptr<float>(),
        static_cast<uint32_t>(width));
  });
  check_launch("z_score");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &y = args.out[0], &dy = args.dout[0], &dx = args.din[0];
  const int64_t width = y.dim(-1);
  with_runs<3>(
      width, in_runs_of(8, {y, dy, dx}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
        const RowPlan plan(y.rows(), width / kCount);
        backward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
            plan, y.ptr<T>(), FastRows(y), dy.ptr<T>(), FastRows(dy), args.saved[0].ptr<float>(),
            dx.ptr<T>(), FastRows(dx), static_cast<uint32_t>(width), args.accumulate[0]);
      });
  check_launch("z_score backward");
}

}  // namespace

void z_score_forward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
  }
}

void z_score_backward_cuda(const OpArgs& args) {
  if (args.din[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
  }
}

}  // namespace fwpkm
