// A few lanes for each row, or a warp.
#include "ops/norm_rope/turns.cuh"
#include "ops/rope/rope.h"

namespace fwpkm {
namespace {

template <typename T, int kCount>
__global__ void __launch_bounds__(kRowThreads)
    turn_kernel(RowPlan plan, const T* x, FastRows x_rows, Turns turns, T* y, FastRows y_rows,
                bool back, bool accumulate) {
  for_rows(plan, [&](uint32_t row, bool here) {
    if (!here) {
      return;
    }
    const T* from = x + x_rows[row];
    T* to = y + y_rows[row];
    const int64_t angles = turns.angles(row);
    for_runs<kCount, 0>(plan, [&](int, uint32_t at) {
      float value[kCount];
      load_run(from + at, value);
      turns.turn(angles, at, back, value, [&](uint32_t other_at, float(&other)[kCount]) {
        load_run(from + other_at, other);
      });
      put_run(to + at, value, accumulate);
    });
  });
}

template <typename T>
void turn(const OpArgs& args, const View& x, const View& y, bool back, bool accumulate) {
  const View &cos = args.in[1], &sin = args.in[2];
  with_runs<0>(x.dim(3), in_runs_of(8, {x, cos, sin, y}),
               [&]<int kCount, int kHeld>(RunsOf<kCount, kHeld>) {
                 const RowPlan plan(x.rows(), x.dim(3) / kCount);
                 turn_kernel<T, kCount><<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
                     plan, x.ptr<T>(), FastRows(x), Turns(x, cos, sin), y.ptr<T>(), FastRows(y),
                     back, accumulate);
               });
  check_launch("rope");
}

}  // namespace

void rope_forward_cuda(const OpArgs& args) {
  if (args.in[0].size() > 0) {
    with_real(args.in[0],
              [&]<typename T>(T*) { turn<T>(args, args.in[0], args.out[0], false, false); });
  }
}

void rope_backward_cuda(const OpArgs& args) {
  if (args.din[0].size() > 0) {
    with_real(args.in[0], [&]<typename T>(T*) {
      turn<T>(args, args.dout[0], args.din[0], true, args.accumulate[0]);
    });
  }
}

}  // namespace fwpkm
