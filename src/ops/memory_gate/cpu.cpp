#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/memory_gate/memory_gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/memory_gate/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// Rows are short (8 logits), often shorter than a vector: the end of a row is added one by one.
float mean(F32 d, const float* x, int64_t width) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float sum = 0;
  int64_t i = 0;
  if (width >= lanes) {
    V32 sums = hn::Zero(d);
    for (; i + lanes <= width; i += lanes) {
      sums = hn::Add(sums, hn::LoadU(d, x + i));
    }
    sum = hn::GetLane(hn::SumOfLanes(d, sums));
  }
  for (; i < width; ++i) {
    sum += x[i];
  }
  return sum / static_cast<float>(width);
}

// The means of `count` tokens from `first` on, a token per lane.
V32 means(F32 d, const float* x0, const Rows& rows, int64_t width, int64_t first, size_t count) {
  HWY_ALIGN float buffer[hn::MaxLanes(F32())] = {};
  for (size_t k = 0; k < count; ++k) {
    buffer[k] = mean(d, x0 + rows[first + static_cast<int64_t>(k)], width);
  }
  return hn::Load(d, buffer);
}

void forward(const OpArgs& args) {
  const Rows rows(args.in[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  float* g0 = args.out[0].ptr<float>();
  parallel_ranges(rows.count(), 64, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      store_part(d, sigmoid(d, means(d, x0, rows, width, begin + i, n)), g0 + begin + i, n);
    });
  });
}

void backward(const OpArgs& args) {
  if (!args.din[0]) {
    return;
  }
  const Rows rows(args.in[0]), d_rows(args.din[0]);
  const int64_t width = args.in[0].dim(-1);
  const float* x0 = args.in[0].ptr<float>();
  const float* dg0 = args.dout[0].ptr<float>();
  float* dx0 = args.din[0].ptr<float>();
  const bool add = args.accumulate[0];
  parallel_ranges(rows.count(), 64, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 share = hn::Set(d, 1.0f / static_cast<float>(width));
    HWY_ALIGN float buffer[hn::MaxLanes(F32())];
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      // g (1 - g) as sigmoid(m) sigmoid(-m): 1 - g has few digits where g is close to 1.
      const V32 m = means(d, x0, rows, width, begin + i, n);
      const V32 slope = hn::Mul(sigmoid(d, m), sigmoid(d, hn::Neg(m)));
      const V32 dg = hn::Mul(load_part(d, dg0 + begin + i, n), share);
      hn::Store(hn::Mul(dg, slope), d, buffer);
      for (size_t k = 0; k < n; ++k) {
        float* dx = dx0 + d_rows[begin + i + static_cast<int64_t>(k)];
        for (int64_t r = 0; r < width; ++r) {
          dx[r] = add ? dx[r] + buffer[k] : buffer[k];
        }
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

void memory_gate_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void memory_gate_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

}  // namespace fwpkm
#endif
