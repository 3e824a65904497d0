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
using F64 = hn::Repartition<double, F32>;
using V64 = hn::Vec<F64>;

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
template <class D, typename Fn>
HWY_INLINE void for_vectors(D d, int64_t width, Fn&& fn) {
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

// Up to half a vector of floats as doubles; lanes past `count` are zero.
HWY_INLINE V64 load_double(F64 d, const float* from, size_t count) {
  const hn::Rebind<float, F64> half;
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    return hn::PromoteTo(d, hn::LoadU(half, from));
  }
  HWY_ALIGN float buffer[hn::MaxLanes(F64())] = {};
  std::memcpy(buffer, from, count * sizeof(float));
  return hn::PromoteTo(d, hn::Load(half, buffer));
}

// Rounds doubles and stores them as floats.
HWY_INLINE void store_rounded(F64 d, V64 value, float* to, size_t count) {
  const hn::Rebind<float, F64> half;
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    hn::StoreU(hn::DemoteTo(half, value), half, to);
    return;
  }
  HWY_ALIGN float buffer[hn::MaxLanes(F64())];
  hn::Store(hn::DemoteTo(half, value), half, buffer);
  std::memcpy(to, buffer, count * sizeof(float));
}

// <a, b> in double. Vectors of different lengths add in different orders; in float that rounds
// differently from CPU to CPU, in double hardly.
HWY_INLINE double dot_in_double(const float* a, const float* b, int64_t width) {
  const F64 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V64 sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto step = [&](V64 sum, int64_t i) {
    const hn::Rebind<float, F64> half;
    return hn::MulAdd(hn::PromoteTo(d, hn::LoadU(half, a + i)),
                      hn::PromoteTo(d, hn::LoadU(half, b + i)), sum);
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    sum0 = step(sum0, i);
    sum1 = step(sum1, i + lanes);
    sum2 = step(sum2, i + 2 * lanes);
    sum3 = step(sum3, i + 3 * lanes);
  }
  for (; i < width; i += lanes) {
    const auto n = static_cast<size_t>(HWY_MIN(lanes, width - i));
    sum0 = hn::MulAdd(load_double(d, a + i, n), load_double(d, b + i, n), sum0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// 1 / sqrt(|x|^2 / divisor + eps). In double: norms divide by small numbers, and an error here
// would reach every feature of the row.
HWY_INLINE double inverse_norm(const float* x, int64_t width, double divisor, double eps) {
  return 1.0 / std::sqrt(dot_in_double(x, x, width) / divisor + eps);
}

// 1 / (1 + exp(-x)), without overflow.
HWY_INLINE V32 sigmoid(F32 d, V32 x) {
  const V32 e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V32 one = hn::Set(d, 1.0f);
  const V32 small = hn::Div(e, hn::Add(one, e));  // sigmoid(-|x|)
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, hn::Sub(one, small));
}

// x <- softmax(x).
HWY_INLINE void softmax(F32 d, float* x, int64_t count) {
  float highest = x[0];
  for (int64_t i = 1; i < count; ++i) {
    highest = HWY_MAX(highest, x[i]);
  }
  const V32 top = hn::Set(d, highest);
  V32 sums = hn::Zero(d);
  for_vectors(d, count, [&](int64_t i, size_t n) {
    const V32 e = hn::Exp(d, hn::Sub(load_part(d, x + i, n), top));
    sums = hn::Add(sums, hn::IfThenElseZero(hn::FirstN(d, n), e));
    store_part(d, e, x + i, n);
  });
  const V32 scale = hn::Set(d, 1.0f / hn::GetLane(hn::SumOfLanes(d, sums)));
  for_vectors(d, count, [&](int64_t i, size_t n) {
    store_part(d, hn::Mul(load_part(d, x + i, n), scale), x + i, n);
  });
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
