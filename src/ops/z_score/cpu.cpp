#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/z_score/z_score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/z_score/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

float sum_lanes(F32 d, V32 v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

void forward(const OpArgs& args) {
  const Rows x_rows(args.in[0]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(x_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      float* y = y0 + y_rows[row];
      const V32 first = hn::Set(d, x[0]);
      // Lanes past the row must not count; they hold 0 - first.
      const auto inside = [&](V32 v, size_t n) {
        return n < hn::Lanes(d) ? hn::IfThenElseZero(hn::FirstN(d, n), v) : v;
      };
      V32 sums = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        sums = hn::Add(sums, inside(hn::Sub(load_part(d, x + i, n), first), n));
      });
      const V32 mean = hn::Set(d, sum_lanes(d, sums) / static_cast<float>(width));
      V32 squares = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 c = inside(hn::Sub(hn::Sub(load_part(d, x + i, n), first), mean), n);
        squares = hn::MulAdd(c, c, squares);
        store_part(d, c, y + i, n);
      });
      const double s = width > 1 ? std::sqrt(static_cast<double>(sum_lanes(d, squares)) /
                                             static_cast<double>(width - 1))
                                 : 0.0;
      const V32 r = hn::Set(d, static_cast<float>(1.0 / (s + kZScoreEps)));
      for_vectors(d, width, [&](int64_t i, size_t n) {
        store_part(d, hn::Mul(load_part(d, y + i, n), r), y + i, n);
      });
      if (saved != nullptr) {
        saved[row] = static_cast<float>(s);
      }
    }
  });
}

void backward(const OpArgs& args) {
  if (!args.din[0]) {
    return;
  }
  const Rows y_rows(args.out[0]), dy_rows(args.dout[0]), dx_rows(args.din[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* y0 = args.out[0].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  const float* saved = args.saved[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  const bool add = args.accumulate[0];
  parallel_ranges(y_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* y = y0 + y_rows[row];
      const float* dy = dy0 + dy_rows[row];
      float* dx = dx0 + dx_rows[row];
      V32 sums = hn::Zero(d);
      for_vectors(d, width,
                  [&](int64_t i, size_t n) { sums = hn::Add(sums, load_part(d, dy + i, n)); });
      const V32 mean = hn::Set(d, sum_lanes(d, sums) / static_cast<float>(width));
      V32 dots = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 h = hn::Sub(load_part(d, dy + i, n), mean);
        dots = hn::MulAdd(h, load_part(d, y + i, n), dots);
      });
      const double s = saved[row], divisor = s + kZScoreEps;
      const double along = sum_lanes(d, dots);
      const double part = s > 0 ? along * divisor / (static_cast<double>(width - 1) * s) : 0.0;
      const V32 share = hn::Set(d, static_cast<float>(part));
      const V32 r = hn::Set(d, static_cast<float>(1.0 / divisor));
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 h = hn::Sub(load_part(d, dy + i, n), mean);
        const V32 rest = hn::NegMulAdd(load_part(d, y + i, n), share, h);
        put(d, hn::Mul(rest, r), dx + i, n, add);
      });
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

void z_score_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void z_score_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
