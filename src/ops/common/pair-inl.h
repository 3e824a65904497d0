// Numbers as sums of two floats. A kernel that multiplies several factors rounds after each; with
// pairs it rounds once, at the end, for a few more multiply-adds and no wider memory. Included once
// per Highway target, like ops/common/simd-inl.h.
#if defined(FWPKM_OPS_COMMON_PAIR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_COMMON_PAIR_INL_H_
#undef FWPKM_OPS_COMMON_PAIR_INL_H_
#else
#define FWPKM_OPS_COMMON_PAIR_INL_H_
#endif

#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

struct Pair {
  V32 hi, lo;  // lo is at most a few units in the last place of hi
};

HWY_INLINE Pair pair_of(F32 d, double value) {
  const auto hi = static_cast<float>(value);
  return {hn::Set(d, hi), hn::Set(d, static_cast<float>(value - static_cast<double>(hi)))};
}

HWY_INLINE V32 rounded(const Pair& a) {
  return hn::Add(a.hi, a.lo);
}

// What `product` = a * b lost by rounding.
HWY_INLINE V32 product_error(F32 d, V32 a, V32 b, V32 product) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulSub(a, b, product);
#else
  // Factors are cut into halves whose products are exact.
  const V32 cut = hn::Set(d, 4097.0f);
  const V32 a_cut = hn::Mul(cut, a), b_cut = hn::Mul(cut, b);
  const V32 a1 = hn::Sub(a_cut, hn::Sub(a_cut, a)), b1 = hn::Sub(b_cut, hn::Sub(b_cut, b));
  const V32 a2 = hn::Sub(a, a1), b2 = hn::Sub(b, b1);
  const V32 high = hn::Sub(hn::Mul(a1, b1), product);
  return hn::Add(hn::Add(hn::Add(high, hn::Mul(a1, b2)), hn::Mul(a2, b1)), hn::Mul(a2, b2));
#endif
}

HWY_INLINE Pair times(F32 d, V32 a, V32 b) {
  const V32 p = hn::Mul(a, b);
  return {p, product_error(d, a, b, p)};
}

HWY_INLINE Pair times(F32 d, const Pair& a, V32 b) {
  const V32 p = hn::Mul(a.hi, b);
  return {p, hn::MulAdd(a.lo, b, product_error(d, a.hi, b, p))};
}

HWY_INLINE Pair times(F32 d, const Pair& a, const Pair& b) {
  const V32 p = hn::Mul(a.hi, b.hi);
  const V32 cross = hn::MulAdd(a.lo, b.hi, hn::Mul(a.hi, b.lo));
  return {p, hn::Add(product_error(d, a.hi, b.hi, p), cross)};
}

// a + b where |a| >= |b|; where not, nothing worse than a rounded sum.
HWY_INLINE Pair plus(V32 a, V32 b) {
  const V32 sum = hn::Add(a, b);
  return {sum, hn::Sub(b, hn::Sub(sum, a))};
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
