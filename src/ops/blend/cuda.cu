// A warp, or part of one, for each row.
#include "ops/blend/blend.h"
#include "ops/common/rows.cuh"

namespace fwpkm {
namespace {

template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* a, FastRows a_rows, const T* b, FastRows b_rows,
                   const float* g, T* y, FastRows y_rows) {
  for_rows(plan, [&](uint32_t row, bool here) {
    if (!here) {
      return;
    }
    const T *from_a = a + a_rows[row], *from_b = b + b_rows[row];
    T* to = y + y_rows[row];
    const float of_a = g != nullptr ? g[row] : 1, of_b = g != nullptr ? 1 - of_a : 1;
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount], other[kCount];
      load_run(from_a + at, value);
      load_run(from_b + at, other);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = static_cast<float>(Wide<T>(of_a) * value[i] + Wide<T>(of_b) * other[i]);
      }
      store_run(to + at, value);
    });
  });
}

// Null gradients are not wanted. a and b may be one tensor, and so may da and db: the gradient of b
// is then added to that of a, by the same thread.
template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowPlan plan, const T* a, FastRows a_rows, const T* b, FastRows b_rows,
                    const float* g, const T* dy, FastRows dy_rows, T* da, FastRows da_rows, T* db,
                    FastRows db_rows, float* dg, bool add_a, bool add_b, bool add_g) {
  for_rows(plan, [&](uint32_t row, bool here) {
    const T *from_a = a + a_rows[row], *from_b = b + b_rows[row], *grad = dy + dy_rows[row];
    const float of_a = g != nullptr ? g[row] : 1, of_b = g != nullptr ? 1 - of_a : 1;
    float dot = 0;
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float d[kCount];
      load_run(grad + at, d);
      if (dg != nullptr) {
        float value[kCount], other[kCount];
        load_run(from_a + at, value);
        load_run(from_b + at, other);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          dot += d[i] * (value[i] - other[i]);
        }
      }
      if (here && da != nullptr) {
        float scaled[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          scaled[i] = of_a * d[i];
        }
        put_run(da + da_rows[row] + at, scaled, add_a);
      }
      if (here && db != nullptr) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          d[i] = of_b * d[i];
        }
        put_run(db + db_rows[row] + at, d, add_b);
      }
    });
    if (dg != nullptr) {
      dot = lanes_sum(plan, dot);
      if (here && plan.lane() == 0) {
        put(dg + row, dot, add_g);
      }
    }
  });
}

template <typename T>
void forward(const OpArgs& args) {
  const View &a = args.in[0], &b = args.in[1], &y = args.out[0];
  with_runs<0>(a.dim(-1), in_runs_of(8, {a, b, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(a.rows(), a.dim(-1) / kCount);
                 forward_kernel<T, kCount><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, a.ptr<T>(), FastRows(a), b.ptr<T>(), FastRows(b),
                     args.in[2].ptr<float>(), y.ptr<T>(), FastRows(y));
               });
  check_launch("blend");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &a = args.in[0], &b = args.in[1], &dy = args.dout[0];
  const View &da = args.din[0], &db = args.din[1];
  with_runs<0>(a.dim(-1), in_runs_of(8, {a, b, dy, da, db}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(a.rows(), a.dim(-1) / kCount);
                 backward_kernel<T, kCount><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, a.ptr<T>(), FastRows(a), b.ptr<T>(), FastRows(b),
                     args.in[2].ptr<float>(), dy.ptr<T>(), FastRows(dy), da.ptr<T>(), FastRows(da),
                     db.ptr<T>(), FastRows(db), args.din[2].ptr<float>(), args.accumulate[0],
                     args.accumulate[1], args.accumulate[2]);
               });
  check_launch("blend backward");
}

}  // namespace

void blend_forward_cuda(const OpArgs& args) {
  if (args.in[0].rows() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
  }
}

void blend_backward_cuda(const OpArgs& args) {
  if (args.in[0].rows() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
  }
}

}  // namespace fwpkm
