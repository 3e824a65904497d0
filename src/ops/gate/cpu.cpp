#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/gate/gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gate/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

static void forward(const OpArgs& args) {
  const Rows x_rows(args.in[0]), z_rows(args.in[1]), y_rows(args.out[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* z0 = args.in[1].ptr<float>();
  float* y0 = args.out[0].ptr<float>();
  parallel_ranges(x_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      const float* z = z0 + z_rows[row];
      float* y = y0 + y_rows[row];
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 s = sigmoid(d, load_part(d, z + i, n));
        store_part(d, hn::Mul(load_part(d, x + i, n), s), y + i, n);
      });
    }
  });
}

static void backward(const OpArgs& args) {
  const Rows x_rows(args.in[0]), z_rows(args.in[1]), dy_rows(args.dout[0]);
  const Rows dx_rows(args.din[0] ? args.din[0] : args.in[0]);
  const Rows dz_rows(args.din[1] ? args.din[1] : args.in[1]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* z0 = args.in[1].ptr<float>();
  const float* dy0 = args.dout[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  float* dz0 = args.din[1].ptr<float>();
  parallel_ranges(x_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      const float* x = x0 + x_rows[row];
      const float* z = z0 + z_rows[row];
      const float* dy = dy0 + dy_rows[row];
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V32 s = sigmoid(d, load_part(d, z + i, n));
        const V32 dys = hn::Mul(load_part(d, dy + i, n), s);
        if (dx0 != nullptr) {
          put(d, dys, dx0 + dx_rows[row] + i, n, args.accumulate[0]);
        }
        if (dz0 != nullptr) {
          const V32 rest = hn::NegMulAdd(load_part(d, x + i, n), s, load_part(d, x + i, n));
          put(d, hn::Mul(dys, rest), dz0 + dz_rows[row] + i, n, args.accumulate[1]);
        }
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void gate_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void gate_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
