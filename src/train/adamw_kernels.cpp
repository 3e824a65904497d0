#include "train/adamw_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "train/adamw_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {

void update(float* p, float* g, float* m, float* v, int64_t count, const AdamWConstants& c) {
  const F32 d;
  const auto set = [&](double x) { return hn::Set(d, static_cast<float>(x)); };
  const V32 beta1 = set(c.beta1), rest1 = set(1 - c.beta1), beta2 = set(c.beta2),
            rest2 = set(1 - c.beta2), eps = set(c.eps), keep = set(c.keep), step = set(c.step),
            second_scale = set(c.second_scale), gradient_scale = set(c.gradient_scale);
  for_vectors(d, count, [&](int64_t i, size_t n) {
    const V32 grad = hn::Mul(load_part(d, g + i, n), gradient_scale);
    const V32 first = hn::MulAdd(beta1, load_part(d, m + i, n), hn::Mul(rest1, grad));
    const V32 second =
        hn::MulAdd(beta2, load_part(d, v + i, n), hn::Mul(rest2, hn::Mul(grad, grad)));
    store_part(d, first, m + i, n);
    store_part(d, second, v + i, n);
    const V32 root = hn::MulAdd(hn::Sqrt(second), second_scale, eps);
    const V32 kept = hn::Mul(keep, load_part(d, p + i, n));
    store_part(d, hn::NegMulAdd(step, hn::Div(first, root), kept), p + i, n);
    store_part(d, hn::Zero(d), g + i, n);
  });
}

double squares(const float* x, int64_t count) {
  const F32 d;
  return static_cast<double>(dot(d, x, x, count));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {
namespace {

// Elements whose squares are summed in float before they join a double.
constexpr int64_t kSumBlock = 2048;

void update_reference(const View& p, const View& g, const View& m, const View& v,
                      const AdamWConstants& c) {
  double* weight = p.ptr<double>();
  double* grad = g.ptr<double>();
  double* first = m.ptr<double>();
  double* second = v.ptr<double>();
  for (int64_t i = 0; i < p.size(); ++i) {
    const double gradient = grad[i] * c.gradient_scale;
    first[i] = c.beta1 * first[i] + (1 - c.beta1) * gradient;
    second[i] = c.beta2 * second[i] + (1 - c.beta2) * gradient * gradient;
    weight[i] =
        c.keep * weight[i] - c.step * first[i] / (std::sqrt(second[i]) * c.second_scale + c.eps);
    grad[i] = 0;
  }
}

}  // namespace

HWY_EXPORT(update);
HWY_EXPORT(squares);

void adamw_update(const View& p, const View& g, const View& m, const View& v,
                  const AdamWConstants& constants) {
  if (p.device == DeviceKind::kReference) {
    update_reference(p, g, m, v, constants);
    return;
  }
  require(p.device == DeviceKind::kCpu, "adamw", "no {} kernel", device_name(p.device));
  float* weight = p.ptr<float>();
  parallel_ranges(p.size(), 16384, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(update)
    (weight + begin, g.ptr<float>() + begin, m.ptr<float>() + begin, v.ptr<float>() + begin,
     end - begin, constants);
  });
}

double sum_of_squares(const View& x) {
  double total = 0;
  if (x.device == DeviceKind::kReference) {
    for (int64_t i = 0; i < x.size(); ++i) {
      total += x.ptr<double>()[i] * x.ptr<double>()[i];
    }
    return total;
  }
  require(x.device == DeviceKind::kCpu, "adamw", "no {} kernel", device_name(x.device));
  // Rounds of blocks: partial sums of a round in parallel, then added in order.
  constexpr int64_t kRound = 256;
  double partial[kRound];
  const int64_t blocks = (x.size() + kSumBlock - 1) / kSumBlock;
  for (int64_t first = 0; first < blocks; first += kRound) {
    const int64_t count = std::min(kRound, blocks - first);
    parallel_ranges(count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = (first + i) * kSumBlock;
        partial[i] =
            HWY_DYNAMIC_DISPATCH(squares)(x.ptr<float>() + at, std::min(kSumBlock, x.size() - at));
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      total += partial[i];
    }
  }
  return total;
}

}  // namespace fwpkm
#endif
