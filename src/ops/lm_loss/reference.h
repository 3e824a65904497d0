// dlogits = (softmax(logits) - onehot(label)) dloss / count, then as in a linear layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/lm_loss/lm_loss.h"

namespace fwpkm {

// Tokens that have a label.
inline int64_t labelled(const View& labels) {
  const int32_t* label = labels.ptr<int32_t>();
  return std::count_if(label, label + labels.size(), [](int32_t l) { return l >= 0; });
}

// The logits of token t and their log-sum-exp.
template <typename T>
T reference_logits(const OpArgs& args, int64_t t, std::vector<T>* logits) {
  const int64_t vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const T* h = args.in[0].ptr<T>() + t * width;
  logits->resize(static_cast<size_t>(vocab));
  T largest = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    T sum = 0;
    for (int64_t j = 0; j < width; ++j) {
      sum += h[j] * args.in[1].ptr<T>()[i * width + j];
    }
    (*logits)[i] = sum;
    largest = i == 0 ? sum : std::max(largest, sum);
  }
  T total = 0;
  for (const T x : *logits) {
    total += std::exp(x - largest);
  }
  return largest + std::log(total);
}

// in: h, table, labels. out: loss, nll.
template <typename T>
void lm_loss_forward_reference(const OpArgs& args) {
  const int32_t* label = args.in[2].ptr<int32_t>();
  std::vector<T> logits;
  T sum = 0;
  for (int64_t t = 0; t < args.in[2].size(); ++t) {
    T nll = 0;
    if (label[t] >= 0) {
      const T lse = reference_logits<T>(args, t, &logits);
      nll = lse - logits[label[t]];
    }
    args.out[1].ptr<T>()[t] = nll;
    sum += nll;
  }
  args.out[0].ptr<T>()[0] = sum / static_cast<T>(std::max<int64_t>(1, labelled(args.in[2])));
}

template <typename T>
void lm_loss_backward_reference(const OpArgs& args) {
  const int64_t vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const int32_t* label = args.in[2].ptr<int32_t>();
  const T* table = args.in[1].ptr<T>();
  const T scale =
      args.dout[0].ptr<T>()[0] / static_cast<T>(std::max<int64_t>(1, labelled(args.in[2])));
  for (int i = 0; i < 2; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  std::vector<T> logits;
  for (int64_t t = 0; t < args.in[2].size(); ++t) {
    if (label[t] < 0) {
      continue;
    }
    const T lse = reference_logits<T>(args, t, &logits);
    const T* h = args.in[0].ptr<T>() + t * width;
    for (int64_t i = 0; i < vocab; ++i) {
      const T d = scale * (std::exp(logits[i] - lse) - (i == label[t] ? T(1) : T(0)));
      for (int64_t j = 0; j < width; ++j) {
        if (args.din[0]) {
          args.din[0].ptr<T>()[t * width + j] += d * table[i * width + j];
        }
        if (args.din[1]) {
          args.din[1].ptr<T>()[i * width + j] += d * h[j];
        }
      }
    }
  }
}

}  // namespace fwpkm
