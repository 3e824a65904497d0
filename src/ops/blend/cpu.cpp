#include "base/parallel.h"
#include "ops/blend/blend.h"
#include "ops/common/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/blend/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

void forward(const OpArgs& args) {
  const Rows a_rows(args.in[0]), b_rows(args.in[1]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* a0 = args.in[0].ptr<float>();
  const float* b0 = args.in[1].ptr<float>();
  const float* g = args.in[2].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  parallel_ranges(a_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F64 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* a = a0 + a_rows[row];
      const float* b = b0 + b_rows[row];
      float* y = y0 + y_rows[row];
      const double share = g != nullptr ? static_cast<double>(g[row]) : 1.0;
      const V64 of_a = hn::Set(d, share);
      const V64 of_b = hn::Set(d, g != nullptr ? 1.0 - share : 1.0);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V64 rest = hn::Mul(of_b, load_double(d, b + i, n));
        store_rounded(d, hn::MulAdd(of_a, load_double(d, a + i, n), rest), y + i, n);
      });
    }
  });
}

void backward(const OpArgs& args) {
  const Rows a_rows(args.in[0]), b_rows(args.in[1]), dy_rows(args.dout[0]);
  const Rows da_rows(args.din[0] ? args.din[0] : args.in[0]);
  const Rows db_rows(args.din[1] ? args.din[1] : args.in[1]);
  const int64_t width = args.in[0].dim(-1);
  const float* a0 = args.in[0].ptr<float>();
  const float* b0 = args.in[1].ptr<float>();
  const float* g = args.in[2].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  float* da0 = args.din[0].ptr<float>();
  float* db0 = args.din[1].ptr<float>();
  float* dg = args.din[2].ptr<float>();
  parallel_ranges(a_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* a = a0 + a_rows[row];
      const float* b = b0 + b_rows[row];
      const float* dy = dy0 + dy_rows[row];
      const V32 of_a = hn::Set(d, g != nullptr ? g[row] : 1.0f);
      const V32 of_b = hn::Set(d, g != nullptr ? 1.0f - g[row] : 1.0f);
      V32 dots = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 dyi = load_part(d, dy + i, n);
        // a before b: where both are one tensor, the second is added to the first.
        if (da0 != nullptr) {
          put(d, hn::Mul(of_a, dyi), da0 + da_rows[row] + i, n, args.accumulate[0]);
        }
        if (db0 != nullptr) {
          put(d, hn::Mul(of_b, dyi), db0 + db_rows[row] + i, n, args.accumulate[1]);
        }
        if (dg != nullptr) {
          dots = hn::MulAdd(dyi, hn::Sub(load_part(d, a + i, n), load_part(d, b + i, n)), dots);
        }
      });
      if (dg != nullptr) {
        const float sum = hn::GetLane(hn::SumOfLanes(d, dots));
        dg[row] = args.accumulate[2] ? dg[row] + sum : sum;
      }
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void blend_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void blend_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
