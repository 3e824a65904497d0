// A few lanes for each row, or a warp; the weight's gradient is summed in the same pass.
#include <type_traits>

#include "ops/common/rows.cuh"
#include "ops/lact_out/lact_out.h"

namespace fwpkm {
namespace {

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* a, const T* x, const float* w, const T* s, T* y,
                   float* saved, int64_t width, double eps) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const int64_t first = row * width;
    const LaneRuns<T, kCount, kHeld> values(plan, x + first);
    using Sum = std::conditional_t<sizeof(T) == 2, float, double>;
    Sum squares = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += static_cast<Sum>(value[i]) * static_cast<Sum>(value[i]);
      }
    });
    const Sum mean = lanes_sum(plan, squares) / static_cast<Sum>(width);
    const auto r = static_cast<float>(1 / sqrt(mean + static_cast<Sum>(eps)));
    if (!here) {
      return;
    }
    const float scale = to_float(s[row]), gain = r * gated<T>(scale, scale);
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], weight[kCount], sum[kCount];
      values.get(j, at, value);
      load_run(w + at, weight);
      load_run(a + first + at, sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum[i] += value[i] * gain * weight[i];
      }
      store_run(y + first + at, sum);
    });
    if (saved != nullptr && plan.lane() == 0) {
      saved[row] = r;
    }
  });
}

// Where gradients go; null: nobody wants it, or it is dy itself.
template <typename T>
struct Gradients {
  T *da, *dx, *ds;
  bool add_a, add_x, add_s;
};

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads, kSumBlocks<T, kHeld>)
    backward_kernel(RowPlan plan, const T* x, const float* w, const T* s, const T* dy,
                    const float* saved, Gradients<T> to, float* partial, int64_t width) {
  ColumnSums<kCount, kHeld> sums(plan, partial);
  for_rows(plan, [&](uint32_t row, bool here) {
    const int64_t first = row * width;
    const LaneRuns<T, kCount, kHeld> values(plan, x + first), grads(plan, dy + first);
    const float r = saved[row], scale = to_float(s[row]);
    const float sigma = gated<T>(1, scale), f = scale * sigma;
    float sum = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount], weight[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum += d[i] * weight[i] * value[i] * r;
      }
    });
    sum = lanes_sum(plan, sum);
    if (!here) {
      return;
    }
    if (to.ds != nullptr && plan.lane() == 0) {
      put(to.ds + row, sigma * (1 + scale * (1 - sigma)) * sum, to.add_s);
    }
    const float mean = sum / static_cast<float>(width);
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], d[kCount], weight[kCount], dw[kCount], dx[kCount];
      values.get(j, at, value);
      grads.get(j, at, d);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        dw[i] = f * d[i] * value[i] * r;
        dx[i] = through_norm(__fmul_rn(d[i], weight[i]), value[i] * r, mean, r * f);
      }
      sums.add(j, at, dw);
      if (to.dx != nullptr) {
        put_run(to.dx + first + at, dx, to.add_x);
      }
      if (to.da != nullptr) {
        put_run(to.da + first + at, d, to.add_a);
      }
    });
  });
  sums.finish(plan);
}

// A view [.., width] of as many elements as x, to be taken row by row.
View rows_of(const View& view, int64_t width) {
  return view ? view.reshape({view.size() / width, width}) : View();
}

template <typename T>
void forward(const OpArgs& args) {
  const View &x = args.in[1], &w = args.in[2];
  const int64_t width = x.dim(-1);
  const View a = rows_of(args.in[0], width), y = rows_of(args.out[0], width);
  if (x.size() == 0) {
    return;
  }
  with_runs<1>(width, in_runs_of(8, {a, x, w, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), width / kCount);
                 forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, a.ptr<T>(), x.ptr<T>(), w.ptr<float>(), args.in[3].ptr<T>(), y.ptr<T>(),
                     args.saved[0].ptr<float>(), width, args.attr<LactOutSettings>().eps);
               });
  check_launch("lact_out");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[1], &w = args.in[2], &dx = args.din[1];
  const int64_t width = x.dim(-1);
  const View dy = rows_of(args.dout[0], width);
  const bool shares = args.din[0].data == args.dout[0].data;
  const View da = shares ? View() : rows_of(args.din[0], width);
  auto* partial = args.din[2] ? static_cast<float*>(args.workspace) : nullptr;
  with_runs<1>(
      width, in_runs_of(8, {x, w, dy, da, dx}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
        const RowPlan plan(x.rows(), width / kCount);
        const auto parts = ColumnParts::of<T, kHeld>(plan);
        if (x.size() > 0) {
          const Gradients<T> to = {da.ptr<T>(),        dx.ptr<T>(),        args.din[3].ptr<T>(),
                                   args.accumulate[0], args.accumulate[1], args.accumulate[3]};
          backward_kernel<T, kCount, kHeld><<<parts.blocks, kRowThreads, 0, this_stream()>>>(
              plan, x.ptr<T>(), w.ptr<float>(), args.in[3].ptr<T>(), dy.ptr<T>(),
              args.saved[0].ptr<float>(), to, partial, width);
          check_launch("lact_out backward");
        }
        add_column_sums(partial, parts, args.din[2], args.accumulate[2]);
      });
}

}  // namespace

void lact_out_forward_cuda(const OpArgs& args) {
  with_real(args.in[1], [&]<typename T>(T*) { forward<T>(args); });
}

void lact_out_backward_cuda(const OpArgs& args) {
  with_real(args.in[1], [&]<typename T>(T*) { backward<T>(args); });
}

size_t lact_out_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[2] ? column_sums_bytes(args.in[1].rows(), args.in[1].dim(-1)) : 0;
}

}  // namespace fwpkm
