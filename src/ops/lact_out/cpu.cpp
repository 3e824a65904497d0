#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/lact_out/lact_out.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lact_out/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

void forward(const OpArgs& args) {
  const double eps = args.attr<LactOutSettings>().eps;
  const int64_t width = args.in[1].dim(-1);
  const float* w = args.in[2].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(args.in[1].rows(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* a = args.in[0].ptr<float>() + row * width;
      const float* x = args.in[1].ptr<float>() + row * width;
      float* y = args.out[0].ptr<float>() + row * width;
      const float s = args.in[3].ptr<float>()[row];
      const auto r = static_cast<float>(inverse_norm(x, width, static_cast<double>(width), eps));
      const V32 gain = hn::Set(d, r * s / (1.0f + std::exp(-s)));
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 scaled = hn::Mul(load_part(d, x + i, n), gain);
        store_part(d, hn::MulAdd(scaled, load_part(d, w + i, n), load_part(d, a + i, n)), y + i, n);
      });
      if (saved != nullptr) {
        saved[row] = r;
      }
    }
  });
}

void backward(const OpArgs& args) {
  const int64_t rows = args.in[1].rows(), width = args.in[1].dim(-1), groups = row_groups(rows);
  const float* w = args.in[2].ptr<float>();
  float* dw = args.din[2].ptr<float>();
  const bool shares = args.din[0].data == args.dout[0].data;
  float* da0 = shares ? nullptr : args.din[0].ptr<float>();
  float* dx0 = args.din[1].ptr<float>();
  float* ds = args.din[3].ptr<float>();
  auto* partial = static_cast<float*>(args.workspace);  // [groups, width]
  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    const F32 d;
    for (int64_t group = first; group < last; ++group) {
      float* sums = partial + group * width;
      std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      const int64_t end = HWY_MIN(rows, (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        const float* x = args.in[1].ptr<float>() + row * width;
        const float* dy = args.dout[0].ptr<float>() + row * width;
        const float s = args.in[3].ptr<float>()[row], r = args.saved[0].ptr<float>()[row];
        const float sigma = 1.0f / (1.0f + std::exp(-s)), f = s * sigma;
        const V32 vr = hn::Set(d, r), vf = hn::Set(d, f);
        V32 dots = hn::Zero(d);
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 g = load_part(d, dy + i, n), xhat = hn::Mul(load_part(d, x + i, n), vr);
          dots = hn::MulAdd(hn::Mul(g, load_part(d, w + i, n)), xhat, dots);
          if (dw != nullptr) {
            put(d, hn::Mul(hn::Mul(vf, g), xhat), sums + i, n, true);
          }
        });
        const float sum = hn::GetLane(hn::SumOfLanes(d, dots));
        if (ds != nullptr) {
          const float slope = sigma * (1.0f + s * (1.0f - sigma)) * sum;
          ds[row] = args.accumulate[3] ? ds[row] + slope : slope;
        }
        const V32 gain = hn::Set(d, r * f), mean = hn::Set(d, sum / static_cast<float>(width));
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 g = load_part(d, dy + i, n);
          if (dx0 != nullptr) {
            const V32 xhat = hn::Mul(load_part(d, x + i, n), vr);
            const V32 inner = hn::NegMulAdd(xhat, mean, hn::Mul(g, load_part(d, w + i, n)));
            put(d, hn::Mul(gain, inner), dx0 + row * width + i, n, args.accumulate[1]);
          }
          if (da0 != nullptr) {
            put(d, g, da0 + row * width + i, n, args.accumulate[0]);
          }
        });
      }
    }
  });
  if (dw != nullptr) {
    sum_groups(partial, groups, width, dw, args.accumulate[2]);
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

void lact_out_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void lact_out_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t lact_out_workspace_cpu(const OpArgs& args, bool backward) {
  const View& x = args.in[1];
  return backward ? static_cast<size_t>(row_groups(x.rows()) * x.dim(-1)) * sizeof(float) : 0;
}

}  // namespace fwpkm
#endif
