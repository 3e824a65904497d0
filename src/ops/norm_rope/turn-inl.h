// The rotation of pairs of features. Included once per Highway target, after simd-inl.h.
#if defined(FWPKM_OPS_NORM_ROPE_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_OPS_NORM_ROPE_TURN_INL_H_
#undef FWPKM_OPS_NORM_ROPE_TURN_INL_H_
#else
#define FWPKM_OPS_NORM_ROPE_TURN_INL_H_
#endif

#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

// The angles of one token: cos and sin [half].
struct Turn {
  const float* cos;
  const float* sin;
  int64_t half;
};

// Turns the pairs (from_i, from_{i+half}) by the angles, or back by them. In place is fine.
template <bool kBack, class D>
HWY_INLINE void turn_pairs_by(D d, const Turn& turn, const float* from, float* to) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* from2 = from + turn.half;
  float* to2 = to + turn.half;
  int64_t i = 0;
  for (; i + lanes <= turn.half; i += lanes) {
    const auto c = hn::LoadU(d, turn.cos + i);
    const auto s = kBack ? hn::Neg(hn::LoadU(d, turn.sin + i)) : hn::LoadU(d, turn.sin + i);
    const auto a = hn::LoadU(d, from + i), b = hn::LoadU(d, from2 + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, to + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, to2 + i);
  }
  for (; i < turn.half; ++i) {
    const float c = turn.cos[i], s = kBack ? -turn.sin[i] : turn.sin[i];
    const float a = from[i], b = from2[i];
    to[i] = a * c - b * s;
    to2[i] = b * c + a * s;
  }
}

// Few features are rotated as a rule (a quarter of the head), so halves are often shorter than the
// longest vectors: take the longest that fit.
template <bool kBack>
HWY_INLINE void turn_pairs(const Turn& turn, const float* from, float* to) {
  if (turn.half >= static_cast<int64_t>(hn::Lanes(F32()))) {
    turn_pairs_by<kBack>(F32(), turn, from, to);
  } else if (turn.half >= 8) {
    turn_pairs_by<kBack>(hn::CappedTag<float, 8>(), turn, from, to);
  } else {
    turn_pairs_by<kBack>(hn::CappedTag<float, 4>(), turn, from, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
