// A few lanes for each row, or a warp; the weight's gradient is summed in the same pass.
#include "ops/norm_rope/norm_rope.h"
#include "ops/norm_rope/turns.cuh"

namespace fwpkm {
namespace {

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, Turns turns, T* y,
                   FastRows y_rows, float* saved, float width, float eps) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const T* from = x + x_rows[row];
    const LaneRuns<T, kCount, kHeld> values(plan, from);
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
    const auto normed = [&](uint32_t at, float(&value)[kCount]) {
      float weight[kCount];
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = static_cast<float>(value[i] * r * (1 + Wide<T>(weight[i])));
      }
    };
    T* to = y + y_rows[row];
    const int64_t angles = turns.angles(row);
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
      normed(at, value);
      turns.turn(angles, at, false, value, [&](uint32_t other_at, float(&other)[kCount]) {
        load_run(from + other_at, other);
        normed(other_at, other);
      });
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
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, Turns turns,
                    const T* dy, FastRows dy_rows, const float* saved, T* dx, FastRows dx_rows,
                    float* partial, float width, bool accumulate) {
  ColumnSums<kCount, kHeld> sums(plan, partial);
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]);
    const T* grad = dy + dy_rows[row];
    const float r = saved[row];
    const int64_t angles = turns.angles(row);
    // A run of dy turned back.
    const auto turned = [&](uint32_t at, float(&d)[kCount]) {
      load_run(grad + at, d);
      turns.turn(angles, at, true, d, [&](uint32_t other_at, float(&other)[kCount]) {
        load_run(grad + other_at, other);
      });
    };
    float d[kHeld > 0 ? kHeld : 1][kCount];
    float mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], weight[kCount];
      turned(at, d[j]);
      values.get(j, at, value);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mean += d[j][i] * (1 + weight[i]) * value[i] * r;
      }
    });
    mean = lanes_sum(plan, mean) / width;
    if (!here) {
      return;
    }
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      if constexpr (kHeld == 0) {
        turned(at, d[j]);
      }
      float value[kCount], weight[kCount], dw[kCount];
      values.get(j, at, value);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        dw[i] = d[j][i] * value[i] * r;
        value[i] = through_norm(__fmul_rn(d[j][i], 1 + weight[i]), value[i] * r, mean, r);
      }
      sums.add(j, at, dw);
      if (dx != nullptr) {
        put_run(dx + dx_rows[row] + at, value, accumulate);
      }
    });
  });
  sums.finish(plan);
}

template <typename T>
void forward(const OpArgs& args) {
  const View &x = args.in[0], &w = args.in[1], &cos = args.in[2], &sin = args.in[3];
  const View& y = args.out[0];
  const int64_t width = x.dim(3);
  if (x.size() == 0) {
    return;
  }
  with_runs<1>(width, in_runs_of(8, {x, w, cos, sin, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), width / kCount);
                 forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), Turns(x, cos, sin), y.ptr<T>(),
                     FastRows(y), args.saved[0].ptr<float>(), static_cast<float>(width),
                     static_cast<float>(args.attr<NormRopeSettings>().eps));
               });
  check_launch("norm_rope");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[0], &w = args.in[1], &cos = args.in[2], &sin = args.in[3];
  const View &dy = args.dout[0], &dx = args.din[0];
  const int64_t width = x.dim(3);
  auto* partial = args.din[1] ? static_cast<float*>(args.workspace) : nullptr;
  with_runs<1>(width, in_runs_of(8, {x, w, cos, sin, dy, dx}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), width / kCount);
                 const auto parts = ColumnParts::of<T, kHeld>(plan);
                 if (x.size() > 0) {
                   backward_kernel<T, kCount, kHeld>
                       <<<parts.blocks, kRowThreads, 0, this_stream()>>>(
                           plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), Turns(x, cos, sin),
                           dy.ptr<T>(), FastRows(dy), args.saved[0].ptr<float>(), dx.ptr<T>(),
                           FastRows(dx), partial, static_cast<float>(width), args.accumulate[0]);
                   check_launch("norm_rope backward");
                 }
                 add_column_sums(partial, parts, args.din[1], args.accumulate[1]);
               });
}

}  // namespace

void norm_rope_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void norm_rope_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t norm_rope_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[1] ? column_sums_bytes(args.in[0].rows(), args.in[0].dim(3)) : 0;
}

}  // namespace fwpkm
