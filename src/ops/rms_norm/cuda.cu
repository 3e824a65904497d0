// RMSNorm on a GPU: a warp, or part of one, for each row, which it reads once; the weight's
// gradient is summed in the same pass.
#include "ops/common/rows.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {
namespace {

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, T* y, FastRows y_rows,
                   float* saved, float width, double eps, float offset) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]);
    Wide<T> squares = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += Wide<T>(value[i]) * value[i];
      }
    });
    const Wide<T> r = wide_inverse_root<T>(lanes_sum(plan, squares) / width + Wide<T>(eps));
    if (!here) {
      return;
    }
    T* to = y + y_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], weight[kCount];
      values.get(j, at, value);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = static_cast<float>(value[i] * r * (Wide<T>(offset) + weight[i]));
      }
      store_run(to + at, value);
    });
    if (saved != nullptr && plan.lane() == 0) {
      saved[row] = static_cast<float>(r);
    }
  });
}

// Null gradients are not wanted.
template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads, kSumBlocks<T, kHeld>)
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, const T* dy,
                    FastRows dy_rows, const float* saved, T* dx, FastRows dx_rows, float* partial,
                    float width, float offset, bool accumulate) {
  ColumnSums<kCount, kHeld> sums(plan, partial);
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]), grads(plan, dy + dy_rows[row]);
    const float r = saved[row];
    float mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount], weight[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mean += d[i] * (offset + weight[i]) * value[i] * r;
      }
    });
    mean = lanes_sum(plan, mean) / width;
    if (!here) {
      return;
    }
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount], weight[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
      load_run(w + at, weight);
      float dw[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        dw[i] = d[i] * value[i] * r;
        d[i] = through_norm(__fmul_rn(d[i], offset + weight[i]), value[i] * r, mean, r);
      }
      sums.add(j, at, dw);
      if (dx != nullptr) {
        put_run(dx + dx_rows[row] + at, d, accumulate);
      }
    });
  });
  sums.finish(plan);
}

template <typename T>
void forward(const OpArgs& args) {
  const auto settings = args.attr<RmsNormSettings>();
  const View &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const int64_t width = x.dim(-1);
  if (x.size() == 0) {
    return;
  }
  with_runs<3>(width, in_runs_of(8, {x, w, y}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(x.rows(), width / kCount);
    forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
        plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), y.ptr<T>(), FastRows(y),
        args.saved[0].ptr<float>(), static_cast<float>(width), settings.eps,
        static_cast<float>(settings.offset));
  });
  check_launch("rms_norm");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[0], &w = args.in[1], &dy = args.dout[0], &dx = args.din[0];
  const int64_t width = x.dim(-1);
  auto* partial = args.din[1] ? static_cast<float*>(args.workspace) : nullptr;
  with_runs<3>(
      width, in_runs_of(8, {x, w, dy, dx}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
        const RowPlan plan(x.rows(), width / kCount);
        const auto parts = ColumnParts::of<T, kHeld>(plan);
        if (x.size() > 0) {
          backward_kernel<T, kCount, kHeld><<<parts.blocks, kRowThreads, 0, this_stream()>>>(
              plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), dy.ptr<T>(), FastRows(dy),
              args.saved[0].ptr<float>(), dx.ptr<T>(), FastRows(dx), partial,
              static_cast<float>(width), static_cast<float>(args.attr<RmsNormSettings>().offset),
              args.accumulate[0]);
          check_launch("rms_norm backward");
        }
        add_column_sums(partial, parts, args.din[1], args.accumulate[1]);
      });
}

}  // namespace

void rms_norm_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void rms_norm_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t rms_norm_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[1] ? column_sums_bytes(args.in[0].rows(), args.in[0].dim(-1)) : 0;
}

}  // namespace fwpkm
