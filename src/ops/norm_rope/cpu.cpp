#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/norm_rope/norm_rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm_rope/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/pair-inl.h"
#include "ops/common/simd-inl.h"
#include "ops/norm_rope/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

static void forward(const OpArgs& args) {
  const View& x_view = args.in[0];
  const double eps = args.attr<NormRopeSettings>().eps;
  const Rows x_rows(x_view), y_rows(args.out[0]);
  const int64_t tokens = x_view.dim(1), heads = x_view.dim(2), width = x_view.dim(3);
  const int64_t half = args.in[2] ? args.in[2].dim(1) : 0;
  const float* x0 = x_view.ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* cos = args.in[2].ptr<float>();
  const float* sin = args.in[3].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(x_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      float* y = y0 + y_rows[row];
      const double r = inverse_norm(x, width, static_cast<double>(width), eps);
      const Pair vr = pair_of(d, r);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 xi = load_part(d, x + i, n);
        const V32 norm = hn::MulAdd(xi, vr.lo, hn::Mul(xi, vr.hi));
        store_part(d, hn::Mul(norm, hn::Add(one, load_part(d, w + i, n))), y + i, n);
      });
      if (half > 0) {
        const int64_t at = row / heads % tokens * half;
        turn_pairs<false>({cos + at, sin + at, half}, y, y);
      }
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
    }
  });
}

static void backward(const OpArgs& args) {
  const View& x_view = args.in[0];
  const Rows x_rows(x_view), dy_rows(args.dout[0]);
  const Rows dx_rows(args.din[0] ? args.din[0] : x_view);
  const int64_t tokens = x_view.dim(1), heads = x_view.dim(2), width = x_view.dim(3);
  const int64_t half = args.in[2] ? args.in[2].dim(1) : 0;
  const float* x0 = x_view.ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* cos = args.in[2].ptr<float>();
  const float* sin = args.in[3].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  const float* saved = args.saved[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  float* dw = args.din[1].ptr<float>();
  const int64_t groups = row_groups(x_rows.count());
  auto* partial = static_cast<float*>(args.workspace);  // [groups, width]
  float* scratch = partial + groups * width;            // [threads, width]

  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    float* dn = scratch + thread_index() * width;
    for (int64_t group = first; group < last; ++group) {
      float* sums = partial + group * width;
      std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      const int64_t end = HWY_MIN(x_rows.count(), (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        const float* x = x0 + x_rows[row];
        const float* dy = dy0 + dy_rows[row];
        if (half > 0) {
          const int64_t at = row / heads % tokens * half;
          turn_pairs<true>({cos + at, sin + at, half}, dy, dn);
        }
        std::memcpy(dn + 2 * half, dy + 2 * half,
                    static_cast<size_t>(width - 2 * half) * sizeof(float));
        const V32 r = hn::Set(d, saved[row]);
        V32 dots = hn::Zero(d);
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
          const V32 g = load_part(d, dn + i, n);
          dots = hn::MulAdd(hn::Mul(g, hn::Add(one, load_part(d, w + i, n))), xhat, dots);
          put(d, hn::Mul(g, xhat), sums + i, n, true);
        });
        if (dx0 == nullptr) {
          continue;
        }
        float* dx = dx0 + dx_rows[row];
        const V32 mean =
            hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dots)) / static_cast<float>(width));
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
          const V32 g = hn::Mul(load_part(d, dn + i, n), hn::Add(one, load_part(d, w + i, n)));
          put(d, hn::Mul(r, hn::NegMulAdd(xhat, mean, g)), dx + i, n, args.accumulate[0]);
        });
      }
    }
  });
  if (dw != nullptr) {
    sum_groups(partial, groups, width, dw, args.accumulate[1]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void norm_rope_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void norm_rope_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t norm_rope_workspace_cpu(const OpArgs& args, bool backward) {
  const View& x = args.in[0];
  return backward
             ? static_cast<size_t>((row_groups(x.rows()) + threads()) * x.dim(-1)) * sizeof(float)
             : 0;
}

}  // namespace fwpkm
#endif
