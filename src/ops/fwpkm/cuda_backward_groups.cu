// Backward group by group: what comes together in a slot or a sub-key.
#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// Pushes of all chunks: a thread for each.
__global__ void __launch_bounds__(kFwpkmThreads) pushes_kernel(FwpkmCall call, FwpkmBack back) {
  const int64_t item = blockIdx.x * int64_t{kFwpkmThreads} + threadIdx.x;
  if (item >= static_cast<int64_t>(call.batch) * call.time * call.books * call.k) {
    return;
  }
  const int rank = static_cast<int>(item % call.k);
  const int book = static_cast<int>(item / call.k % call.books);
  const int t = static_cast<int>(item / call.k / call.books);
  const FwpkmSpan span(call, t % call.time / call.chunk);
  back.push[item] = addressing_push(
      call, span, back.p, back.slope + static_cast<int64_t>(span.number) * call.marginals * call.n,
      item - rank, book, rank);
}

// gam = -<x, E>, the gradients of pushes: a warp for each piece of a codebook's list.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    gam_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  wait_for_earlier();
  constexpr int kGroups = kFwpkmKeyGroups, kAhead = sizeof(T) == 2 ? 8 : 4;
  const int pieces = pieces_of(call, span), lane = threadIdx.x % 32;
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * pieces) {
    return;
  }
  const int book = item / pieces;
  const Selection mine(call, span, groups, book, item % pieces * kFwpkmPiece + lane);
  const float score = call.scores[mine.of_all(call, book)];
  const float* const tables[2] = {call.dot ? nullptr : keys_read(call),
                                  back.dkeys_after(call, span.number)};
  const int numbers[2] = {key_read(call, span, groups, book, mine.id), book * call.n + mine.id};
  float along = 0;
  for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
    walk_piece<T, kRun, kAhead>(
        call, book, mine, first, tables, numbers,
        [&](int i, bool, float(&x)[kGroups][kRun], const float(&rows)[2][kGroups][kRun]) {
          float sum = 0;
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int) {
            add_run(-1.0f, rows[0][g], x[g]);
            sum = dot_run(x[g], rows[1][g], sum);
          });
          sum = warp_sum(sum);
          along += lane == i ? sum : 0.0f;
        });
  }
  if (mine.here) {
    back.gam[mine.of_chunk(call, book)] = -slope_of(call, score) * along;
  }
}

// What a selection adds to the gradient of its sub-key's slope.
__device__ float slope_gradient(const FwpkmCall& call, const FwpkmBack& back, const Selection& s,
                                int book) {
  const float* p = back.p + s.of_all(call, book) - s.rank;
  const float* gam = back.gam + s.of_chunk(call, book) - s.rank;
  const float lambda = call.addr_weight;
  float mean = 0;
#pragma unroll 8
  for (int r = 0; r < call.k; ++r) {
    mean = fmaf(p[r], lambda * gam[r], mean);
  }
  return p[s.rank] * (lambda * gam[s.rank] - mean);
}

// dpbar: a warp for each sub-key of each marginal, two selections for each lane at a time.
__global__ void __launch_bounds__(kFwpkmThreads)
    dpbar_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  wait_for_earlier();
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.marginals * call.n) {
    return;
  }
  const int id = item % call.n;
  float sum = 0;
  for (int book = item / call.n; book < call.books; book += call.marginals) {
    const int end = groups.start(call, book, id + 1);
    for (int i = groups.start(call, book, id) + static_cast<int>(threadIdx.x % 32); i < end;
         i += 64) {
      const Selection one(call, span, groups, book, i);
      const Selection two(call, span, groups, book, min(i + 32, end - 1));
      const float a = slope_gradient(call, back, one, book);
      const float b = slope_gradient(call, back, two, book);
      sum += i + 32 < end ? a + b : a;
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    const float eps = static_cast<float>(kMarginalEps);
    const float p =
        back.pbar[static_cast<int64_t>(span.number) * call.marginals * call.n + item] + eps;
    back.dpbar[item] = sum / marginal_tokens(call, span) * (1.0f / p + eps / (p * p));
  }
}

// The rows of slots that begin in a window and end in sight of its warp, if an earlier chunk wrote
// them. `terms`: memory for the rows of all of them.
template <int kRun>
__device__ void spread_window(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                              const SlotWindow& window, RowTerm* terms) {
  const int lane = threadIdx.x % 32, head = window.head();
  const bool here = window.group != 0, heads = here && lane == head;
  const int place = here ? place_of(window.element) : 0, j = place / call.reads;
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
  float* to = back.dvalues + static_cast<int64_t>(own) * call.dv;
  if (live) {
    terms[start] = {to, nullptr, 1.0f};
  }
  if (wanted) {
    const bool last = pulls == 0 && (window.group & ~below) == 1u << lane;
    terms[first + __popc(window.group & below)] = {back.dreads + static_cast<int64_t>(j) * call.dv,
                                                   last ? to : nullptr, weight};
  }
  if (pulled) {
    const bool last = (pulls & ~below) == 1u << lane;
    terms[first + __popc(window.group) + __popc(pulls & below)] = {
        back.errors + static_cast<int64_t>(j) * call.dv, last ? to : nullptr, back.dalong[place]};
  }
  __syncwarp();
  sum_terms<kRun>(terms, __popc(taken) + __popc(alive) + __popc(pulling), call.dv);
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
__device__ void leave_slot(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
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
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    spread_values_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  __shared__ RowTerm terms[kFwpkmWarps][kFwpkmWindow + 64];
  __shared__ LongSum rests[kFwpkmWarps];  // a long slot is the last one to begin in its window
  const int warp = threadIdx.x / 32;
  const int item = (blockIdx.x * kFwpkmWarps + warp) * kFwpkmWindow;
  if (threadIdx.x % 32 == 0) {
    rests[warp].count = 0;
  }
  __syncwarp();
  if (item < span.count * call.reads) {
    const SlotWindow window(call, span, groups.reads, item);
    if (window.left >= 0) {
      leave_slot(call, span, back, slot_reads(call, span, groups.reads, window.left), &rests[warp]);
    }
    spread_window<kRun>(call, span, back, window, terms[warp]);
  }
  __syncthreads();
  const auto row_of = [&](const float* rows, int place) {
    return rows + static_cast<int64_t>(place / call.reads) * call.dv;
  };
  for (const LongSum& rest : rests) {
    if (rest.count == 0) {
      continue;
    }
    float* to = back.dvalues + static_cast<int64_t>(rest.chain) * call.dv;
    sum_many<kRun>(rest.live ? to : nullptr, to, call.dv, rest.count, [&](int i, float* scale) {
      const int place = place_of(rest.list[i]);
      *scale = call.weights[read_at(call, span, place)];
      return row_of(back.dreads, place);
    });
    if (back.memory) {
      sum_many<kRun>(to, to, call.dv, rest.count, [&](int i, float* scale) {
        // Tokens that write nothing have no error; any row, times 0, stands in.
        const int place = place_of(rest.list[i]);
        const bool writes = span.writes(place / call.reads);
        *scale = writes ? back.dalong[place] : 0.0f;
        return row_of(writes ? back.errors : back.dreads, place);
      });
    }
  }
}

// Parts of what scores give to the keys: a warp for each piece of a codebook's list.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    spread_keys_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  wait_for_earlier();
  const int pieces = pieces_of(call, span);
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * pieces) {
    return;
  }
  const int book = item / pieces, piece = item % pieces;
  const Selection mine(call, span, groups, book,
                       piece * kFwpkmPiece + static_cast<int>(threadIdx.x % 32));
  const int64_t at = mine.of_all(call, book);
  sum_piece<T, kRun, sizeof(T) == 2 ? 8 : 4>(
      call, span, book, piece, mine, slope_of(call, call.scores[at]) * back.ds[at], keys_read(call),
      key_read(call, span, groups, book, mine.id), back.parts);
}

// The gradients of the keys before the chunk, from those after it: a warp for each.
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    dkeys_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  wait_for_earlier();
  constexpr int kGroups = kFwpkmKeyGroups;
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * call.n) {
    return;
  }
  const int book = item / call.n, id = item % call.n;
  const int begin = groups.start(call, book, id), end = groups.start(call, book, id + 1);
  const int64_t at = static_cast<int64_t>(item) * call.half;
  const float* after = back.dkeys_after(call, span.number) + at;
  float* before = back.dkeys_after(call, span.number - 1) + at;
  float moved = 0;  // how much of itself a sub-key gets through the differences in its own move
  if (back.keys_live && !call.dot) {
#pragma unroll 2
    for (int i = begin + static_cast<int>(threadIdx.x % 32); i < end; i += 32) {
      const int64_t entry = Selection(call, span, groups, book, i).of_all(call, book);
      moved = fmaf(slope_of(call, call.scores[entry]), back.push[entry], moved);
    }
  }
  for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
    // The rows are on their way while the lanes' parts of `moved` come together.
    float old[kGroups][kRun] = {}, sum[kGroups][kRun] = {};
    if (back.keys_live) {
      for_groups<kRun, kGroups>(first, call.half,
                                [&](int g, int c) { load_run(after + c, old[g]); });
    }
    if (begin < end) {
      add_parts<kRun>(call, span, book, id, begin, end, back.parts, first, sum);
    }
    const float scale = 1 + warp_sum(moved);
    for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
      add_run(scale, old[g], sum[g]);
      store_wide(before + c, sum[g]);
    });
  }
}

}  // namespace

void push_all(const FwpkmCall& call, const FwpkmBack& back) {
  const int64_t items = int64_t{call.batch} * call.time * call.books * call.k;
  pushes_kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmThreads)), kFwpkmThreads, 0,
                  this_stream()>>>(call, back);
  check_launch("fwpkm pushes");
}

void find_gam(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
              const FwpkmBack& back) {
  const unsigned blocks = fwpkm_blocks(int64_t{call.books} * pieces_of(call, span));
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    launch_next(&gam_kernel<T, Run::value>, blocks, kFwpkmThreads, 0, "fwpkm gradients of pushes",
                call, span, groups, back);
  });
  if (call.addr_loss) {
    launch_next(&dpbar_kernel, fwpkm_blocks(int64_t{call.marginals} * call.n), kFwpkmThreads, 0,
                "fwpkm gradients of marginals", call, span, groups, back);
  }
}

void to_earlier_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       const FwpkmBack& back) {
  const unsigned blocks = fwpkm_blocks(ceil_div(int64_t{span.count} * call.reads, kFwpkmWindow));
  with_run(call, [&](auto run) {
    spread_values_kernel<decltype(run)::value>
        <<<blocks, kFwpkmThreads, 0, this_stream()>>>(call, span, groups, back);
  });
  check_launch("fwpkm gradients of rows");
}

void to_earlier_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                     const FwpkmBack& back) {
  const unsigned pieces = fwpkm_blocks(int64_t{call.books} * pieces_of(call, span));
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    launch_next(&spread_keys_kernel<T, Run::value>, pieces, kFwpkmThreads, 0,
                "fwpkm gradients of keys, in parts", call, span, groups, back);
  });
  with_run(call, [&](auto run) {
    launch_next(&dkeys_kernel<decltype(run)::value>, fwpkm_blocks(int64_t{call.books} * call.n),
                kFwpkmThreads, 0, "fwpkm gradients of keys", call, span, groups, back);
  });
}

}  // namespace fwpkm
