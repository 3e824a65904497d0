#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/lm_loss/lm_loss.h"
#include "ops/lm_loss/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lm_loss/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

float logsumexp(const float* x, int64_t count) {
  const F32 d;
  V32 largest = hn::Set(d, x[0]);
  for_vectors(d, count, [&](int64_t i, size_t n) {
    if (n == hn::Lanes(d)) {
      largest = hn::Max(largest, hn::LoadU(d, x + i));
    } else {
      for (size_t j = 0; j < n; ++j) {
        largest = hn::Max(largest, hn::Set(d, x[i + static_cast<int64_t>(j)]));
      }
    }
  });
  const V32 top = hn::MaxOfLanes(d, largest);
  V32 sum = hn::Zero(d);
  float rest = 0.0f;
  for_vectors(d, count, [&](int64_t i, size_t n) {
    if (n == hn::Lanes(d)) {
      sum = hn::Add(sum, hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), top)));
    } else {
      for (size_t j = 0; j < n; ++j) {
        rest += std::exp(x[i + static_cast<int64_t>(j)] - hn::GetLane(top));
      }
    }
  });
  return hn::GetLane(top) + std::log(hn::GetLane(hn::SumOfLanes(d, sum)) + rest);
}

// nll and log-sum-exp (where wanted) of `rows` rows of logits.
void row_losses(const float* logits, const int32_t* labels, int64_t rows, int64_t vocab, float* nll,
                float* lse) {
  parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      nll[t] = 0.0f;
      if (labels[t] < 0) {
        continue;
      }
      const float* x = logits + t * vocab;
      const float value = logsumexp(x, vocab);
      nll[t] = value - x[labels[t]];
      if (lse != nullptr) {
        lse[t] = value;
      }
    }
  });
}

// Logits become (softmax - onehot) * scale; rows without a label become zero.
void to_gradient(float* logits, const int32_t* labels, const float* lse, int64_t rows,
                 int64_t vocab, float scale) {
  parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t t = begin; t < end; ++t) {
      float* x = logits + t * vocab;
      if (labels[t] < 0) {
        std::memset(x, 0, static_cast<size_t>(vocab) * sizeof(float));
        continue;
      }
      const V32 shift = hn::Set(d, lse[t]), by = hn::Set(d, scale);
      for_vectors(d, vocab, [&](int64_t i, size_t n) {
        store_part(d, hn::Mul(by, hn::Exp(d, hn::Sub(load_part(d, x + i, n), shift))), x + i, n);
      });
      x[labels[t]] -= scale;
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {
namespace {

// Rows of logits that exist at a time without a tape.
constexpr int64_t kBlockRows = 128;

}  // namespace

HWY_EXPORT(row_losses);
HWY_EXPORT(to_gradient);

void lm_loss_forward_cpu(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  const int32_t* labels = args.in[2].ptr<int32_t>();
  float* nll = args.out[1].ptr<float>();
  const bool keep = static_cast<bool>(args.saved[0]);
  const int64_t step = keep ? rows : kBlockRows;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    float* logits = keep ? args.saved[0].ptr<float>() : static_cast<float*>(args.workspace);
    gemm(false, true, count, vocab, width, 1.0f, args.in[0].ptr<float>() + first * width, width,
         args.in[1].ptr<float>(), width, 0.0f, logits, vocab);
    HWY_DYNAMIC_DISPATCH(row_losses)
    (logits, labels + first, count, vocab, nll + first,
     keep ? args.saved[1].ptr<float>() : nullptr);
  }
  double sum = 0;  // tokens in order: the same on any number of threads
  for (int64_t t = 0; t < rows; ++t) {
    sum += nll[t];
  }
  args.out[0].ptr<float>()[0] =
      static_cast<float>(sum / static_cast<double>(std::max<int64_t>(1, labelled(args.in[2]))));
}

void lm_loss_backward_cpu(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), vocab = args.in[1].dim(0), width = args.in[1].dim(1);
  float* logits = args.saved[0].ptr<float>();
  const float scale =
      args.dout[0].ptr<float>()[0] / static_cast<float>(std::max<int64_t>(1, labelled(args.in[2])));
  HWY_DYNAMIC_DISPATCH(to_gradient)
  (logits, args.in[2].ptr<int32_t>(), args.saved[1].ptr<float>(), rows, vocab, scale);
  if (args.din[1]) {
    gemm(true, false, vocab, width, rows, 1.0f, logits, vocab, args.in[0].ptr<float>(), width,
         args.accumulate[1] ? 1.0f : 0.0f, args.din[1].ptr<float>(), width);
  }
  if (args.din[0]) {
    gemm(false, false, rows, width, vocab, 1.0f, logits, vocab, args.in[1].ptr<float>(), width,
         args.accumulate[0] ? 1.0f : 0.0f, args.din[0].ptr<float>(), width);
  }
}

size_t lm_loss_workspace_cpu(const OpArgs& args, bool backward) {
  if (backward || args.saved[0]) {
    return 0;
  }
  return static_cast<size_t>(std::min(kBlockRows, args.in[0].rows()) * args.in[1].dim(0)) *
         sizeof(float);
}

}  // namespace fwpkm
#endif
