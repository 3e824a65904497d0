// Forward has a warp, or part of one, for each row; backward has teams of threads that keep the
// weight and the sum of its gradient. Both read a row once.
#include "ops/blend_norm/blend_norm.h"
#include "ops/common/row_teams.cuh"

namespace fwpkm {
namespace {

// How much of a and of b is in a row's mixture.
template <typename T>
struct Shares {
  Wide<T> a, b;

  __device__ Wide<T> mix(float from_a, float from_b) const { return a * from_a + b * from_b; }
};

// What is mixed.
template <typename T>
struct Sides {
  const T *a, *b;
  FastRows a_rows, b_rows;
  const float* g;  // null: both are taken as they are

  explicit Sides(const OpArgs& args)
      : a(args.in[BlendNormIn::a].ptr<T>()),
        b(args.in[BlendNormIn::b].ptr<T>()),
        a_rows(args.in[BlendNormIn::a]),
        b_rows(args.in[BlendNormIn::b]),
        g(args.in[BlendNormIn::g].ptr<float>()) {}

  __device__ float gate(uint32_t row) const { return g != nullptr ? g[row] : 1; }
  __device__ Shares<T> shares(float gate) const {
    return {gate, g != nullptr ? 1 - Wide<T>(gate) : 1};
  }
};

template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, Sides<T> sides, const float* w, T* y, FastRows y_rows,
                   float* saved, float width, double eps) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const LaneRuns<T, kCount, kHeld> a(plan, sides.a + sides.a_rows[row]);
    const LaneRuns<T, kCount, kHeld> b(plan, sides.b + sides.b_rows[row]);
    const Shares<T> shares = sides.shares(sides.gate(row));
    Wide<T> squares = 0;
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], other[kCount];
      a.get(j, at, value);
      b.get(j, at, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Wide<T> mixed = shares.mix(value[i], other[i]);
        squares += mixed * mixed;
      }
    });
    const Wide<T> r = wide_inverse_root<T>(lanes_sum(plan, squares) / width + Wide<T>(eps));
    if (!here) {
      return;
    }
    T* to = y + y_rows[row];
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) {
      float value[kCount], other[kCount], weight[kCount];
      a.get(j, at, value);
      b.get(j, at, other);
      load_run(w + at, weight);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const Wide<T> normed = shares.mix(value[i], other[i]) * r;
        value[i] = static_cast<float>(normed * (1 + Wide<T>(weight[i])));
      }
      store_run(to + at, value);
    });
    if (saved != nullptr && plan.lane() == 0) {
      saved[row] = static_cast<float>(r);
    }
  });
}

// Where gradients go; null where nobody wants one.
template <typename T>
struct InGrads {
  T *da, *db;
  FastRows da_rows, db_rows;
  float* dg;
  bool add_a, add_b, add_g;

  explicit InGrads(const OpArgs& args)
      : da(args.din[BlendNormIn::a].ptr<T>()),
        db(args.din[BlendNormIn::b].ptr<T>()),
        da_rows(args.din[BlendNormIn::a]),
        db_rows(args.din[BlendNormIn::b]),
        dg(args.din[BlendNormIn::g].ptr<float>()),
        add_a(args.accumulate[BlendNormIn::a]),
        add_b(args.accumulate[BlendNormIn::b]),
        add_g(args.accumulate[BlendNormIn::g]) {}

  // The gradients of a run of the row's a and b, which begins at feature `at`, from that of the
  // mixture.
  template <int kCount>
  __device__ void put_sides(uint32_t row, uint32_t at, const Shares<T>& shares,
                            const float (&dm)[kCount]) const {
    const auto put_side = [&](T* to, const FastRows& rows, float share, bool add) {
      if (to != nullptr) {
        float d[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          d[i] = share * dm[i];
        }
        put_run(to + rows[row] + at, d, add);
      }
    };
    put_side(da, da_rows, static_cast<float>(shares.a), add_a);
    put_side(db, db_rows, static_cast<float>(shares.b), add_b);
  }
};

// Rows that a team of backward takes at once, and blocks of kRowThreads threads on an SM. A row of
// bf16 at a time leaves room for more teams, which wait for their sums less than for memory.
template <typename T>
inline constexpr int kTeamRows = sizeof(T) == 2 ? 1 : 2;
template <typename T>
inline constexpr int kTeamBlocks = sizeof(T) == 2 ? 4 : TeamPlan::kBlocks;

template <typename T>
__global__ void __launch_bounds__(kRowThreads, kTeamBlocks<T>)
    team_backward_kernel(TeamPlan plan, Sides<T> sides, const float* w, const T* dy,
                         FastRows dy_rows, const float* saved, InGrads<T> to, float* partial,
                         float width) {
  constexpr int kRun = TeamPlan::kRun, kRows = kTeamRows<T>;
  using Run = HeldRun<T, kRun>;
  const uint32_t at = plan.at();
  float gain[kRun] = {}, sums[kRun] = {};
  load_gain(plan, w, 1, gain);
  uint32_t turn = 0;
  for_team_rows<kRows>(plan, [&](uint32_t first) {
    // What is not there is 0. Nothing is looked at before all of it is on its way.
    Run a[kRows] = {}, b[kRows] = {}, grads[kRows] = {};
    float gates[kRows] = {}, r[kRows] = {}, mean[kRows] = {}, dg[kRows] = {};
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const uint32_t row = first + k;
      if (row < plan.rows && plan.has_run()) {
        a[k].load(sides.a + sides.a_rows[row] + at);
        b[k].load(sides.b + sides.b_rows[row] + at);
        grads[k].load(dy + dy_rows[row] + at);
        gates[k] = sides.gate(row);
        r[k] = saved[row];
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const Shares<T> shares = sides.shares(gates[k]);
      float value[kRun], other[kRun], d[kRun];
      a[k].get(value);
      b[k].get(other);
      grads[k].get(d);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float dw = d[i] * (static_cast<float>(shares.mix(value[i], other[i])) * r[k]);
        mean[k] += dw * gain[i];
        sums[i] += dw;
      }
    }
    team_sums(plan, turn++, mean);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const Shares<T> shares = sides.shares(gates[k]);
      float value[kRun], other[kRun], d[kRun];
      a[k].get(value);
      b[k].get(other);
      grads[k].get(d);
      mean[k] /= width;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float xhat = static_cast<float>(shares.mix(value[i], other[i])) * r[k];
        d[i] = through_norm(__fmul_rn(d[i], gain[i]), xhat, mean[k], r[k]);
        dg[k] += d[i] * (value[i] - other[i]);
      }
      if (first + k < plan.rows && plan.has_run()) {
        to.put_sides(first + k, at, shares, d);
      }
    }
    if (to.dg == nullptr) {
      return;
    }
    team_sums(plan, turn++, dg);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (first + k < plan.rows && plan.run() == 0) {
        put(to.dg + first + k, dg[k], to.add_g);
      }
    }
  });
  put_team_columns(plan, sums, partial);
}

// The same for rows that are too wide, or not made of runs; their sums are in global memory.
template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowPlan plan, Sides<T> sides, const float* w, const T* dy, FastRows dy_rows,
                    const float* saved, InGrads<T> to, float* partial, float width) {
  ColumnSums<kCount, 0> sums(plan, partial);
  for_rows(plan, [&](uint32_t row, bool here) {
    const T *a = sides.a + sides.a_rows[row], *b = sides.b + sides.b_rows[row];
    const Shares<T> shares = sides.shares(sides.gate(row));
    const float r = saved[row];
    // Calls fn(at, xhat, difference of a and b, dy, weight) for the runs of this lane.
    const auto for_all = [&](auto&& fn) {
      for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
        float xhat[kCount], difference[kCount], other[kCount], d[kCount], weight[kCount];
        load_run(a + at, difference);
        load_run(b + at, other);
        load_run(dy + dy_rows[row] + at, d);
        load_run(w + at, weight);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          xhat[i] = static_cast<float>(shares.mix(difference[i], other[i])) * r;
          difference[i] -= other[i];
        }
        fn(at, xhat, difference, d, weight);
      });
    };
    float mean = 0, dot = 0;
    for_all([&](uint32_t at, auto& xhat, auto&, auto& d, auto& weight) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        xhat[i] *= d[i];
        mean += xhat[i] * (1 + weight[i]);
      }
      if (here) {
        sums.add(0, at, xhat);
      }
    });
    mean = lanes_sum(plan, mean) / width;
    for_all([&](uint32_t at, auto& xhat, auto& difference, auto& d, auto& weight) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d[i] = through_norm(__fmul_rn(d[i], 1 + weight[i]), xhat[i], mean, r);
        dot += d[i] * difference[i];
      }
      if (here) {
        to.put_sides(row, at, shares, d);
      }
    });
    dot = lanes_sum(plan, dot);
    if (here && plan.lane() == 0 && to.dg != nullptr) {
      put(to.dg + row, dot, to.add_g);
    }
  });
}

template <typename T>
void forward(const OpArgs& args) {
  const View &a = args.in[BlendNormIn::a], &b = args.in[BlendNormIn::b];
  const View &w = args.in[BlendNormIn::w], &y = args.out[0];
  const int64_t width = a.dim(-1);
  if (a.size() == 0) {
    return;
  }
  with_runs<3>(width, in_runs_of(8, {a, b, w, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(a.rows(), width / kCount);
                 forward_kernel<T, kCount, kHeld><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, Sides<T>(args), w.ptr<float>(), y.ptr<T>(), FastRows(y),
                     args.saved[0].ptr<float>(), static_cast<float>(width),
                     args.attr<BlendNormSettings>().eps);
               });
  check_launch("blend_norm");
}

template <typename T>
void backward(const OpArgs& args) {
  using In = BlendNormIn;
  const View &a = args.in[In::a], &b = args.in[In::b], &w = args.in[In::w], &dy = args.dout[0];
  const View &da = args.din[In::a], &db = args.din[In::b], &dw = args.din[In::w];
  const int64_t width = a.dim(-1);
  auto* partial = dw ? static_cast<float*>(args.workspace) : nullptr;
  const auto launch = [&](auto kernel, const auto& plan, const ColumnParts& parts,
                          unsigned threads) {
    if (parts.blocks > 0) {
      kernel<<<parts.blocks, threads, 0, this_stream()>>>(
          plan, Sides<T>(args), w.ptr<float>(), dy.ptr<T>(), FastRows(dy),
          args.saved[0].ptr<float>(), InGrads<T>(args), partial, static_cast<float>(width));
      check_launch("blend_norm backward");
    }
    add_column_sums(partial, parts, dw, args.accumulate[In::w]);
  };
  const bool in_runs = in_runs_of(8, {a, b, w, dy, da, db});
  if (in_runs && TeamPlan::fits(width)) {
    const TeamPlan plan(a.rows(), width);
    launch(&team_backward_kernel<T>, plan, plan.parts<kTeamRows<T>, kTeamBlocks<T>>(),
           plan.block_threads());
    return;
  }
  with_runs<0>(width, in_runs, [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
    const RowPlan plan(a.rows(), width / kCount);
    launch(&backward_kernel<T, kCount>, plan, ColumnParts::of<T, kHeld>(plan), kRowThreads);
  });
}

}  // namespace

void blend_norm_forward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
}

void blend_norm_backward_cuda(const OpArgs& args) {
  with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
}

size_t blend_norm_workspace_cuda(const OpArgs& args, bool backward) {
  const View& a = args.in[BlendNormIn::a];
  return backward && args.din[BlendNormIn::w] ? column_sums_bytes(a.rows(), a.dim(-1)) : 0;
}

}  // namespace fwpkm
