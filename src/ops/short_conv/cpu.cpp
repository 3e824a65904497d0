#include <algorithm>

#include "base/parallel.h"
#include "ops/short_conv/short_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/short_conv/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// A run of channels that lie side by side both in an input and in y: one head of q, k or v.
struct Segment {
  int part;  // which of q, k, v
  int64_t head;
  int64_t width;
  int64_t channel;  // first channel in y
};

HWY_INLINE Segment segment(std::span<const View> in, int64_t index) {
  const int64_t heads = in[0].dim(2);
  Segment s;
  s.part = static_cast<int>(index / heads);
  s.head = index % heads;
  s.width = in[s.part].dim(3);
  s.channel = s.part * heads * in[0].dim(3) + s.head * s.width;
  return s;
}

HWY_INLINE float* row(const View& x, const Segment& s, int64_t b, int64_t t) {
  return x.ptr<float>() + b * x.stride(0) + t * x.stride(1) + s.head * x.stride(2);
}

// Weights as [K, C], so that neighbouring channels load together.
template <typename T>
HWY_INLINE void transpose_weights(const View& w, T* to) {
  const float* from = w.ptr<float>();
  const int64_t channels = w.dim(0), taps = w.dim(2);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < taps; ++j) {
      to[j * channels + c] = static_cast<T>(from[c * taps + j]);
    }
  }
}

// Where the input at time t (from -(K-1)) lies: in the tail or in x; null means zero.
HWY_INLINE const float* input_at(const View& x, const float* tail, const Segment& s, int64_t b,
                                 int64_t t, int64_t taps, int64_t channels) {
  if (t >= 0) {
    return row(x, s, b, t);
  }
  return tail == nullptr ? nullptr : tail + (b * (taps - 1) + t + taps - 1) * channels + s.channel;
}

// The inputs that reach one token: x[j] is the row of tap j, null for zero. `starts` is the row of
// the batch, or null.
template <int kTaps>
HWY_INLINE void gather_taps(const View& x, const float* tail, const int32_t* starts,
                            const Segment& s, int64_t b, int64_t t, int64_t channels, int64_t taps,
                            const float** rows) {
  for (int64_t j = 0; j < (kTaps > 0 ? kTaps : taps); ++j) {
    const int64_t from = t - (taps - 1) + j;
    rows[j] = starts != nullptr && from < starts[t] ? nullptr
                                                    : input_at(x, tail, s, b, from, taps, channels);
  }
}

// Where the documents of a row's tokens begin, or null.
HWY_INLINE const int32_t* starts_of(const OpArgs& args, int64_t b) {
  const int32_t* starts = args.in[4].ptr<int32_t>();
  return starts == nullptr ? nullptr : starts + b * args.out[0].dim(1);
}

// The sum before SiLU of `n` channels from i on; w points at the segment's first channel.
template <int kTaps>
HWY_INLINE V32 weighted_sum(F32 d, const float* const* rows, const float* w, int64_t channels,
                            int64_t taps, int64_t i, size_t n) {
  V32 a = hn::Zero(d);
  for (int64_t j = 0; j < (kTaps > 0 ? kTaps : taps); ++j) {
    if (rows[j] != nullptr) {
      a = hn::MulAdd(load_part(d, w + j * channels + i, n), load_part(d, rows[j] + i, n), a);
    }
  }
  return a;
}

// The same with the sum in double: taps cancel. `w` has room for a vector past its end.
template <int kTaps>
HWY_INLINE V32 weighted_sum(F32 d, const float* const* rows, const double* w, int64_t channels,
                            int64_t taps, int64_t i, size_t n) {
  const F64 d64;
  const hn::Rebind<float, F64> half;
  const size_t lanes = hn::Lanes(d64);
  const size_t n0 = HWY_MIN(n, lanes), n1 = n - n0;
  V64 a0 = hn::Zero(d64), a1 = a0;
  for (int64_t j = 0; j < (kTaps > 0 ? kTaps : taps); ++j) {
    if (rows[j] != nullptr) {
      const double* wj = w + j * channels + i;
      a0 = hn::MulAdd(hn::LoadU(d64, wj), load_double(d64, rows[j] + i, n0), a0);
      a1 = hn::MulAdd(hn::LoadU(d64, wj + lanes), load_double(d64, rows[j] + i + lanes, n1), a1);
    }
  }
#if HWY_TARGET == HWY_SCALAR
  (void)d;  // one channel is all there is
  return hn::DemoteTo(half, a0);
#else
  return hn::Combine(d, hn::DemoteTo(half, a1), hn::DemoteTo(half, a0));
#endif
}

template <int kTaps>
void forward_taps(const OpArgs& args) {
  const View& y = args.out[0];
  const int64_t batch = y.dim(0), time = y.dim(1), channels = y.dim(2), taps = args.in[3].dim(2);
  auto* w = static_cast<double*>(args.workspace);  // [K, C]
  transpose_weights(args.in[3], w);
  float* tail = args.state.empty() ? nullptr : args.state[0].ptr<float>();
  if (tail != nullptr && args.saved[0]) {
    std::copy_n(tail, args.state[0].size(), args.saved[0].ptr<float>());
  }
  const int64_t segments = 3 * args.in[0].dim(2);
  constexpr int64_t kBlock = 64;  // tokens
  const int64_t blocks = (time + kBlock - 1) / kBlock;
  parallel_ranges(batch * blocks, 1, [&](int64_t first, int64_t last) {
    const F32 d;
    const float* rows[kMaxTaps];
    for (int64_t item = first; item < last; ++item) {
      const int64_t b = item / blocks, begin = item % blocks * kBlock;
      const int64_t end = HWY_MIN(time, begin + kBlock);
      for (int64_t index = 0; index < segments; ++index) {
        const Segment s = segment(args.in, index);
        for (int64_t t = begin; t < end; ++t) {
          float* out = y.ptr<float>() + (b * time + t) * channels + s.channel;
          gather_taps<kTaps>(args.in[s.part], tail, starts_of(args, b), s, b, t, channels, taps,
                             rows);
          for_vectors(d, s.width, [&](int64_t i, size_t n) {
            const V32 a = weighted_sum<kTaps>(d, rows, w + s.channel, channels, taps, i, n);
            store_part(d, hn::Mul(a, sigmoid(d, a)), out + i, n);
          });
        }
      }
    }
  });
  if (tail == nullptr) {
    return;
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t index = 0; index < segments; ++index) {
      const Segment s = segment(args.in, index);
      for (int64_t j = 0; j < taps - 1; ++j) {  // oldest first, so sources are not yet overwritten
        const float* from =
            input_at(args.in[s.part], tail, s, b, time - (taps - 1) + j, taps, channels);
        float* to = tail + (b * (taps - 1) + j) * channels + s.channel;
        std::memmove(to, from, static_cast<size_t>(s.width) * sizeof(float));
      }
    }
  }
}

template <int kTaps>
void backward_taps(const OpArgs& args) {
  const View& y = args.out[0];
  const int64_t batch = y.dim(0), time = y.dim(1), channels = y.dim(2), taps = args.in[3].dim(2);
  auto* w = static_cast<float*>(args.workspace);  // [K, C]
  float* dw = w + taps * channels;                // [K, C]
  const int64_t widest = HWY_MAX(args.in[0].dim(3), args.in[2].dim(3));
  float* scratch = dw + taps * channels;  // [threads, T + K - 1, widest]
  transpose_weights(args.in[3], w);
  const float* tail = args.saved[0].ptr<float>();
  const float* dy = args.dout[0].ptr<float>();
  const int64_t segments = 3 * args.in[0].dim(2);

  // An item is one head of q, k or v over all tokens, so that dw adds up in one place.
  parallel_items(segments, [&](int64_t index) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    const float* rows[kMaxTaps];
    const Segment s = segment(args.in, index);
    float* da = scratch + thread_index() * (time + taps - 1) * widest;
    std::memset(da + time * s.width, 0, static_cast<size_t>((taps - 1) * s.width) * sizeof(float));
    for (int64_t j = 0; j < taps; ++j) {
      std::memset(dw + j * channels + s.channel, 0, static_cast<size_t>(s.width) * sizeof(float));
    }
    const View& dx = args.din[s.part];
    const bool add = args.accumulate[s.part];
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < time; ++t) {
        const float* grad = dy + (b * time + t) * channels + s.channel;
        gather_taps<kTaps>(args.in[s.part], tail, starts_of(args, b), s, b, t, channels, taps,
                           rows);
        for_vectors(d, s.width, [&](int64_t i, size_t n) {
          const V32 a = weighted_sum<kTaps>(d, rows, w + s.channel, channels, taps, i, n);
          const V32 sig = sigmoid(d, a);
          const V32 slope = hn::Mul(sig, hn::MulAdd(a, hn::Sub(one, sig), one));
          const V32 g = hn::Mul(load_part(d, grad + i, n), slope);
          store_part(d, g, da + t * s.width + i, n);
          for (int64_t j = 0; j < (kTaps > 0 ? kTaps : taps); ++j) {
            if (rows[j] != nullptr) {
              float* to = dw + j * channels + s.channel + i;
              store_part(d, hn::MulAdd(g, load_part(d, rows[j] + i, n), load_part(d, to, n)), to,
                         n);
            }
          }
        });
      }
      const int32_t* starts = starts_of(args, b);
      for (int64_t t = 0; t < time && dx; ++t) {
        float* to = row(dx, s, b, t);
        for_vectors(d, s.width, [&](int64_t i, size_t n) {
          V32 sum = hn::Zero(d);
          for (int64_t j = 0; j < (kTaps > 0 ? kTaps : taps); ++j) {
            const int64_t later = t + taps - 1 - j;  // the token that this tap carries to
            if (starts != nullptr && later < time && t < starts[later]) {
              continue;
            }
            sum = hn::MulAdd(load_part(d, w + j * channels + s.channel + i, n),
                             load_part(d, da + (t + taps - 1 - j) * s.width + i, n), sum);
          }
          put(d, sum, to + i, n, add);
        });
      }
    }
  });
  if (args.din[3]) {
    float* to = args.din[3].ptr<float>();
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < taps; ++j) {
        float& value = to[c * taps + j];
        value = (args.accumulate[3] ? value : 0.0f) + dw[j * channels + c];
      }
    }
  }
}

// The usual four taps are unrolled.
void forward(const OpArgs& args) {
  args.in[3].dim(2) == 4 ? forward_taps<4>(args) : forward_taps<0>(args);
}

void backward(const OpArgs& args) {
  args.in[3].dim(2) == 4 ? backward_taps<4>(args) : backward_taps<0>(args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void short_conv_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(forward)(args);
}

void short_conv_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(backward)(args);
}

size_t short_conv_workspace_cpu(const OpArgs& args, bool backward) {
  const View& w = args.in[3];
  const int64_t weights = w.dim(0) * w.dim(2);
  if (!backward) {
    constexpr int64_t kPast = 32;  // no vector is longer
    return static_cast<size_t>(weights + kPast) * sizeof(double);
  }
  const int64_t widest = std::max(args.in[0].dim(3), args.in[2].dim(3));
  const int64_t rows = args.out[0].dim(1) + w.dim(2) - 1;
  return static_cast<size_t>(2 * weights + threads() * rows * widest) * sizeof(float);
}

}  // namespace fwpkm
#endif
