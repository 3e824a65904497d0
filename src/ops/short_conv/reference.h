// With a the sum before SiLU, s = sigmoid(a) and da = dy s (1 + a (1 - s)):
//   dx[t,c] = sum_j w[c,j] da[t+(K-1)-j, c],   dw[c,j] = sum_t da[t,c] x[t-(K-1)+j, c].
#pragma once

#include <cmath>
#include <vector>

#include "ops/short_conv/short_conv.h"

namespace fwpkm {

// The element of q, k or v that channel c of y is made from.
template <typename T>
T* conv_channel(std::span<const View> qkv, int64_t b, int64_t t, int64_t c) {
  int part = 0;
  while (c >= qkv[part].dim(2) * qkv[part].dim(3)) {
    c -= qkv[part].dim(2) * qkv[part].dim(3);
    ++part;
  }
  const View& x = qkv[part];
  return x.ptr<T>() + b * x.stride(0) + t * x.stride(1) + c / x.dim(3) * x.stride(2) + c % x.dim(3);
}

// True if the input at time `from` counts for the token at time t.
inline bool conv_sees(const OpArgs& args, int64_t b, int64_t t, int64_t from) {
  const int32_t* starts = args.in[4].ptr<int32_t>();
  return starts == nullptr || from >= starts[b * args.out[0].dim(1) + t];
}

// in: q, k, v, w, starts. out: y. saved: the tail as it was, where one was given. state: tail.
template <typename T>
void short_conv_forward_reference(const OpArgs& args) {
  const View& y = args.out[0];
  const int64_t batch = y.dim(0), time = y.dim(1), channels = y.dim(2), taps = args.in[3].dim(2);
  const T* w = args.in[3].ptr<T>();
  T* tail = args.state.empty() ? nullptr : args.state[0].ptr<T>();
  if (tail != nullptr && args.saved[0]) {
    std::copy(tail, tail + args.state[0].size(), args.saved[0].ptr<T>());
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t c = 0; c < channels; ++c) {
      std::vector<T> x(static_cast<size_t>(taps - 1 + time), T(0));  // the past, then these tokens
      for (int64_t j = 0; j < taps - 1 && tail != nullptr; ++j) {
        x[j] = tail[(b * (taps - 1) + j) * channels + c];
      }
      for (int64_t t = 0; t < time; ++t) {
        x[taps - 1 + t] = *conv_channel<T>(args.in, b, t, c);
      }
      for (int64_t t = 0; t < time; ++t) {
        T a = 0;
        for (int64_t j = 0; j < taps; ++j) {
          a += conv_sees(args, b, t, t + j - (taps - 1)) ? w[c * taps + j] * x[t + j] : T(0);
        }
        y.ptr<T>()[(b * time + t) * channels + c] = a / (T(1) + std::exp(-a));
      }
      for (int64_t j = 0; j < taps - 1 && tail != nullptr; ++j) {
        tail[(b * (taps - 1) + j) * channels + c] = x[time + j];
      }
    }
  }
}

template <typename T>
void short_conv_backward_reference(const OpArgs& args) {
  const View& y = args.out[0];
  const int64_t batch = y.dim(0), time = y.dim(1), channels = y.dim(2), taps = args.in[3].dim(2);
  const T* w = args.in[3].ptr<T>();
  const T* tail = args.saved[0].ptr<T>();
  T* dw = args.din[3].ptr<T>();
  if (dw != nullptr && !args.accumulate[3]) {
    fill_zero(args.din[3]);
  }
  const int64_t q_end = args.in[0].dim(2) * args.in[0].dim(3);
  const int64_t k_end = 2 * q_end;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t c = 0; c < channels; ++c) {
      std::vector<T> x(static_cast<size_t>(taps - 1 + time), T(0));
      for (int64_t j = 0; j < taps - 1 && tail != nullptr; ++j) {
        x[j] = tail[(b * (taps - 1) + j) * channels + c];
      }
      for (int64_t t = 0; t < time; ++t) {
        x[taps - 1 + t] = *conv_channel<T>(args.in, b, t, c);
      }
      std::vector<T> dx(x.size(), T(0));
      for (int64_t t = 0; t < time; ++t) {
        T a = 0;
        for (int64_t j = 0; j < taps; ++j) {
          a += conv_sees(args, b, t, t + j - (taps - 1)) ? w[c * taps + j] * x[t + j] : T(0);
        }
        const T s = T(1) / (T(1) + std::exp(-a));
        const T da =
            args.dout[0].ptr<T>()[(b * time + t) * channels + c] * s * (T(1) + a * (T(1) - s));
        for (int64_t j = 0; j < taps; ++j) {
          if (!conv_sees(args, b, t, t + j - (taps - 1))) {
            continue;
          }
          dx[t + j] += w[c * taps + j] * da;
          if (dw != nullptr) {
            dw[c * taps + j] += da * x[t + j];
          }
        }
      }
      const int part = c < q_end ? 0 : c < k_end ? 1 : 2;
      for (int64_t t = 0; t < time && args.din[part]; ++t) {
        T* to = conv_channel<T>(args.din, b, t, c);
        *to = args.accumulate[part] ? *to + dx[taps - 1 + t] : dx[taps - 1 + t];
      }
    }
  }
}

}  // namespace fwpkm
