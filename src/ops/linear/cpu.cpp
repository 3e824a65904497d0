#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/common/rows.h"
#include "ops/linear/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

// Dot products of `kOuts` weight rows with `rows` x rows, each weight loaded once.
template <int kOuts>
void dots(const float* w, const float* x, int64_t rows, int64_t ins, float* y, int64_t outs) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t m = 0; m < rows; ++m) {
    const float* xm = x + m * ins;
    V32 sum[kOuts][2];
    for (auto& pair : sum) {
      pair[0] = pair[1] = hn::Zero(d);
    }
    int64_t i = 0;
    for (; i + 2 * lanes <= ins; i += 2 * lanes) {
      const V32 x0 = hn::LoadU(d, xm + i), x1 = hn::LoadU(d, xm + i + lanes);
      for (int n = 0; n < kOuts; ++n) {
        sum[n][0] = hn::MulAdd(hn::LoadU(d, w + n * ins + i), x0, sum[n][0]);
        sum[n][1] = hn::MulAdd(hn::LoadU(d, w + n * ins + i + lanes), x1, sum[n][1]);
      }
    }
    for (; i < ins; i += lanes) {
      const auto count = static_cast<size_t>(HWY_MIN(lanes, ins - i));
      const V32 x0 = load_part(d, xm + i, count);
      for (int n = 0; n < kOuts; ++n) {
        sum[n][0] = hn::MulAdd(load_part(d, w + n * ins + i, count), x0, sum[n][0]);
      }
    }
    for (int n = 0; n < kOuts; ++n) {
      y[m * outs + n] = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[n][0], sum[n][1])));
    }
  }
}

void few_rows(const OpArgs& args) {
  const float* x = args.in[0].ptr<float>();
  const float* w = args.in[1].ptr<float>();
  const float* b = args.in[2].ptr<float>();
  const float* residual = args.in[3].ptr<float>();
  float* y = args.out[0].ptr<float>();
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  // Small weights are not worth waking threads for.
  const int64_t grain = HWY_MAX(4, 65536 / HWY_MAX(ins, 1) / 4 * 4);
  parallel_ranges(outs, grain, [&](int64_t begin, int64_t end) {
    int64_t n = begin;
    for (; n + 4 <= end; n += 4) {
      dots<4>(w + n * ins, x, rows, ins, y + n, outs);
    }
    for (; n < end; ++n) {
      dots<1>(w + n * ins, x, rows, ins, y + n, outs);
    }
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t i = begin; i < end; ++i) {
        y[m * outs + i] +=
            (b != nullptr ? b[i] : 0.0f) + (residual != nullptr ? residual[m * outs + i] : 0.0f);
      }
    }
  });
}

void column_sums(const OpArgs& args) {
  const float* dy = args.dout[0].ptr<float>();
  const int64_t rows = args.dout[0].rows(), width = args.dout[0].dim(-1);
  float* db = args.din[2].ptr<float>();
  // Each thread owns columns and adds the rows in order.
  parallel_ranges(width, 64, [&](int64_t begin, int64_t end) {
    const F32 d;
    if (!args.accumulate[2]) {
      std::memset(db + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    }
    for (int64_t row = 0; row < rows; row += kRowGroup) {
      const int64_t last = HWY_MIN(rows, row + kRowGroup);
      for_vectors(d, end - begin, [&](int64_t i, size_t n) {
        V32 sum = hn::Zero(d);
        for (int64_t r = row; r < last; ++r) {
          sum = hn::Add(sum, load_part(d, dy + r * width + begin + i, n));
        }
        put(d, sum, db + begin + i, n, true);
      });
    }
  });
}

void copy_or_add(const float* from, float* to, int64_t count, bool add) {
  parallel_ranges(count, 16384, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t i, size_t n) {
      put(d, load_part(d, from + begin + i, n), to + begin + i, n, add);
    });
  });
}

// y = residual + b, each where given: what the product is added to.
void start_rows(const OpArgs& args) {
  const float* b = args.in[2].ptr<float>();
  const float* residual = args.in[3].ptr<float>();
  float* y = args.out[0].ptr<float>();
  const int64_t width = args.out[0].dim(-1);
  parallel_ranges(args.out[0].rows(), 8, [&](int64_t begin, int64_t end) {
    const F32 d;
    for (int64_t row = begin; row < end; ++row) {
      for_vectors(d, width, [&](int64_t i, size_t n) {
        V32 start = b != nullptr ? load_part(d, b + i, n) : hn::Zero(d);
        if (residual != nullptr) {
          start = hn::Add(start, load_part(d, residual + row * width + i, n));
        }
        store_part(d, start, y + row * width + i, n);
      });
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(few_rows);
HWY_EXPORT(column_sums);
HWY_EXPORT(copy_or_add);
HWY_EXPORT(start_rows);

namespace {

// The product for rows x outs x ins.
auto product(int64_t rows, int64_t outs, int64_t ins) {
  return rows * outs <= kSmallProduct / ins ? &gemm_in_double : &gemm;
}

}  // namespace

void linear_forward_cpu(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  if (rows <= kFewRows) {
    HWY_DYNAMIC_DISPATCH(few_rows)(args);
    return;
  }
  float* y = args.out[0].ptr<float>();
  const bool start = args.in[2] || args.in[3];
  if (start) {
    HWY_DYNAMIC_DISPATCH(start_rows)(args);
  }
  product(rows, outs, ins)(false, true, rows, outs, ins, 1.0f, args.in[0].ptr<float>(), ins,
                           args.in[1].ptr<float>(), ins, start ? 1.0f : 0.0f, y, outs);
}

void linear_backward_cpu(const OpArgs& args) {
  const int64_t rows = args.in[0].rows(), outs = args.in[1].dim(0), ins = args.in[1].dim(1);
  const float* dy = args.dout[0].ptr<float>();
  if (args.din[1]) {
    product(rows, outs, ins)(true, false, outs, ins, rows, 1.0f, dy, outs, args.in[0].ptr<float>(),
                             ins, args.accumulate[1] ? 1.0f : 0.0f, args.din[1].ptr<float>(), ins);
  }
  if (args.din[0]) {
    product(rows, outs, ins)(false, false, rows, ins, outs, 1.0f, dy, outs, args.in[1].ptr<float>(),
                             ins, args.accumulate[0] ? 1.0f : 0.0f, args.din[0].ptr<float>(), ins);
  }
  if (args.din[2]) {
    HWY_DYNAMIC_DISPATCH(column_sums)(args);
  }
  if (args.din[3] && args.din[3].data != args.dout[0].data) {
    HWY_DYNAMIC_DISPATCH(copy_or_add)
    (dy, args.din[3].ptr<float>(), rows * outs, args.accumulate[3]);
  }
}

}  // namespace fwpkm
#endif
