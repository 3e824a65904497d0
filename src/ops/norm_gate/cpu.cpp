#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/norm_gate/norm_gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm_gate/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/pair-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

static void forward(const OpArgs& args) {
  const double eps = args.attr<NormGateSettings>().eps;
  const Rows x_rows(args.in[0]), z_rows(args.in[2]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* z0 = args.in[2].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(x_rows.count(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      const float* z = z0 + z_rows[row];
      float* y = y0 + y_rows[row];
      const double r = inverse_norm(x, width, static_cast<double>(width), eps);
      const Pair vr = pair_of(d, r);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 zi = load_part(d, z + i, n);
        const V32 xi = load_part(d, x + i, n);
        const V32 norm = hn::MulAdd(xi, vr.lo, hn::Mul(xi, vr.hi));
        const V32 gain = hn::Mul(load_part(d, w + i, n), hn::Mul(zi, sigmoid(d, zi)));
        store_part(d, hn::Mul(norm, gain), y + i, n);
      });
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
    }
  });
}

static void backward(const OpArgs& args) {
  const Rows x_rows(args.in[0]), z_rows(args.in[2]), dy_rows(args.dout[0]);
  const Rows dx_rows(args.din[0] ? args.din[0] : args.in[0]);
  const Rows dz_rows(args.din[2] ? args.din[2] : args.in[2]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* z0 = args.in[2].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  const float* saved = args.saved[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  float* dw = args.din[1].ptr<float>();
  float* dz0 = args.din[2].ptr<float>();
  const int64_t groups = row_groups(x_rows.count());
  auto* partial = static_cast<float*>(args.workspace);  // [groups, width]
  float* scratch = partial + groups * width;            // [threads, width]

  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    float* gw = scratch + thread_index() * width;  // dy silu(z) w of the row
    for (int64_t group = first; group < last; ++group) {
      float* sums = partial + group * width;
      std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      const int64_t end = HWY_MIN(x_rows.count(), (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        const float* x = x0 + x_rows[row];
        const float* z = z0 + z_rows[row];
        const float* dy = dy0 + dy_rows[row];
        const V32 r = hn::Set(d, saved[row]);
        V32 dots = hn::Zero(d);
        for_vectors(d, width, [&](int64_t i, size_t n) {
          const V32 xhat = hn::Mul(load_part(d, x + i, n), r);
          const V32 zi = load_part(d, z + i, n);
          const V32 wi = load_part(d, w + i, n);
          const V32 s = sigmoid(d, zi);
          const V32 dys = hn::Mul(load_part(d, dy + i, n), s);
          const V32 g = hn::Mul(dys, zi);
          const V32 gwi = hn::Mul(g, wi);
          dots = hn::MulAdd(gwi, xhat, dots);
          store_part(d, gwi, gw + i, n);
          if (dw != nullptr) {
            put(d, hn::Mul(g, xhat), sums + i, n, true);
          }
          if (dz0 != nullptr) {
            const V32 slope = hn::MulAdd(zi, hn::Sub(one, s), one);
            put(d, hn::Mul(hn::Mul(dys, hn::Mul(xhat, wi)), slope), dz0 + dz_rows[row] + i, n,
                args.accumulate[2]);
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
          put(d, hn::Mul(r, hn::NegMulAdd(xhat, mean, load_part(d, gw + i, n))), dx + i, n,
              args.accumulate[0]);
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

void norm_gate_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void norm_gate_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t norm_gate_workspace_cpu(const OpArgs& args, bool backward) {
  const View& x = args.in[0];
  return backward
             ? static_cast<size_t>((row_groups(x.rows()) + threads()) * x.dim(-1)) * sizeof(float)
             : 0;
}

}  // namespace fwpkm
#endif
