// RMSNorm on a GPU: a warp, or part of one, for each row, which it reads once; the weight's
// gradient is summed in the same pass. Backward of rows that a warp cannot hold has a team of
// threads for them.
#include "ops/common/row_teams.cuh"
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

template <typename T, int kRows>
__global__ void __launch_bounds__(kRowThreads, TeamPlan::kBlocks)
    team_backward_kernel(TeamPlan plan, const T* x, FastRows x_rows, const float* w, const T* dy,
                         FastRows dy_rows, const float* saved, T* dx, FastRows dx_rows,
                         float* partial, float width, float offset, bool accumulate) {
  constexpr int kRun = TeamPlan::kRun;
  const uint32_t at = plan.at();
  float gain[kRun] = {}, sums[kRun] = {};
  load_gain(plan, w, offset, gain);
  uint32_t turn = 0;
  for_team_rows<kRows>(plan, [&](uint32_t first) {
    // What is not there is 0. Nothing is looked at before all of it is on its way.
    HeldRun<T, kRun> values[kRows] = {}, grads[kRows] = {}, old[kRows] = {};
    float r[kRows] = {}, mean[kRows] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const uint32_t row = first + k;
      if (row < plan.rows && plan.has_run()) {
        values[k].load(x + x_rows[row] + at);
        grads[k].load(dy + dy_rows[row] + at);
        if (accumulate) {
          old[k].load(dx + dx_rows[row] + at);
        }
        r[k] = saved[row];
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      float value[kRun], d[kRun];
      values[k].get(value);
      grads[k].get(d);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float part = d[i] * (value[i] * r[k]);
        mean[k] += part * gain[i];
        sums[i] += part;
      }
    }
    team_sums(plan, turn++, mean);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      mean[k] /= width;
      if (first + k >= plan.rows || !plan.has_run() || dx == nullptr) {
        continue;
      }
      float value[kRun], d[kRun], to[kRun];
      values[k].get(value);
      grads[k].get(d);
      old[k].get(to);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        to[i] += through_norm(__fmul_rn(d[i], gain[i]), value[i] * r[k], mean[k], r[k]);
      }
      store_run(dx + dx_rows[first + k] + at, to);
    }
  });
  put_team_columns(plan, sums, partial);
}

template <typename T>
void forward(const OpArgs& args) {
  const auto settings = args.attr<RmsNormSettings>();
  const View &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const int64_t width = x.dim(-1);
  if (x.size() == 0) {
    return;
  }
  with_runs<8>(width, in_runs_of(8, {x, w, y}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
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
  const auto launch = [&](auto kernel, const auto& plan, const ColumnParts& parts,
                          unsigned threads) {
    if (x.size() > 0) {
      kernel<<<parts.blocks, threads, 0, this_stream()>>>(
          plan, x.ptr<T>(), FastRows(x), w.ptr<float>(), dy.ptr<T>(), FastRows(dy),
          args.saved[0].ptr<float>(), dx.ptr<T>(), FastRows(dx), partial, static_cast<float>(width),
          static_cast<float>(args.attr<RmsNormSettings>().offset), dx && args.accumulate[0]);
      check_launch("rms_norm backward");
    }
    add_column_sums(partial, parts, args.din[1], args.accumulate[1]);
  };
  with_runs<3>(
      width, in_runs_of(8, {x, w, dy, dx}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
        if (kCount == TeamPlan::kRun && kHeld == 0 && TeamPlan::fits(width)) {
          constexpr int kRows = sizeof(T) == 2 ? 4 : 2;
          const TeamPlan plan(x.rows(), width);
          launch(&team_backward_kernel<T, kRows>, plan, plan.parts<kRows>(), plan.block_threads());
          return;
        }
        const RowPlan plan(x.rows(), width / kCount);
        launch(&backward_kernel<T, kCount, kHeld>, plan, ColumnParts::of<T, kHeld>(plan),
               kRowThreads);
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
