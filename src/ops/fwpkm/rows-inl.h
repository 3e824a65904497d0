// Vector loops over rows of keys and values. Included once per Highway target, after
// foreach_target, as ops/common/simd-inl.h is.
#if defined(FWPKM_OPS_FWPKM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_FWPKM_ROWS_INL_H_
#undef FWPKM_OPS_FWPKM_ROWS_INL_H_
#else
#define FWPKM_OPS_FWPKM_ROWS_INL_H_
#endif

#include "memory/gather-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

// |a - b|^2, from the differences: near its key a query's distance would drown in the products. The
// same bits wherever it is computed.
HWY_INLINE float squared_distance(F32 d, const float* a, const float* b, int64_t width) {
  V32 even = hn::Zero(d), odd = hn::Zero(d);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += 2 * lanes) {
    const auto n = static_cast<size_t>(width - i);
    const V32 x = hn::Sub(load_part(d, a + i, n), load_part(d, b + i, n));
    even = hn::MulAdd(x, x, even);
    if (i + lanes < width) {
      const V32 y =
          hn::Sub(load_part(d, a + i + lanes, n - lanes), load_part(d, b + i + lanes, n - lanes));
      odd = hn::MulAdd(y, y, odd);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// <a - b, e>.
HWY_INLINE float dot_difference(F32 d, const float* a, const float* b, const float* e,
                                int64_t width) {
  V32 sum = hn::Zero(d);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    const V32 x = hn::Sub(load_part(d, a + i, n), load_part(d, b + i, n));
    sum = hn::MulAdd(x, load_part(d, e + i, n), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// to += scale * a.
HWY_INLINE void add_scaled(F32 d, float scale, const float* a, int64_t width, float* to) {
  const V32 c = hn::Set(d, scale);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    store_part(d, hn::MulAdd(c, load_part(d, a + i, n), load_part(d, to + i, n)), to + i, n);
  });
}

// to += scale * (a - b).
HWY_INLINE void add_scaled_difference(F32 d, float scale, const float* a, const float* b,
                                      int64_t width, float* to) {
  const V32 c = hn::Set(d, scale);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    const V32 x = hn::Sub(load_part(d, a + i, n), load_part(d, b + i, n));
    store_part(d, hn::MulAdd(c, x, load_part(d, to + i, n)), to + i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
