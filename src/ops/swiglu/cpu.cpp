#include "base/parallel.h"
#include "ops/swiglu/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/swiglu/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

constexpr int64_t kGrain = 4096;

void forward(const OpArgs& args) {
  const float* gate = args.in[0].ptr<float>();
  const float* up = args.in[1].ptr<float>();
  float* y = args.out[0].ptr<float>();
  parallel_ranges(args.in[0].size(), kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      const V32 g = load_part(d, gate + begin + i, n);
      const V32 u = load_part(d, up + begin + i, n);
      store_part(d, hn::Mul(hn::Mul(g, sigmoid(d, g)), u), y + begin + i, n);
    });
  });
}

void backward(const OpArgs& args) {
  const float* gate = args.in[0].ptr<float>();
  const float* up = args.in[1].ptr<float>();
  const float* dy = args.dout[0].ptr<float>();
  float* dgate = args.din[0].ptr<float>();
  float* dup = args.din[1].ptr<float>();
  parallel_ranges(args.in[0].size(), kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      const V32 g = load_part(d, gate + begin + i, n);
      const V32 s = sigmoid(d, g);
      const V32 grad = load_part(d, dy + begin + i, n);
      if (dgate != nullptr) {
        const V32 slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
        const V32 u = load_part(d, up + begin + i, n);
        put(d, hn::Mul(hn::Mul(grad, u), slope), dgate + begin + i, n, args.accumulate[0]);
      }
      if (dup != nullptr) {
        put(d, hn::Mul(grad, hn::Mul(g, s)), dup + begin + i, n, args.accumulate[1]);
      }
    });
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

void swiglu_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void swiglu_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
