// Sums over the reads of a slot, in the order of tokens. A warp takes a slot; the rare one that
// very many tokens read is left to its block.
#pragma once

#include "ops/fwpkm/cuda_group.cuh"

namespace fwpkm {

// The reads of a slot in a chunk: `count` elements of a sorted list, as a warp holds them.
struct SlotReads {
  const uint64_t* list;
  int slot, owner;
  int count = 0;  // 0: the warp's element is not the first one of its slot
  int writing = 0;
  int first = 0, first_writing = 0;  // places of the first one, and of the first whose token writes
  uint64_t mine = 0;                 // the element of this lane, if lane < count

  __device__ int place(int i) const { return place_of(i < 32 ? mine : list[i]); }
};

// The reads of the slot whose first one is number `item` of all lists; the work of a warp.
__device__ inline SlotReads slot_reads(const FwpkmCall& call, const FwpkmSpan& span,
                                       const uint64_t* lists, int item) {
  const int length = span.count / call.owners * call.reads, at = item % length;
  const int lane = threadIdx.x % 32;
  const auto element_at = [&](int i) {
    return at + i >= 0 && at + i < length ? lists[item + i] : ~uint64_t{0};
  };
  SlotReads reads;
  const uint64_t before = element_at(-1);
  reads.mine = element_at(lane);
  reads.list = lists + item;
  reads.slot = __shfl_sync(kWholeWarp, id_of(reads.mine), 0);
  reads.first = __shfl_sync(kWholeWarp, place_of(reads.mine), 0);
  reads.owner = item / length;
  if (id_of(before) == reads.slot) {
    return reads;
  }
  uint64_t element = reads.mine;
  for (int begin = 32;; begin += 32) {
    const bool here = id_of(element) == reads.slot;
    const unsigned same = __ballot_sync(kWholeWarp, here);
    const unsigned writing =
        __ballot_sync(kWholeWarp, here && span.writes(place_of(element) / call.reads));
    if (reads.writing == 0 && writing != 0) {
      reads.first_writing = __shfl_sync(kWholeWarp, place_of(element), __ffs(writing) - 1);
    }
    reads.count += __popc(same);
    reads.writing += __popc(writing);
    if (same != kWholeWarp) {
      return reads;
    }
    element = element_at(begin + lane);
  }
}

// to = from (nothing if null) + the sum over the lanes in `taken` of scale * row number `row` of
// rows [.., width]. The work of a warp; `to` may be `from`.
template <int kRun>
__device__ inline void sum_few(const float* from, float* to, int width, unsigned taken, float scale,
                               const float* rows, int row) {
  const auto row_of = [&](int lane) {
    return rows + static_cast<int64_t>(__shfl_sync(kWholeWarp, row, lane)) * width;
  };
  for (int first = 0; first < width; first += kFwpkmGroups * 32 * kRun) {
    float sum[kFwpkmGroups][kRun] = {};
    if (from != nullptr) {
      for_groups<kRun, kFwpkmGroups>(first, width,
                                     [&](int g, int c) { load_run(from + c, sum[g]); });
    }
    for (unsigned left = taken; left != 0;) {
      const int i = __ffs(left) - 1;
      left &= left - 1;
      const bool two = left != 0;
      const int k = two ? __ffs(left) - 1 : i;
      left &= left - 1;
      const float si = __shfl_sync(kWholeWarp, scale, i), sk = __shfl_sync(kWholeWarp, scale, k);
      const float *a = row_of(i), *b = row_of(k);
      float x[kFwpkmGroups][kRun], y[kFwpkmGroups][kRun];
      for_groups<kRun, kFwpkmGroups>(first, width, [&](int g, int c) { load_run(a + c, x[g]); });
      if (two) {
        for_groups<kRun, kFwpkmGroups>(first, width, [&](int g, int c) { load_run(b + c, y[g]); });
      }
      for_groups<kRun, kFwpkmGroups>(first, width, [&](int g, int) {
        add_run(si, x[g], sum[g]);
        if (two) {
          add_run(sk, y[g], sum[g]);
        }
      });
    }
    for_groups<kRun, kFwpkmGroups>(first, width, [&](int g, int c) { store_wide(to + c, sum[g]); });
  }
}

// The same for any number of rows: term(i, &scale) is row i, never null. The work of a block; the
// rows of a stretch are split between as many threads as a column leaves idle.
template <int kRun, typename TermOf>
__device__ void sum_many(const float* from, float* to, int width, int count, TermOf&& term) {
  __shared__ float scales[kFwpkmThreads];
  __shared__ const float* rows[kFwpkmThreads];
  __shared__ __align__(16) float parts[kFwpkmThreads][kRun];
  const int thread = threadIdx.x;
  const int columns = min(kFwpkmThreads, (width + kRun - 1) / kRun);
  const int sharing = kFwpkmThreads / columns, part = thread / columns;
  for (int first = 0; first < width; first += columns * kRun) {
    const int c = first + thread % columns * kRun;
    const bool here = part < sharing && c < width;
    float sum[kRun] = {};
    for (int begin = 0; begin < count; begin += kFwpkmThreads) {
      const int some = min(kFwpkmThreads, count - begin);
      __syncthreads();
      if (thread < some) {
        rows[thread] = term(begin + thread, &scales[thread]);
      }
      __syncthreads();
      if (here) {
        const int end = some * (part + 1) / sharing;
#pragma unroll 8
        for (int i = some * part / sharing; i < end; ++i) {
          float x[kRun];
          load_run(global_pointer(rows[i]) + c, x);
          add_run(scales[i], x, sum);
        }
      }
    }
    store_run(parts[thread], sum);
    __syncthreads();
    if (here && part == 0) {
      float all[kRun] = {};
      if (from != nullptr) {
        load_run(global_pointer(from) + c, all);
      }
      for (int i = 0; i < sharing; ++i) {
        add_run(1.0f, parts[i * columns + thread], all);
      }
      store_wide(global_pointer(to) + c, all);
    }
  }
}

}  // namespace fwpkm
