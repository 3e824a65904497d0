// Sums over the reads of a slot, in the order of tokens. A warp takes a slot, or those that begin
// in a window of a sorted list; the rare one that very many tokens read is left to its block.
#pragma once

#include "ops/fwpkm/cuda_group.cuh"
#include "ops/fwpkm/cuda_halves.cuh"

namespace fwpkm {

// A chunk with all that it takes to know a read by its place without a division. Place
// j * call.reads + r is read r of token number j.
struct SortedSpan : FwpkmSpan {
  FastDivisor by_reads, by_length, by_list;  // by_list: elements of an owner's sorted list

  SortedSpan(const FwpkmCall& call, const FwpkmSpan& span)
      : FwpkmSpan(span),
        by_reads(call.reads),
        by_length(span.length),
        by_list(int64_t{span.count} / call.owners * call.reads) {}

  __device__ int number_of(int place) const { return static_cast<int>(by_reads.quotient(place)); }
  __device__ int rank_of(int place) const { return static_cast<int>(by_reads.remainder(place)); }
  // Of token number j: its row of the batch, and how many of that row come before it in the chunk.
  __device__ int row(int j) const { return static_cast<int>(by_length.quotient(j)); }
  __device__ int step(int j) const { return static_cast<int>(by_length.remainder(j)); }
  __device__ bool writes(int j) const { return step(j) < writers; }
  __device__ int token(int j) const { return row(j) * time + first + step(j); }
};

// The number of a read of all tokens from its place in the chunk.
__device__ inline int64_t read_at(const FwpkmCall& call, const SortedSpan& span, int place) {
  const int token = span.token(span.number_of(place));
  return static_cast<int64_t>(token) * call.reads + span.rank_of(place);
}

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
__device__ inline SlotReads slot_reads(const SortedSpan& span, const uint64_t* lists, int item) {
  const auto length = static_cast<int>(span.by_list.divisor);
  const auto owner = static_cast<int>(span.by_list.quotient(item));
  const int at = item - owner * length;
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
  reads.owner = owner;
  if (id_of(before) == reads.slot) {
    return reads;
  }
  uint64_t element = reads.mine;
  for (int begin = 32;; begin += 32) {
    const bool here = id_of(element) == reads.slot;
    const unsigned same = __ballot_sync(kWholeWarp, here);
    const unsigned writing =
        __ballot_sync(kWholeWarp, here && span.writes(span.number_of(place_of(element))));
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

// The slots that begin in a window of the sorted lists, as a warp holds them: each lane has a read,
// and all that is needed of the reads can be on its way at once.
inline constexpr int kFwpkmWindow = 16;
struct SlotWindow {
  uint64_t element;    // of this lane
  unsigned group = 0;  // the lanes of its slot; 0 if it belongs to another window, or is left over
  int left = -1;       // the first element of a slot that goes on past the warp; -1: none

  // The window begins at element `item` of all lists.
  __device__ SlotWindow(const FwpkmCall& call, const SortedSpan& span, const uint64_t* lists,
                        int item) {
    const int total = span.count * call.reads;
    const int lane = threadIdx.x % 32, at = item + lane;
    const uint64_t none = ~uint64_t{0};
    element = at < total ? lists[at] : none;
    uint64_t before = __shfl_up_sync(kWholeWarp, element, 1);
    if (lane == 0) {
      before = item > 0 ? lists[item - 1] : none;
    }
    // The first element past the end begins something, too.
    const unsigned begins = __ballot_sync(
        kWholeWarp, id_of(element) != id_of(before) || span.by_list.remainder(at) == 0);
    const unsigned up_to_here = (2u << lane) - 1;
    const int last = 31 - __clz(static_cast<int>(begins));  // -1: none
    const bool open = item + 32 < total && span.by_list.remainder(item + 32) != 0;
    if (open && last >= 0 && last < kFwpkmWindow) {
      left = item + last;
    }
    const unsigned own = begins & up_to_here, later = begins & ~up_to_here;
    const int head = 31 - __clz(static_cast<int>(own));
    if (at < total && head >= 0 && head < kFwpkmWindow && (later != 0 || !open)) {
      const unsigned below_end = later == 0 ? kWholeWarp : (1u << (__ffs(later) - 1)) - 1;
      group = below_end & ~((1u << head) - 1);
    }
    if (item + 32 > total) {
      group &= (1u << (total - item)) - 1;
    }
  }
  // The lane of the slot's first read.
  __device__ int head() const { return group == 0 ? 0 : __ffs(group) - 1; }
};

// Blocks for all windows of a chunk.
inline unsigned window_blocks(const FwpkmCall& call, const FwpkmSpan& span) {
  return fwpkm_blocks(ceil_div(int64_t{span.count} * call.reads, kFwpkmWindow));
}

// A row of one of several sums.
template <typename To>
struct RowTerm {
  const void* row;
  To* to;  // where the sum goes that this is the last row of, else null
  float scale;
};

// Calls fn(group, column) for the runs that a lane holds from column c on. kWhole: all of them are
// in the row.
template <int kRun, bool kWhole, typename Fn>
__device__ inline void for_runs_at(int c, int width, Fn&& fn) {
#pragma unroll
  for (int g = 0; g < kFwpkmGroups<kRun>; ++g) {
    const int column = c + g * 32 * kRun;
    if (kWhole || column < width) {
      fn(g, column);
    }
  }
}
// Calls fn with kWhole for rows of that many columns; true is worth its kernels for wide runs
// alone.
template <int kRun, typename Fn>
void with_whole(int width, Fn&& fn) {
  if constexpr (kRun == 8) {
    if (width % (kFwpkmGroups<kRun> * 32 * kRun) == 0) {
      fn(std::true_type());
      return;
    }
  }
  fn(std::false_type());
}
// The same with kFull, which says that tokens have kFwpkmFewReads reads, too.
template <int kRun, typename Fn>
void with_full(const FwpkmCall& call, Fn&& fn) {
  with_whole<kRun>(call.dv, [&]<typename Whole>(Whole) {
    if constexpr (Whole::value) {
      if (call.reads == kFwpkmFewReads) {
        fn(Whole());
        return;
      }
    }
    fn(std::false_type());
  });
}
template <bool kFull>
__device__ inline int reads_of(const FwpkmCall& call) {
  return kFull ? kFwpkmFewReads : call.reads;
}

// Adds up rows of dv numbers of type T: scale * row; each sum begins after the last term of the one
// before. The next rows are on their way meanwhile, of whichever sum. The work of a warp; terms are
// in shared memory.
template <typename T, int kRun, bool kWhole, typename To>
__device__ inline void sum_terms(const RowTerm<To>* terms, int count, int dv) {
  constexpr int kAhead = 2, kGroups = kFwpkmGroups<kRun>;
  const RowTerm<To>* const end = terms + count;
  const int lane = threadIdx.x % 32;
  const int width = __shfl_sync(kWholeWarp, dv, 0);  // an argument would be loaded at each use
  for (int first = 0; first < width; first += kGroups * 32 * kRun) {
    const int c = first + lane * kRun;
    using Part = RowPart<T, kRun>;
    Part x[kAhead][kGroups] = {};
    float sum[kGroups][kRun] = {};
    const auto fetch = [&](const RowTerm<To>* term, Part(&to)[kGroups]) {
      if (term < end) {
        const void* row = global_pointer(term->row);
        for_runs_at<kRun, kWhole>(
            c, width, [&](int g, int column) { to[g].load(row, false, column, width); });
      }
    };
    const RowTerm<To>* term = terms;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      fetch(term + u, x[u]);
    }
    while (term < end) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (u > 0 && term >= end) {
          break;
        }
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          float row[kRun];
          x[u][g].get(false, row);
          add_run(term->scale, row, sum[g]);
        }
        if (term->to != nullptr) {
          To* to = global_pointer(term->to);
          for_runs_at<kRun, kWhole>(c, width,
                                    [&](int g, int column) { store_wide(to + column, sum[g]); });
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int i = 0; i < kRun; ++i) {
              sum[g][i] = 0;
            }
          }
        }
        // Only now, or it would come to other registers and be copied.
        fetch(term + kAhead, x[u]);
        ++term;
      }
    }
  }
}

// to = from (nothing if null) + the sum of scale * row over any number of rows of type T: term(i,
// &scale) is row i, never null. The work of a block; `to` may be `from`; both are rows of values
// where kValues says how those lie. The rows of a stretch are split between as many threads as a
// column leaves idle.
template <typename T, int kRun, ValueRows kValues, typename To, typename TermOf>
__device__ void sum_many(const To* from, To* to, int width, int count, TermOf&& term) {
  __shared__ float scales[kFwpkmThreads];
  __shared__ const T* rows[kFwpkmThreads];
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
        RowPart<To, kRun, kValues> part;
        part.load(global_pointer(from), true, c, width);
        part.get(true, all);
      }
      for (int i = 0; i < sharing; ++i) {
        add_run(1.0f, parts[i * columns + thread], all);
      }
      store_part<kValues>(global_pointer(to), c, width, all);
    }
  }
}

}  // namespace fwpkm
