// What CUDA kernels that go row by row share: rows are dealt out to lanes in runs, and sums over
// rows are made block by block.
#pragma once

#include <type_traits>

#include "ops/common/device.cuh"

namespace fwpkm {

// How rows are dealt out to lanes: `lanes` neighbours in a warp, a power of two, share a row, and
// each of them has every lanes-th of its runs. Such neighbours are called a slot.
inline constexpr int kRowThreads = 256;  // of a block
inline constexpr uint32_t kWarpLanes = 32;
struct RowPlan {
  uint32_t rows = 0, runs = 0;  // runs of a row
  uint32_t lanes = 1, log_lanes = 0;

  RowPlan(int64_t row_count, int64_t run_count)
      : rows(static_cast<uint32_t>(row_count)), runs(static_cast<uint32_t>(run_count)) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    require(row_count < kLimit && run_count < kLimit, "cuda", "{} rows of {} runs are too many",
            row_count, run_count);
    while (lanes < std::min(runs, kWarpLanes)) {
      lanes *= 2;
      ++log_lanes;
    }
  }
  int64_t block_slots() const { return kRowThreads / lanes; }
  unsigned blocks(int64_t most = 1 << 20) const {
    return static_cast<unsigned>(std::min(ceil_div(rows, block_slots()), most));
  }
  __device__ uint32_t lane() const { return threadIdx.x & (lanes - 1); }
  __device__ uint32_t slot() const { return (blockIdx.x * kRowThreads + threadIdx.x) >> log_lanes; }
  __device__ uint32_t slots() const { return (gridDim.x * kRowThreads) >> log_lanes; }
};

// How a kernel takes a row: in runs of kCount, of which a lane holds up to kHeld in registers. With
// kHeld 0 it may have any number of them, and reads them as often as it needs them.
template <int kCount, int kHeld>
struct RunsOf {};

// Calls fn with the way to take rows of `width`, in runs if they allow that; with up to kMost held
// where the row fits: 0, 1 (heads), 3 or 8.
template <int kMost, typename Fn>
void with_runs(int64_t width, bool in_runs, Fn&& fn) {
  if (!in_runs) {
    fn(RunsOf<1, 0>());
    return;
  }
  if constexpr (kMost >= 1) {
    if (width <= 8 * kWarpLanes) {
      fn(RunsOf<8, 1>());
      return;
    }
  }
  if constexpr (kMost >= 3) {
    if (width <= 3 * 8 * kWarpLanes) {
      fn(RunsOf<8, 3>());
      return;
    }
  }
  if constexpr (kMost >= 8) {
    if (width <= 8 * 8 * kWarpLanes) {
      fn(RunsOf<8, 8>());
      return;
    }
  }
  fn(RunsOf<8, 0>());
}

// Calls fn(row, here) for the rows of this lane's slot, in all lanes of a warp together. Where
// `here` is false there is no row left: the last one stands in, and nothing may be written.
template <typename Fn>
__device__ inline void for_rows(const RowPlan& plan, Fn&& fn) {
  const uint32_t slot = plan.slot(), slots = plan.slots();
  const uint32_t within = slot & ((kWarpLanes >> plan.log_lanes) - 1);
  for (uint32_t first = slot - within; first < plan.rows; first += slots) {
    const uint32_t row = first + within;
    fn(min(row, plan.rows - 1), row < plan.rows);
  }
}

// Calls fn(j, at) for the runs of a row that belong to this lane: its j-th one begins at feature
// `at`. Without held runs j is 0.
template <int kCount, int kHeld, typename Fn>
__device__ inline void for_runs(const RowPlan& plan, Fn&& fn) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const uint32_t run = plan.lane() + j * plan.lanes;
      if (run < plan.runs) {
        fn(j, run * kCount);
      }
    }
  } else {
    for (uint32_t run = plan.lane(); run < plan.runs; run += plan.lanes) {
      fn(0, run * kCount);
    }
  }
}

// A run as it lies in memory, held in registers until it is looked at: many can be on their way at
// once.
template <typename T, int kCount>
class HeldRun {
 public:
  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      quads_[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  }
  __device__ void get(float (&to)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const uint4 four = quads_[i];
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (sizeof(T) == 2) {
          to[8 * i + 2 * k] = __uint_as_float(words[k] << 16);
          to[8 * i + 2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
        } else {
          to[4 * i + k] = __uint_as_float(words[k]);
        }
      }
    }
  }

 private:
  static constexpr int kQuads = kCount * sizeof(T) / 16;  // 16-byte words
  uint4 quads_[kQuads];
};

// The runs of a row that belong to this lane.
template <typename T, int kCount, int kHeld>
class LaneRuns {
 public:
  __device__ LaneRuns(const RowPlan& plan, const T* from) {
    for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) { runs_[j].load(from + at); });
  }
  // Run j, which begins at feature `at`.
  __device__ void get(int j, uint32_t, float (&to)[kCount]) const { runs_[j].get(to); }

 private:
  HeldRun<T, kCount> runs_[kHeld];
};
// Read as often as they are looked at.
template <typename T, int kCount>
class LaneRuns<T, kCount, 0> {
 public:
  __device__ LaneRuns(const RowPlan&, const T* from) : from_(from) {}
  __device__ void get(int, uint32_t at, float (&to)[kCount]) const { load_run(from_ + at, to); }

 private:
  const T* from_;
};

// What a row is computed in: where activations are floats, results are rounded once, at the end.
template <typename T>
using Wide = std::conditional_t<sizeof(T) == 2, float, double>;
template <typename T>
__device__ inline Wide<T> wide_inverse_root(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    return rsqrtf(x);
  } else {
    return 1 / sqrt(x);
  }
}

// The sum over the lanes of a row, for each of them. All lanes of a warp must call this.
template <typename Real>
__device__ inline Real lanes_sum(uint32_t lanes, Real x) {
#pragma unroll
  for (uint32_t step = kWarpLanes / 2; step > 0; step /= 2) {
    if (step < lanes) {
      x += __shfl_xor_sync(0xffffffffu, x, step);
    }
  }
  return x;
}
template <typename Real>
__device__ inline Real lanes_sum(const RowPlan& plan, Real x) {
  return lanes_sum(plan.lanes, x);
}

// Backward of xhat = x r where r = 1/rms of x: `full` is the gradient of xhat, and `mean` the mean
// of full * xhat over the row. The result is scaled, by r and what else there is. Rounded step by
// step as the plain code does: in short rows nearly everything cancels.
__device__ inline float through_norm(float full, float xhat, float mean, float scale) {
  return __fmul_rn(scale, full - __fmul_rn(xhat, mean));
}

// to [width] = the sum of parts [count, width], which lie in shared memory; in all threads of a
// block. kFull: it has kRowThreads of them.
template <bool kFull = true>
__device__ inline void add_up_parts(const float* parts, uint32_t count, uint32_t width, float* to) {
  for (uint32_t column = threadIdx.x; column < width; column += kFull ? kRowThreads : blockDim.x) {
    float sum = 0;
    for (uint32_t i = 0; i < count; ++i) {
      sum += parts[i * width + column];
    }
    to[column] = sum;
  }
}

// Sums over rows of what kernels add for each feature, such as the gradient of a norm's weight.
// Each block (or, without held runs, each slot) leaves its own sums in a row of `partial`, and
// add_column_sums adds those up. `partial` is null where nobody wants them.
//
// A kernel that does this is launched with as many blocks as run at once.
template <typename T, int kHeld>
inline constexpr int kSumBlocks = kHeld <= 1       ? 4
                                  : sizeof(T) == 2 ? 3
                                                   : 2;  // of an SM
struct ColumnParts {
  static constexpr int64_t kSlots = 2048;
  unsigned blocks;  // to launch the kernel with
  int64_t count;    // of rows in `partial`

  template <typename T, int kHeld>
  static ColumnParts of(const RowPlan& plan) {
    const unsigned blocks =
        plan.blocks(kHeld > 0 ? 132 * kSumBlocks<T, kHeld> : kSlots / plan.block_slots());
    return {blocks, kHeld > 0 ? blocks : blocks * plan.block_slots()};
  }
};
// Bytes of workspace, however the kernel takes its rows.
inline size_t column_sums_bytes(int64_t rows, int64_t width) {
  const int64_t most =
      std::min(ceil_div(rows, kRowThreads) * kRowThreads, int64_t{ColumnParts::kSlots});
  return static_cast<size_t>(most * width) * sizeof(float);
}
template <int kCount, int kHeld>
class ColumnSums {
 public:
  __device__ ColumnSums(const RowPlan& plan, float* partial)
      : width_(plan.runs * kCount), partial_(partial) {
    if constexpr (kHeld == 0) {
      own_ = partial + int64_t{plan.slot()} * width_;
      if (partial != nullptr) {
        for_runs<kCount, kHeld>(plan, [&](int, uint32_t at) { store_run(own_ + at, sums_[0]); });
      }
    }
  }
  // Adds to run j, which begins at feature `at`.
  __device__ void add(int j, uint32_t at, float (&values)[kCount]) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums_[j][i] += values[i];
      }
    } else if (partial_ != nullptr) {
      put_run(own_ + at, values, true);
    }
  }
  // At the end, in all threads of the block.
  __device__ void finish(const RowPlan& plan) const {
    if constexpr (kHeld > 0) {
      __shared__ __align__(16) float parts[kRowThreads * kHeld * kCount];
      if (partial_ == nullptr) {
        return;
      }
      float* own = parts + (threadIdx.x >> plan.log_lanes) * width_;
      for_runs<kCount, kHeld>(plan, [&](int j, uint32_t at) { store_run(own + at, sums_[j]); });
      __syncthreads();
      add_up_parts(parts, kRowThreads >> plan.log_lanes, width_,
                   partial_ + int64_t{blockIdx.x} * width_);
    }
  }

 private:
  uint32_t width_;
  float* partial_;
  float* own_ = nullptr;
  float sums_[kHeld > 0 ? kHeld : 1][kCount] = {};
};

template <int kWarps>
__global__ void column_sums_kernel(const float* partial, int64_t parts, int64_t columns, float* to,
                                   bool accumulate) {
  __shared__ float sums[kWarps][kWarpLanes];
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int64_t column = blockIdx.x * int64_t{kWarpLanes} + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t part = warp; part < parts; part += kWarps) {
      sum += partial[part * columns + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < columns) {
    float all = 0;
    for (int i = 0; i < kWarps; ++i) {
      all += sums[i][lane];
    }
    put(to + column, all, accumulate);
  }
}
// Adds up the rows [parts, columns of `to`] that a kernel left; does nothing for an empty view.
inline void add_column_sums(const float* partial, int64_t parts, const View& to, bool accumulate) {
  constexpr int kWarps = 32;
  if (to.size() == 0) {
    return;
  }
  column_sums_kernel<kWarps>
      <<<static_cast<unsigned>(ceil_div(to.size(), kWarpLanes)), kWarps * kWarpLanes, 0,
         this_stream()>>>(partial, parts, to.size(), to.ptr<float>(), accumulate);
  check_launch("adding up columns");
}
inline void add_column_sums(const float* partial, const ColumnParts& parts, const View& to,
                            bool accumulate) {
  add_column_sums(partial, parts.count, to, accumulate);
}

}  // namespace fwpkm
