#include "base/parallel.h"
#include "ops/blend_norm/blend_norm.h"
#include "ops/common/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/blend_norm/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

void forward(const OpArgs& args) {
  using In = BlendNormIn;
  const Rows a_rows(args.in[In::a]), b_rows(args.in[In::b]), y_rows(args.out[0]);
  const int64_t width = args.in[In::a].dim(-1);
  const double eps = args.attr<BlendNormSettings>().eps;
  const float* g = args.in[In::g].ptr<float>();
  const float* w = args.in[In::w].ptr<float>();
  float* saved = args.saved[0].ptr<float>();
  parallel_ranges(a_rows.count(), 16, [&](int64_t begin, int64_t end) {
    const F64 d;
    const V64 one = hn::Set(d, 1.0);
    for (int64_t row = begin; row < end; ++row) {
      const float* a = args.in[In::a].ptr<float>() + a_rows[row];
      const float* b = args.in[In::b].ptr<float>() + b_rows[row];
      float* y = args.out[0].ptr<float>() + y_rows[row];
      const double share = g != nullptr ? static_cast<double>(g[row]) : 1.0;
      const V64 of_a = hn::Set(d, share);
      const V64 of_b = hn::Set(d, g != nullptr ? 1.0 - share : 1.0);
      // In double: what is rounded here would reach every feature of the row.
      const auto mixed = [&](int64_t i, size_t n) {
        return hn::MulAdd(of_a, load_double(d, a + i, n), hn::Mul(of_b, load_double(d, b + i, n)));
      };
      V64 squares = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V64 m = mixed(i, n);
        squares = hn::MulAdd(m, m, squares);
      });
      const double sum = hn::GetLane(hn::SumOfLanes(d, squares));
      const double r = 1.0 / std::sqrt(sum / static_cast<double>(width) + eps);
      const V64 vr = hn::Set(d, r);
      for_vectors(d, width, [&](int64_t i, size_t n) {
        const V64 gain = hn::Add(one, load_double(d, w + i, n));
        store_rounded(d, hn::Mul(hn::Mul(mixed(i, n), vr), gain), y + i, n);
      });
      if (saved != nullptr) {
        saved[row] = static_cast<float>(r);
      }
    }
  });
}

// The gradients of one row; what it adds to the weight's goes to `sums`.
void backward_row(const OpArgs& args, int64_t row, const float* a, const float* b, const float* dy,
                  float* da, float* db, float* sums) {
  using In = BlendNormIn;
  const F32 d;
  const int64_t width = args.in[In::a].dim(-1);
  const float* g = args.in[In::g].ptr<float>();
  const float* w = args.in[In::w].ptr<float>();
  const V32 one = hn::Set(d, 1.0f);
  const V32 of_a = g != nullptr ? hn::Set(d, g[row]) : one;
  const V32 of_b = g != nullptr ? hn::Sub(one, of_a) : one;
  const V32 r = hn::Set(d, args.saved[0].ptr<float>()[row]);
  const auto mhat = [&](V32 ai, V32 bi) {
    return hn::Mul(hn::MulAdd(of_a, ai, hn::Mul(of_b, bi)), r);
  };
  const auto full = [&](int64_t i, size_t n) {
    return hn::Mul(load_part(d, dy + i, n), hn::Add(one, load_part(d, w + i, n)));
  };
  V32 dots = hn::Zero(d);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    const V32 mi = mhat(load_part(d, a + i, n), load_part(d, b + i, n));
    dots = hn::MulAdd(full(i, n), mi, dots);
    if (sums != nullptr) {
      put(d, hn::Mul(load_part(d, dy + i, n), mi), sums + i, n, true);
    }
  });
  float* dg = args.din[In::g].ptr<float>();
  if (da == nullptr && db == nullptr && dg == nullptr) {
    return;
  }
  const V32 mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, dots)) / static_cast<float>(width));
  dots = hn::Zero(d);
  for_vectors(d, width, [&](int64_t i, size_t n) {
    const V32 ai = load_part(d, a + i, n), bi = load_part(d, b + i, n);
    const V32 dm = hn::Mul(r, hn::NegMulAdd(mhat(ai, bi), mean, full(i, n)));
    if (da != nullptr) {
      put(d, hn::Mul(of_a, dm), da + i, n, args.accumulate[In::a]);
    }
    if (db != nullptr) {
      put(d, hn::Mul(of_b, dm), db + i, n, args.accumulate[In::b]);
    }
    dots = hn::MulAdd(dm, hn::Sub(ai, bi), dots);
  });
  if (dg != nullptr) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, dots));
    dg[row] = args.accumulate[In::g] ? dg[row] + sum : sum;
  }
}

void backward(const OpArgs& args) {
  using In = BlendNormIn;
  const View &a = args.in[In::a], &b = args.in[In::b], &dy = args.dout[0];
  const View &da = args.din[In::a], &db = args.din[In::b], &dw = args.din[In::w];
  const Rows a_rows(a), b_rows(b), dy_rows(dy), da_rows(da ? da : a), db_rows(db ? db : b);
  const int64_t width = a.dim(-1), groups = row_groups(a_rows.count());
  auto* partial = static_cast<float*>(args.workspace);  // [groups, width]
  parallel_ranges(groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      float* sums = dw ? partial + group * width : nullptr;
      if (sums != nullptr) {
        std::memset(sums, 0, static_cast<size_t>(width) * sizeof(float));
      }
      const int64_t end = HWY_MIN(a_rows.count(), (group + 1) * kRowGroup);
      for (int64_t row = group * kRowGroup; row < end; ++row) {
        backward_row(args, row, a.ptr<float>() + a_rows[row], b.ptr<float>() + b_rows[row],
                     dy.ptr<float>() + dy_rows[row], da ? da.ptr<float>() + da_rows[row] : nullptr,
                     db ? db.ptr<float>() + db_rows[row] : nullptr, sums);
      }
    }
  });
  if (dw) {
    sum_groups(partial, groups, width, dw.ptr<float>(), args.accumulate[In::w]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void blend_norm_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void blend_norm_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t blend_norm_workspace_cpu(const OpArgs& args, bool backward) {
  const View& a = args.in[BlendNormIn::a];
  return backward ? static_cast<size_t>(row_groups(a.rows()) * a.dim(-1)) * sizeof(float) : 0;
}

}  // namespace fwpkm
#endif
