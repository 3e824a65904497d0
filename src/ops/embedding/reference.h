#pragma once

#include "ops/embedding/embedding.h"

namespace fwpkm {

// in: ids, table. out: y.
template <typename T>
void embedding_forward_reference(const OpArgs& args) {
  const int32_t* ids = args.in[0].ptr<int32_t>();
  const T* table = args.in[1].ptr<T>();
  T* y = args.out[0].ptr<T>();
  const int64_t width = args.in[1].dim(1);
  for (int64_t t = 0; t < args.in[0].size(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      y[t * width + i] = table[ids[t] * width + i];
    }
  }
}

template <typename T>
void embedding_backward_reference(const OpArgs& args) {
  if (!args.din[1]) {
    return;
  }
  if (!args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  const int32_t* ids = args.in[0].ptr<int32_t>();
  const T* dy = args.dout[0].ptr<T>();
  T* dtable = args.din[1].ptr<T>();
  const int64_t width = args.in[1].dim(1);
  for (int64_t t = 0; t < args.in[0].size(); ++t) {
    for (int64_t i = 0; i < width; ++i) {
      dtable[ids[t] * width + i] += dy[t * width + i];
    }
  }
}

}  // namespace fwpkm
