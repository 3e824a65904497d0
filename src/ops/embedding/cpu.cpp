#include <cstring>

#include "base/parallel.h"
#include "ops/embedding/embedding.h"

namespace fwpkm {

void embedding_forward_cpu(const OpArgs& args) {
  const int32_t* ids = args.in[0].ptr<int32_t>();
  const float* table = args.in[1].ptr<float>();
  float* y = args.out[0].ptr<float>();
  const int64_t width = args.in[1].dim(1);
  parallel_ranges(args.in[0].size(), 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(y + t * width, table + ids[t] * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  });
}

void embedding_backward_cpu(const OpArgs& args) {
  if (!args.din[1]) {
    return;
  }
  if (!args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
  const int32_t* ids = args.in[0].ptr<int32_t>();
  const float* dy = args.dout[0].ptr<float>();
  float* dtable = args.din[1].ptr<float>();
  const int64_t width = args.in[1].dim(1), tokens = args.in[0].size();
  // Each thread owns a range of features, so that a row hit twice is added in token order.
  parallel_ranges(width, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* from = dy + t * width;
      float* to = dtable + ids[t] * width;
      for (int64_t i = begin; i < end; ++i) {
        to[i] += from[i];
      }
    }
  });
}

}  // namespace fwpkm
