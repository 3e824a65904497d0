#include "base/parallel.h"
#include "ops/common/rows.h"
#include "ops/lact_qk/lact_qk.h"
#include "ops/lact_qk/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lact_qk/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"
#include "ops/norm_rope/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// Scale and offset [features] of q or k, out of their pairs.
void take_column(const OpArgs& args, const LactQkSizes& n, int which, float* scale, float* offset) {
  for (int64_t i = 0; i < n.features; ++i) {
    scale[i] = args.in[2].ptr<float>()[2 * i + which];
    offset[i] = args.in[3].ptr<float>()[2 * i + which];
  }
}

// All heads of a token turned, or turned back. In place is fine.
template <bool kBack>
void turn_token(const OpArgs& args, const LactQkSizes& n, int64_t token, const float* from,
                float* to) {
  const F32 d;
  const int64_t at = token % n.time * n.half;
  const Turn turn = {args.in[4].ptr<float>() + at, args.in[5].ptr<float>() + at, n.half};
  for (int64_t h = 0; h < n.turned_heads; ++h) {
    const int64_t begin = h * n.turned_width;
    turn_pairs<kBack>(turn, from + begin, to + begin);
    for_vectors(d, n.turned_width - 2 * n.half, [&](int64_t i, size_t c) {
      const int64_t x = begin + 2 * n.half + i;
      store_part(d, load_part(d, from + x, c), to + x, c);
    });
  }
}

void forward(const OpArgs& args) {
  const LactQkSizes n(args);
  auto* scale = static_cast<float*>(args.workspace);
  float* offset = scale + n.features;
  for (int which = 0; which < 2; ++which) {
    take_column(args, n, which, scale, offset);
    parallel_ranges(n.tokens, 4, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t token = begin; token < end; ++token) {
        const float* x = args.in[which].ptr<float>() + n.row(args.in[which], token);
        float* y = args.out[which].ptr<float>() + n.row(args.out[which], token);
        for (int64_t h = 0; h < n.heads; ++h) {
          const int64_t first = h * n.width;
          for_vectors(d, n.width, [&](int64_t j, size_t c) {
            const int64_t i = first + j;
            const V32 a = hn::MulAdd(load_part(d, x + i, c), load_part(d, scale + i, c),
                                     load_part(d, offset + i, c));
            store_part(d, hn::Mul(a, sigmoid(d, a)), y + i, c);
          });
          const double length =
              std::sqrt(static_cast<double>(dot(d, y + first, y + first, n.width)));
          const V32 r = hn::Set(d, static_cast<float>(1.0 / (length + kLactUnitEps)));
          for_vectors(d, n.width, [&](int64_t j, size_t c) {
            store_part(d, hn::Mul(r, load_part(d, y + first + j, c)), y + first + j, c);
          });
          if (args.saved[0]) {
            args.saved[0].ptr<float>()[(which * n.tokens + token) * n.heads + h] =
                static_cast<float>(length);
          }
        }
        turn_token<false>(args, n, token, y, y);
      }
    });
  }
}

// One token: dn [features] becomes da; dx is written, and da x and da are added to the sums.
void backward_token(const OpArgs& args, const LactQkSizes& n, int which, int64_t token,
                    const float* scale, const float* offset, float* dn, float* y, float* sums) {
  const F32 d;
  const V32 one = hn::Set(d, 1.0f);
  const float* x = args.in[which].ptr<float>() + n.row(args.in[which], token);
  const float* lengths = args.saved[0].ptr<float>() + (which * n.tokens + token) * n.heads;
  const View& din = args.din[static_cast<size_t>(which)];
  float* dx = din ? din.ptr<float>() + n.row(din, token) : nullptr;
  const auto input = [&](int64_t i, size_t c) {
    return hn::MulAdd(load_part(d, x + i, c), load_part(d, scale + i, c),
                      load_part(d, offset + i, c));
  };
  for (int64_t h = 0; h < n.heads; ++h) {
    const int64_t first = h * n.width;
    for_vectors(d, n.width, [&](int64_t j, size_t c) {
      const V32 a = input(first + j, c);
      store_part(d, hn::Mul(a, sigmoid(d, a)), y + first + j, c);
    });
    const double length = static_cast<double>(lengths[h]), r = 1.0 / (length + kLactUnitEps);
    const double along = static_cast<double>(dot(d, y + first, dn + first, n.width));
    const V32 gain = hn::Set(d, static_cast<float>(r));
    const V32 back = hn::Set(d, length > 0 ? static_cast<float>(r * along / length) : 0.0f);
    for_vectors(d, n.width, [&](int64_t j, size_t c) {
      const int64_t i = first + j;
      const V32 a = input(i, c), s = sigmoid(d, a);
      const V32 dy =
          hn::Mul(gain, hn::NegMulAdd(load_part(d, y + i, c), back, load_part(d, dn + i, c)));
      const V32 da = hn::Mul(hn::Mul(dy, s), hn::MulAdd(a, hn::Sub(one, s), one));
      if (dx != nullptr) {
        put(d, hn::Mul(da, load_part(d, scale + i, c)), dx + i, c, args.accumulate[which]);
      }
      put(d, hn::Mul(da, load_part(d, x + i, c)), sums + i, c, true);
      put(d, da, sums + n.features + i, c, true);
    });
  }
}

void backward(const OpArgs& args) {
  const LactQkSizes n(args);
  const int64_t groups = row_groups(n.tokens);
  auto* scale = static_cast<float*>(args.workspace);
  float* offset = scale + n.features;
  float* totals = offset + n.features;              // [2, features]
  float* partial = totals + 2 * n.features;         // [groups, 2, features]
  float* rows = partial + groups * 2 * n.features;  // [threads, 2, features]
  for (int which = 0; which < 2; ++which) {
    take_column(args, n, which, scale, offset);
    parallel_ranges(groups, 1, [&](int64_t begin, int64_t end) {
      float* dn = rows + thread_index() * 2 * n.features;
      for (int64_t group = begin; group < end; ++group) {
        float* sums = partial + group * 2 * n.features;
        std::memset(sums, 0, static_cast<size_t>(2 * n.features) * sizeof(float));
        const int64_t last = HWY_MIN(n.tokens, (group + 1) * kRowGroup);
        for (int64_t token = group * kRowGroup; token < last; ++token) {
          if (const View& dout = args.dout[static_cast<size_t>(which)]) {
            turn_token<true>(args, n, token, dout.ptr<float>() + n.row(dout, token), dn);
          } else {
            std::memset(dn, 0, static_cast<size_t>(n.features) * sizeof(float));
          }
          backward_token(args, n, which, token, scale, offset, dn, dn + n.features, sums);
        }
      }
    });
    sum_groups(partial, groups, 2 * n.features, totals, false);
    for (int i = 0; i < 2; ++i) {
      float* to = args.din[2 + i].ptr<float>();
      for (int64_t j = 0; j < n.features && to != nullptr; ++j) {
        float& sum = to[2 * j + which];
        sum = (args.accumulate[2 + i] ? sum : 0.0f) + totals[i * n.features + j];
      }
    }
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

void lact_qk_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void lact_qk_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t lact_qk_workspace_cpu(const OpArgs& args, bool backward) {
  const LactQkSizes n(args);
  const int64_t rows = backward ? 2 + 1 + row_groups(n.tokens) + threads() : 1;
  return static_cast<size_t>(2 * rows * n.features) * sizeof(float);
}

}  // namespace fwpkm
#endif
