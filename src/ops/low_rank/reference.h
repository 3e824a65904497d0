#pragma once

#include "ops/low_rank/low_rank.h"

namespace fwpkm {

// in: left, right. out: w.
template <typename T>
void low_rank_forward_reference(const OpArgs& args) {
  const int64_t heads = args.in[0].dim(0), n = args.in[0].dim(1), rank = args.in[0].dim(2);
  for (int64_t h = 0; h < heads; ++h) {
    const T* left = args.in[0].ptr<T>() + h * n * rank;
    const T* right = args.in[1].ptr<T>() + h * n * rank;
    T* w = args.out[0].ptr<T>() + h * n * n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        T sum = i == j ? T(args.attr<LowRankSettings>().diagonal) : T(0);
        for (int64_t r = 0; r < rank; ++r) {
          sum += left[i * rank + r] * right[r * n + j];
        }
        w[i * n + j] = sum;
      }
    }
  }
}

template <typename T>
void low_rank_backward_reference(const OpArgs& args) {
  const int64_t heads = args.in[0].dim(0), n = args.in[0].dim(1), rank = args.in[0].dim(2);
  for (int64_t h = 0; h < heads; ++h) {
    const T* left = args.in[0].ptr<T>() + h * n * rank;
    const T* right = args.in[1].ptr<T>() + h * n * rank;
    const T* dw = args.dout[0].ptr<T>() + h * n * n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = 0; r < rank; ++r) {
        T dleft = 0, dright = 0;
        for (int64_t j = 0; j < n; ++j) {
          dleft += dw[i * n + j] * right[r * n + j];
          dright += left[j * rank + r] * dw[j * n + i];
        }
        if (args.din[0]) {
          T& to = args.din[0].ptr<T>()[(h * n + i) * rank + r];
          to = (args.accumulate[0] ? to : T(0)) + dleft;
        }
        if (args.din[1]) {
          T& to = args.din[1].ptr<T>()[(h * rank + r) * n + i];
          to = (args.accumulate[1] ? to : T(0)) + dright;
        }
      }
    }
  }
}

}  // namespace fwpkm
