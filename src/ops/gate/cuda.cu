// A few lanes for each row, or a warp.
#include "ops/common/rows.cuh"
#include "ops/gate/gate.h"

namespace fwpkm {
namespace {

template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowPlan plan, const T* x, FastRows x_rows, const T* z, FastRows z_rows, T* y,
                   FastRows y_rows) {
  for_rows(plan, [&](uint32_t row, bool here) {
    if (!here) {
      return;
    }
    const T *from = x + x_rows[row], *gate = z + z_rows[row];
    T* to = y + y_rows[row];
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount], by[kCount];
      load_run(from + at, value);
      load_run(gate + at, by);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = gated<T>(value[i], by[i]);
      }
      store_run(to + at, value);
    });
  });
}

// Null gradients are not wanted. x and z may be one tensor: dz then adds to what was written to dx,
// in the same thread.
template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowPlan plan, const T* x, FastRows x_rows, const T* z, FastRows z_rows,
                    const T* dy, FastRows dy_rows, T* dx, FastRows dx_rows, T* dz, FastRows dz_rows,
                    bool add_x, bool add_z) {
  for_rows(plan, [&](uint32_t row, bool here) {
    if (!here) {
      return;
    }
    const T *from = x + x_rows[row], *gate = z + z_rows[row], *grad = dy + dy_rows[row];
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount], by[kCount], d[kCount];
      load_run(from + at, value);
      load_run(gate + at, by);
      load_run(grad + at, d);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float s = gated<T>(1, by[i]);
        value[i] = d[i] * value[i] * s * (1 - s);
        d[i] = d[i] * s;
      }
      if (dx != nullptr) {
        put_run(dx + dx_rows[row] + at, d, add_x);
      }
      if (dz != nullptr) {
        put_run(dz + dz_rows[row] + at, value, add_z);
      }
    });
  });
}

template <typename T>
void forward(const OpArgs& args) {
  const View &x = args.in[0], &z = args.in[1], &y = args.out[0];
  with_runs<0>(
      x.dim(-1), in_runs_of(8, {x, z, y}), [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
        const RowPlan plan(x.rows(), x.dim(-1) / kCount);
        forward_kernel<T, kCount><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
            plan, x.ptr<T>(), FastRows(x), z.ptr<T>(), FastRows(z), y.ptr<T>(), FastRows(y));
      });
  check_launch("gate");
}

template <typename T>
void backward(const OpArgs& args) {
  const View &x = args.in[0], &z = args.in[1], &dy = args.dout[0];
  const View &dx = args.din[0], &dz = args.din[1];
  with_runs<0>(x.dim(-1), in_runs_of(8, {x, z, dy, dx, dz}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), x.dim(-1) / kCount);
                 backward_kernel<T, kCount><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, x.ptr<T>(), FastRows(x), z.ptr<T>(), FastRows(z), dy.ptr<T>(),
                     FastRows(dy), dx.ptr<T>(), FastRows(dx), dz.ptr<T>(), FastRows(dz),
                     args.accumulate[0], args.accumulate[1]);
               });
  check_launch("gate backward");
}

}  // namespace

void gate_forward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args); });
  }
}

void gate_backward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args); });
  }
}

}  // namespace fwpkm
