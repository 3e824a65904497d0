#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/rope/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"
#include "ops/norm_rope/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// y (= or +=) the rows of x turned, or turned back. Adding goes through `scratch` [threads, D].
template <bool kBack>
void turn_rows(const OpArgs& args, const View& x, const View& y, bool add) {
  const Rows x_rows(x), y_rows(y);
  const int64_t tokens = x.dim(1), heads = x.dim(2), width = x.dim(3);
  const int64_t half = args.in[1] ? args.in[1].dim(1) : 0;
  const float* x0 = x.ptr<float>();
  const float* cos = args.in[1].ptr<float>();
  const float* sin = args.in[2].ptr<float>();
  float* y0 = y.ptr<float>();
  auto* scratch = static_cast<float*>(args.workspace);
  parallel_ranges(x_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x0 + x_rows[row];
      float* to = add ? scratch + thread_index() * width : y0 + y_rows[row];
      const int64_t at = row / heads % tokens * half;
      turn_pairs<kBack>({cos + at, sin + at, half}, from, to);
      for_vectors(d, width - 2 * half, [&](int64_t i, size_t n) {
        store_part(d, load_part(d, from + 2 * half + i, n), to + 2 * half + i, n);
      });
      if (add) {
        for_vectors(d, width, [&](int64_t i, size_t n) {
          put(d, load_part(d, to + i, n), y0 + y_rows[row] + i, n, true);
        });
      }
    }
  });
}

void forward(const OpArgs& args) {
  turn_rows<false>(args, args.in[0], args.out[0], false);
}

void backward(const OpArgs& args) {
  if (args.din[0]) {
    turn_rows<true>(args, args.dout[0], args.din[0], args.accumulate[0]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void rope_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void rope_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t rope_workspace_cpu(const OpArgs& args, bool backward) {
  return backward ? static_cast<size_t>(threads() * args.in[0].dim(3)) * sizeof(float) : 0;
}

}  // namespace fwpkm
#endif
