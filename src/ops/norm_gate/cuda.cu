// Gated RMSNorm on a GPU: a few lanes for each row, or a warp; the weight's gradient is summed in
// the same pass.
#include "ops/common/rows.cuh"
#include "ops/norm_gate/norm_gate.h"

namespace fwpkm {
namespace {

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, const T* z,
                   FastRows z_rows, T* y, FastRows y_rows, float* saved, float width, double eps) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]), gates(plan, z + z_rows[row]);
    Wide<T> squares = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount];
      values.get(j, at, value);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        squares += Wide<T>(value[i]) * value[i];
      }
    });
    const Wide<T> r =
        wide_inverse_root<T>(lanes_sum(plan, squares) / Wide<T>(width) + Wide<T>(eps));
    if (!here) {
      return;
    }
    T* to = y + y_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], gate[kCount], weight[kCount];
      values.get(j, at, value);
      gates.get(j, at, gate);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Wide<T> scaled = value[i] * r * weight[i];
        if constexpr (sizeof(T) == 2) {
          value[i] = scaled * gated<T>(gate[i], gate[i]);
        } else {
          value[i] = static_cast<float>(scaled * gate[i] / (1 + exp(-Wide<T>(gate[i]))));
        }
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
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const float* w, const T* z,
                    FastRows z_rows, const T* dy, FastRows dy_rows, const float* saved, T* dx,
                    FastRows dx_rows, bool add_x, T* dz, FastRows dz_rows, bool add_z,
                    float* partial, float width) {
  ColumnSums<kCount, kHeld> sums(plan, partial);
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> values(plan, x + x_rows[row]), gates(plan, z + z_rows[row]),
        grads(plan, dy + dy_rows[row]);
    const float r = saved[row];
    float mean = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], gate[kCount], d[kCount], weight[kCount], dw[kCount];
      values.get(j, at, value);
      gates.get(j, at, gate);
      grads.get(j, at, d);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float s = gated<T>(1, gate[i]), xhat = value[i] * r;
        mean += d[i] * gate[i] * s * weight[i] * value[i] * r;
        dw[i] = d[i] * gate[i] * s * xhat;
        d[i] = d[i] * xhat * weight[i] * s * (1 + gate[i] * (1 - s));
      }
      if (here) {
        sums.add(j, at, dw);
        if (dz != nullptr) {
          put_run(dz + dz_rows[row] + at, d, add_z);
        }
      }
    });
    mean = lanes_sum(plan, mean) / width;
    if (!here || dx == nullptr) {
      return;
    }
    T* to = dx + dx_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], gate[kCount], d[kCount], weight[kCount];
      values.get(j, at, value);
      gates.get(j, at, gate);
      grads.get(j, at, d);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float s = gated<T>(1, gate[i]);
        d[i] = through_norm(__fmul_rn(d[i] * gate[i] * s, weight[i]), value[i] * r, mean, r);
      }
      put_run(to + at, d, add_x);
    });
  });
  sums.finish(plan);
}

template <typename T>
void forward(const OpArgs& args) {
  const View &x = args.in[0], &w = args.in[1], &z = args.in[2], &y = args.out[0];
  const int64_t width = x.dim(-1);
  if (x.size() == 0) {
    return;
  }
  with_runs<1>(width, in_runs_of(8, {x, w, z, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), width / kCount);
                 forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), z.ptr<T>(), FastRows(z),
                     y.ptr<T>(), FastRows(y), args.saved[0].ptr<float>(), static_cast<float>(width),
                     args.attr<NormGateSettings>().eps);
               });
  check_launch("norm_gate");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[0], &w = args.in[1], &z = args.in[2], &dy = args.dout[0];
  const View &dx = args.din[0], &dz = args.din[2];
  const int64_t width = x.dim(-1);
  auto* partial = args.din[1] ? static_cast<float*>(args.workspace) : nullptr;
  with_runs<1>(width, in_runs_of(8, {x, w, z, dy, dx, dz}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), width / kCount);
                 const auto parts = ColumnParts::of<T, kHeld>(plan);
                 if (x.size() > 0) {
                   backward_kernel<T, kCount, kHeld>
                       <<<parts.blocks, kRowThreads, 0, this_stream()>>>(
                           plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), z.ptr<T>(), FastRows(z),
                           dy.ptr<T>(), FastRows(dy), args.saved[0].ptr<float>(), dx.ptr<T>(),
                           FastRows(dx), args.accumulate[0], dz.ptr<T>(), FastRows(dz),
                           args.accumulate[2], partial, static_cast<float>(width));
                   check_launch("norm_gate backward");
                 }
                 add_column_sums(partial, parts, args.din[1], args.accumulate[1]);
               });
}

}  // namespace

void norm_gate_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void norm_gate_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t norm_gate_workspace_cuda(const OpArgs& args, bool backward) {
  return backward && args.din[1] ? column_sums_bytes(args.in[0].rows(), args.in[0].dim(-1)) : 0;
}

}  // namespace fwpkm
