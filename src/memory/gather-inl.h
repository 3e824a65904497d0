// Weighted sums of rows scattered over a table. Included once per Highway target, after
// foreach_target, as ops/common/simd-inl.h is.
#if defined(FWPKM_MEMORY_GATHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FWPKM_MEMORY_GATHER_INL_H_
#undef FWPKM_MEMORY_GATHER_INL_H_
#else
#define FWPKM_MEMORY_GATHER_INL_H_
#endif

#include <hwy/cache_control.h>

#include <type_traits>

#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {

// out[0..width) = or += the sum over r of weight(r) * row(r)[0..width), in the order of r. Four
// rows are read at a time while the next four are being fetched; `row` maps 0..count-1 to a
// pointer, `weight` to a number.
template <typename RowOf, typename WeightOf>
requires(!std::is_pointer_v<WeightOf>) HWY_INLINE
    void sum_rows(F32 d, const RowOf& row, const WeightOf& weight, int64_t count, int64_t width,
                  float* out, bool add) {
  if (count == 0 && !add) {
    std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
  }
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const float *a = row(r), *b = row(r + 1), *c = row(r + 2), *e = row(r + 3);
    const int64_t last = count - 1;
    const float *a_next = row(HWY_MIN(r + 4, last)), *b_next = row(HWY_MIN(r + 5, last));
    const float *c_next = row(HWY_MIN(r + 6, last)), *e_next = row(HWY_MIN(r + 7, last));
    const V32 wa = hn::Set(d, weight(r)), wb = hn::Set(d, weight(r + 1));
    const V32 wc = hn::Set(d, weight(r + 2)), we = hn::Set(d, weight(r + 3));
    const bool fresh = r == 0 && !add;
    for_vectors(d, width, [&](int64_t i, size_t n) {
      hwy::Prefetch(a_next + i);
      hwy::Prefetch(b_next + i);
      hwy::Prefetch(c_next + i);
      hwy::Prefetch(e_next + i);
      V32 sum = fresh ? hn::Zero(d) : load_part(d, out + i, n);
      sum = hn::MulAdd(wa, load_part(d, a + i, n), sum);
      sum = hn::MulAdd(wb, load_part(d, b + i, n), sum);
      sum = hn::MulAdd(wc, load_part(d, c + i, n), sum);
      sum = hn::MulAdd(we, load_part(d, e + i, n), sum);
      store_part(d, sum, out + i, n);
    });
  }
  for (; r < count; ++r) {
    const float* a = row(r);
    const V32 wa = hn::Set(d, weight(r));
    const bool fresh = r == 0 && !add;
    for_vectors(d, width, [&](int64_t i, size_t n) {
      const V32 sum = fresh ? hn::Zero(d) : load_part(d, out + i, n);
      store_part(d, hn::MulAdd(wa, load_part(d, a + i, n), sum), out + i, n);
    });
  }
}

template <typename RowOf>
HWY_INLINE void sum_rows(F32 d, const RowOf& row, const float* weights, int64_t count,
                         int64_t width, float* out, bool add) {
  sum_rows(
      d, row, [&](int64_t r) { return weights[r]; }, count, width, out, add);
}

// Returns <a, b>; if `out` is given, also out += weight * b.
HWY_INLINE float dot_and_add(F32 d, const float* a, const float* b, float weight, int64_t width,
                             float* out) {
  V32 even = hn::Zero(d), odd = hn::Zero(d);
  const V32 w = hn::Set(d, weight);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += 2 * lanes) {
    const auto n = static_cast<size_t>(width - i);
    const V32 x = load_part(d, b + i, n);
    even = hn::MulAdd(load_part(d, a + i, n), x, even);
    if (out != nullptr) {
      store_part(d, hn::MulAdd(w, x, load_part(d, out + i, n)), out + i, n);
    }
    if (i + lanes < width) {
      const V32 y = load_part(d, b + i + lanes, n - lanes);
      odd = hn::MulAdd(load_part(d, a + i + lanes, n - lanes), y, odd);
      if (out != nullptr) {
        store_part(d, hn::MulAdd(w, y, load_part(d, out + i + lanes, n - lanes)), out + i + lanes,
                   n - lanes);
      }
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// Asks for a row that is needed soon.
HWY_INLINE void prefetch_row(const float* row, int64_t width) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < width; i += kLine) {
    hwy::Prefetch(row + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#endif
