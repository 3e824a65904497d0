// Backward slot by slot: the gradients of the rows that a chunk read.
#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// The rows of slots that begin in a window and end in sight of its warp, if an earlier chunk wrote
// them. `terms`: memory for the rows of all of them.
template <typename T, int kRun, bool kWhole>
__device__ void spread_window(const FwpkmCall& call, const SortedSpan& span, const FwpkmBack& back,
                              const SlotWindow& window, RowTerm<T>* terms) {
  const int lane = threadIdx.x % 32, head = window.head();
  const bool here = window.group != 0, heads = here && lane == head;
  const int place = here ? place_of(window.element) : 0, j = span.number_of(place);
  const int64_t read = read_at(call, span, place);
  const float weight = here ? call.weights[read] : 0.0f;
  int source = -1, chain = 0;
  if (heads) {
    source = call.source[read];
    chain = call.chain[read];
  }
  const bool live = heads && source >= 0 && back.live[chain] != 0;
  source = __shfl_sync(kWholeWarp, source, head);
  const int own = __shfl_sync(kWholeWarp, chain, head);
  const bool wanted = here && source >= 0;
  const bool pulled = wanted && back.memory && span.writes(j);
  const unsigned taken = __ballot_sync(kWholeWarp, wanted);
  const unsigned alive = __ballot_sync(kWholeWarp, live);
  const unsigned pulling = __ballot_sync(kWholeWarp, pulled);
  // Of each slot the row it has, then those of its reads, then, with the memory loss, errors.
  const unsigned before = (1u << head) - 1, below = (1u << lane) - 1;
  const int start = __popc(alive & before) + __popc(taken & before) + __popc(pulling & before);
  const int first = start + static_cast<int>(alive >> head & 1);
  const unsigned pulls = pulling & window.group;
  T* to = row_of<T>(call, back.dvalues, own);
  if (live) {
    terms[start] = {to, nullptr, 1.0f};
  }
  if (wanted) {
    const bool last = pulls == 0 && (window.group & ~below) == 1u << lane;
    const RowTerm<T> one = {row_of<T>(call, back.dreads, j), last ? to : nullptr, weight};
    terms[first + __popc(window.group & below)] = one;
  }
  if (pulled) {
    const bool last = (pulls & ~below) == 1u << lane;
    terms[first + __popc(window.group) + __popc(pulls & below)] = {
        row_of<T>(call, back.errors, j), last ? to : nullptr, back.dalong[place]};
  }
  __syncwarp();
  sum_terms<T, kRun, kWhole>(terms, __popc(taken) + __popc(alive) + __popc(pulling), call.dv);
  if (heads && wanted) {
    back.live[chain] = 1;
  }
}

// A slot that is left to the block.
struct LongSum {
  const uint64_t* list;
  int count, chain;
  bool live;
};

// Prepares it. Nothing is to be done if the count stays 0.
__device__ void leave_slot(const FwpkmCall& call, const SortedSpan& span, const FwpkmBack& back,
                           const SlotReads& reads, LongSum* rest) {
  const int64_t first = read_at(call, span, reads.first);
  if (threadIdx.x % 32 == 0 && call.source[first] >= 0) {
    const int chain = call.chain[first];
    *rest = {reads.list, reads.count, chain, back.live[chain] != 0};
    back.live[chain] = 1;
  }
}

// Gradients of the rows that were read and that an earlier chunk wrote: each warp has a window of
// the sorted reads.
template <typename T, int kRun, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    spread_values_kernel(FwpkmCall call, SortedSpan span, FwpkmGroups groups, FwpkmBack back) {
  __shared__ RowTerm<T> terms[kFwpkmWarps][kFwpkmWindow + 64];
  __shared__ LongSum rests[kFwpkmWarps];  // a long slot is the last one to begin in its window
  const int warp = threadIdx.x / 32;
  const int item = (blockIdx.x * kFwpkmWarps + warp) * kFwpkmWindow;
  if (threadIdx.x % 32 == 0) {
    rests[warp].count = 0;
  }
  __syncwarp();
  bool left = false;
  let_next_start();
  if (item < span.count * call.reads) {
    const SlotWindow window(call, span, groups.reads, item);
    wait_for_earlier();
    left = window.left >= 0;
    if (left) {
      leave_slot(call, span, back, slot_reads(span, groups.reads, window.left), &rests[warp]);
    }
    spread_window<T, kRun, kWhole>(call, span, back, window, terms[warp]);
  }
  if (!__syncthreads_or(left)) {
    return;
  }
  for (const LongSum& rest : rests) {
    if (rest.count == 0) {
      continue;
    }
    T* to = row_of<T>(call, back.dvalues, rest.chain);
    sum_many<T, kRun, ValueRows::kAsOthers>(
        rest.live ? to : nullptr, to, call.dv, rest.count, [&](int i, float* scale) {
          const int place = place_of(rest.list[i]);
          *scale = call.weights[read_at(call, span, place)];
          return row_of<T>(call, back.dreads, span.number_of(place));
        });
    if (back.memory) {
      sum_many<T, kRun, ValueRows::kAsOthers>(
          to, to, call.dv, rest.count, [&](int i, float* scale) {
            // Tokens that write nothing have no error; any row, times 0, stands in.
            const int place = place_of(rest.list[i]);
            const bool writes = span.writes(span.number_of(place));
            *scale = writes ? back.dalong[place] : 0.0f;
            return row_of<T>(call, writes ? back.errors : back.dreads, span.number_of(place));
          });
    }
  }
}

}  // namespace

void to_earlier_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       const FwpkmBack& back) {
  with_value_rows(call, [&]<typename T, typename Run, typename Halved>(T*, Run, Halved) {
    with_whole<Run::value>(call.dv, [&]<typename Whole>(Whole) {
      launch_next(&spread_values_kernel<T, Run::value, Whole::value>, window_blocks(call, span),
                  kFwpkmThreads, 0, "fwpkm gradients of rows", call, SortedSpan(call, span), groups,
                  back);
    });
  });
}

}  // namespace fwpkm
