#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/rms_norm/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rms_norm/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/pair-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

void forward(const OpArgs& args) {
  const auto settings = args.attr<RmsNormSettings>();
  const double eps = settings.eps;
  const auto offset = static_cast<float>(settings.offset);
  const Rows x_rows(args.in[0]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* w = args.in[1].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(x_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 voffset = hn::Set(d, offset);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      float* y = y0 + y_rows[row];
      const double r = inverse_norm(x, width, static_cast<double>(width), eps);
      const Pair vr = pair_of(d, r);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const Pair gain = plus(voffset, load_part(d, w + i, n));
        const Pair norm = times(d, vr, load_part(d, x + i, n));
        store_part(d, rounded(times(d, norm, gain)), y + i, n);
      });
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
    }
  });
}

void backward(const OpArgs& args) {
  const auto offset = static_cast<float>(args.attr<RmsNormSettings>().offset);
  const Rows x_rows(args.in[0]), dy_rows(args.dout[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  const float* saved = args.saved[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  float* dw = args.din[1].ptr<float>();
  auto* partial = static_cast<float*>(args.workspace);  // [groups, width]
  const bool add = args.accumulate[0];
  const Rows dx_rows(args.din[0] ? args.din[0] : args.in[0]);

  const int64_t groups = row_groups(x_rows.count());
  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    const F32 d;
    const V32 voffset = hn::Set(d, offset);
    for (int64_t group = first; group < last; ++group) {
      float* sums = partial + group * width;
      if (dw != nullptr) {
        std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      }
      const int64_t end = HWY_MIN(x_rows.count(), (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        const float* x = x0 + x_rows[row];
        const float* dy = dy0 + dy_rows[row];
        const V32 r = hn::Set(d, saved[row]);
        V32 dots = hn::Zero(d);
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
          const V32 g = load_part(d, dy + i, n);
          dots = hn::MulAdd(hn::Mul(g, hn::Add(voffset, load_part(d, w + i, n))), xhat, dots);
          if (dw != nullptr) {
            put(d, hn::Mul(g, xhat), sums + i, n, true);
          }
        });
        if (dx0 == nullptr) {
          continue;
        }
        float* dx = dx0 + dx_rows[row];
        const V32 mean =
            hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dots)) / static_cast<float>(width));
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
          const V32 g = hn::Mul(load_part(d, dy + i, n), hn::Add(voffset, load_part(d, w + i, n)));
          put(d, hn::Mul(r, hn::NegMulAdd(xhat, mean, g)), dx + i, n, add);
        });
      }
    }
  });
  if (dw != nullptr) {
    sum_groups(partial, groups, width, dw, args.accumulate[1]);
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

void rms_norm_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void rms_norm_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t rms_norm_workspace_cpu(const OpArgs& args, bool backward) {
  const View& x = args.in[0];
  return backward ? static_cast<size_t>(row_groups(x.rows()) * x.dim(-1)) * sizeof(float) : 0;
}

}  // namespace fwpkm
#endif
