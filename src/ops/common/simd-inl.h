// Small vector helpers shared by the CPU kernels. Included once per Highway target:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/<op>/cpu.cpp"
//   #include <hwy/foreach_target.h>
//   #include "ops/common/simd-inl.h"
#if defined(FWPKM_OPS_COMMON_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_COMMON_SIMD_INL_H_
#undef FWPKM_OPS_COMMON_SIMD_INL_H_
#else
#define FWPKM_OPS_COMMON_SIMD_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "base/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;

// Loads up to a vector; lanes past `count` are zero and memory past it is not touched.
HWY_INLINE V32 load_part(F32 d, const float* from, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    return hn::LoadU(d, from);
  }
  HWY_ALIGN float buffer[hn::MaxLanes(F32())] = {};
  std::memcpy(buffer, from, count * sizeof(float));
  return hn::Load(d, buffer);
}

HWY_INLINE void store_part(F32 d, V32 value, float* to, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    hn::StoreU(value, d, to);
    return;
  }
  HWY_ALIGN float buffer[hn::MaxLanes(F32())];
  hn::Store(value, d, buffer);
  std::memcpy(to, buffer, count * sizeof(float));
}

// Calls fn(position, count) for each vector's worth of 0..width-1.
template <typename Fn>
HWY_INLINE void for_vectors(F32 d, int64_t width, Fn&& fn) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += lanes) {
    fn(i, static_cast<size_t>(HWY_MIN(lanes, width - i)));
  }
}

HWY_INLINE float dot(F32 d, const float* a, const float* b, int64_t width) {
  V32 sum = hn::Zero(d);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    sum = hn::MulAdd(load_part(d, a + i, n), load_part(d, b + i, n), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// 1 / sqrt(|x|^2 / divisor + eps). The last steps are in double: norms divide by small numbers, and
// an error here would reach every feature of the row.
HWY_INLINE float inverse_norm(F32 d, const float* x, int64_t width, double divisor, double eps) {
  return static_cast<float>(1.0 /
                            std::sqrt(static_cast<double>(dot(d, x, x, width)) / divisor + eps));
}

// 1 / (1 + exp(-x)), without overflow.
HWY_INLINE V32 sigmoid(F32 d, V32 x) {
  const V32 e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V32 one = hn::Set(d, 1.0f);
  const V32 small = hn::Div(e, hn::Add(one, e));  // sigmoid(-|x|)
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, hn::Sub(one, small));
}

// to = value, or to += value.
HWY_INLINE void put(F32 d, V32 value, float* to, size_t count, bool add) {
  if (add) {
    value = hn::Add(value, load_part(d, to, count));
  }
  store_part(d, value, to, count);
}

// to [width] = (or +=) the sum of partial [groups, width]. Groups are added in order, each thread a
// range of features, so that the number of threads does not matter.
HWY_INLINE void sum_groups(const float* partial, int64_t groups, int64_t width, float* to,
                           bool add) {
  parallel_ranges(width, 64, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      V32 sum = add ? load_part(d, to + begin + i, n) : hn::Zero(d);
      for (int64_t group = 0; group < groups; ++group) {
        sum = hn::Add(sum, load_part(d, partial + group * width + begin + i, n));
      }
      store_part(d, sum, to + begin + i, n);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
