// Rows dealt out to teams of threads, for kernels that sum over rows. A thread has one run of
// features, the same one in every row of its team: weights and sums stay in its registers, where
// lanes that hold whole rows would have to fetch them for each row.
#pragma once

#include "ops/common/rows.cuh"

namespace fwpkm {

// Several teams share a block if a warp holds them; otherwise a team is a block.
struct TeamPlan {
  static constexpr int kRun = 8;
  static constexpr int kBlocks = 2;  // of kRowThreads threads on an SM: 128 registers for each
  uint32_t rows, runs;               // runs of a row
  uint32_t lanes;                    // of a warp that share a row
  uint32_t threads;                  // of a team: `lanes`, or whole warps
  uint32_t teams;                    // of a block

  // Whether rows, which can be taken in runs, are not too wide for a block.
  static bool fits(int64_t width) { return width <= kRun * kRowThreads; }

  TeamPlan(int64_t row_count, int64_t width) {
    const RowPlan plan(row_count, width / kRun);
    rows = plan.rows;
    runs = plan.runs;
    lanes = plan.lanes;
    const bool narrow = runs <= kWarpLanes;
    threads = narrow ? lanes : static_cast<uint32_t>(ceil_div(runs, kWarpLanes)) * kWarpLanes;
    teams = narrow ? kRowThreads / threads : 1;
  }
  // As many teams in a block as it has room for. Not for kernels that take sums over a team.
  void fill_block() { teams = kRowThreads / threads; }
  unsigned block_threads() const { return teams * threads; }
  // To launch a kernel with that takes kRows rows at once: as many as run at once, if an SM has
  // room for kOfSm * kRowThreads threads.
  template <int kRows, int kOfSm = kBlocks>
  ColumnParts parts() const {
    const int64_t most =
        std::min<int64_t>(132 * (kOfSm * kRowThreads / block_threads()), ColumnParts::kSlots);
    const int64_t blocks = std::min(ceil_div(rows, teams * kRows), most);
    return {static_cast<unsigned>(blocks), blocks};
  }
  __device__ uint32_t team() const { return threadIdx.x / threads; }
  __device__ uint32_t run() const { return threadIdx.x % threads; }
  // Where this thread's run begins; some threads have none.
  __device__ uint32_t at() const { return run() * kRun; }
  __device__ bool has_run() const { return run() < runs; }
};

// Calls fn(first) for kRows rows at a time, from `first` on, in all threads of a block together.
// Rows from plan.rows on are not there.
template <int kRows, typename Fn>
__device__ inline void for_team_rows(const TeamPlan& plan, Fn&& fn) {
  const uint32_t step = plan.teams * kRows;
  for (uint32_t i = blockIdx.x; i * step < plan.rows; i += gridDim.x) {
    fn(i * step + plan.team() * kRows);
  }
}

// `offset` plus this thread's run of the weights; nothing if it has none.
__device__ inline void load_gain(const TeamPlan& plan, const float* w, float offset,
                                 float (&gain)[TeamPlan::kRun]) {
  if (plan.has_run()) {
    load_run(w + plan.at(), gain);
#pragma unroll
    for (int i = 0; i < TeamPlan::kRun; ++i) {
      gain[i] += offset;
    }
  }
}

// Sums over a team, the same for all its threads, of each of kCount numbers. In all threads of a
// block; `turn` counts the kernel's calls of this.
template <int kCount>
__device__ inline void team_sums(const TeamPlan& plan, uint32_t turn, float (&x)[kCount]) {
  // Two in turn: a warp may still read the last sums when another one writes the next.
  __shared__ float parts[2][kRowThreads / kWarpLanes][kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    x[k] = lanes_sum(plan.lanes, x[k]);
  }
  if (plan.threads <= kWarpLanes) {
    return;
  }
  auto& own = parts[turn % 2];
  if (threadIdx.x % kWarpLanes == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      own[threadIdx.x / kWarpLanes][k] = x[k];
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    x[k] = 0;
    for (uint32_t warp = 0; warp < plan.threads / kWarpLanes; ++warp) {
      x[k] += own[warp][k];
    }
  }
}

// At the end, in all threads of the block: its sums of each feature over rows, from those of its
// threads, as a row of `partial`, which is null where nobody wants them. kFull: a block with more
// than one team has kRowThreads threads.
template <bool kFull = true>
__device__ inline void put_team_columns(const TeamPlan& plan, const float (&sums)[TeamPlan::kRun],
                                        float* partial) {
  __shared__ __align__(16) float parts[kRowThreads * TeamPlan::kRun];
  if (partial == nullptr) {
    return;
  }
  const uint32_t width = plan.runs * TeamPlan::kRun;
  float* to = partial + int64_t{blockIdx.x} * width;
  if (plan.has_run()) {
    store_run((plan.teams == 1 ? to : parts + plan.team() * width) + plan.at(), sums);
  }
  if (plan.teams > 1) {
    __syncthreads();
    add_up_parts<kFull>(parts, plan.teams, width, to);
    __syncthreads();  // the next sums go to the same place
  }
}

}  // namespace fwpkm
