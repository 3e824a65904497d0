// Backward group by group: what comes together in a slot or a sub-key.
#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// p of all tokens: a thread for each token and codebook.
__global__ void __launch_bounds__(kFwpkmThreads)
    softmax_kernel(const float* scores, int64_t count, int k, float* p) {
  const int64_t item = blockIdx.x * int64_t{kFwpkmThreads} + threadIdx.x;
  if (item >= count) {
    return;
  }
  scores += item * k;
  p += item * k;
  float top = -INFINITY, total = 0;
  for (int r = 0; r < k; ++r) {
    top = fmaxf(top, scores[r]);
  }
  for (int r = 0; r < k; ++r) {
    total += expf(scores[r] - top);
  }
  for (int r = 0; r < k; ++r) {
    p[r] = expf(scores[r] - top) / total;
  }
}

// Marginals of all chunks: a warp for each sub-key of each.
__global__ void __launch_bounds__(kFwpkmThreads)
    marginals_kernel(FwpkmCall call, FwpkmLists lists, FwpkmBack back) {
  const int64_t item = blockIdx.x * int64_t{kFwpkmWarps} + threadIdx.x / 32;
  const int each = call.marginals * call.n;
  if (item < static_cast<int64_t>(call.chunks) * each) {
    const int chunk = static_cast<int>(item / each);
    const FwpkmSpan span(call, chunk);
    const int64_t first = static_cast<int64_t>(chunk) * each;
    find_marginal(call, span, lists.of(call, span), back.p, static_cast<int>(item % each),
                  back.pbar + first, back.slope + first);
  }
}

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
__global__ void __launch_bounds__(kFwpkmThreads)
    gam_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  constexpr int kGroups = kFwpkmKeyGroups, kAhead = 4;
  const int pieces = pieces_of(call, span), lane = threadIdx.x % 32;
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * pieces) {
    return;
  }
  const int book = item / pieces;
  const Selection mine(call, span, groups, book, item % pieces * kFwpkmPiece + lane);
  const int some = __popc(__ballot_sync(kWholeWarp, mine.here));
  const int key = key_read(call, span, groups, book, mine.id);
  const auto row_of = [&](const float* rows, int number, int i) {
    return rows + static_cast<int64_t>(__shfl_sync(kWholeWarp, number, i)) * call.half;
  };
  float along = 0;
  for (int begin = 0; begin < some; begin += kAhead) {
    float sums[kAhead] = {};
    for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
      float x[kAhead][kGroups][kRun], y[kAhead][kGroups][kRun], z[kAhead][kGroups][kRun];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int i = min(begin + u, some - 1);
        const T* q = query_of<T>(call, __shfl_sync(kWholeWarp, mine.t, i), book);
        const float* k = row_of(keys_read(call), key, i);
        const float* dk = row_of(back.dkeys, book * call.n + mine.id, i);
        for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
          load_run(q + c, x[u][g]);
          load_run(dk + c, z[u][g]);
          if (!call.dot) {
            load_run(k + c, y[u][g]);
          }
        });
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        for_groups<kRun, kGroups>(first, call.half, [&](int g, int) {
          if (!call.dot) {
            add_run(-1.0f, y[u][g], x[u][g]);
          }
          sums[u] = dot_run(x[u][g], z[u][g], sums[u]);
        });
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const float sum = warp_sum(sums[u]);
      along = lane == begin + u ? sum : along;
    }
  }
  if (mine.here) {
    const float slope = slope_of(call, call.scores[mine.of_all(call, book)]);
    back.gam[mine.of_chunk(call, book)] = -slope * along;
  }
}

// dpbar: a warp for each sub-key of each marginal.
__global__ void __launch_bounds__(kFwpkmThreads)
    dpbar_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.marginals * call.n) {
    return;
  }
  const int id = item % call.n;
  const float lambda = call.addr_weight;
  float sum = 0;
  for (int book = item / call.n; book < call.books; book += call.marginals) {
    const int end = groups.start(call, book, id + 1);
    for (int i = groups.start(call, book, id) + static_cast<int>(threadIdx.x % 32); i < end;
         i += 32) {
      const Selection s(call, span, groups, book, i);
      const float* p = back.p + s.of_all(call, book) - s.rank;
      const float* gam = back.gam + s.of_chunk(call, book) - s.rank;
      float mean = 0;
#pragma unroll 4
      for (int r = 0; r < call.k; ++r) {
        mean = fmaf(p[r], lambda * gam[r], mean);
      }
      sum = fmaf(p[s.rank], lambda * gam[s.rank] - mean, sum);
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

// A slot that is left to the block.
struct LongSum {
  const uint64_t* list;
  int count, chain;
};

// Gradients of the rows that were read and that an earlier chunk wrote. Each warp has an element of
// the sorted reads, and the slot whose first read it is.
template <int kRun>
__device__ void spread_values(const FwpkmCall& call, const FwpkmSpan& span,
                              const FwpkmGroups& groups, const FwpkmBack& back, int block) {
  __shared__ LongSum rest;  // at most one, as in write_slots
  if (threadIdx.x == 0) {
    rest.count = 0;
  }
  __syncthreads();
  const int item = block * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const auto read_at = [&](int place) {
    return static_cast<int64_t>(span.token(place / call.reads)) * call.reads + place % call.reads;
  };
  const auto row_of = [&](const float* rows, int place) {
    return rows + static_cast<int64_t>(place / call.reads) * call.dv;
  };
  SlotReads reads;
  if (item < span.count * call.reads) {
    reads = slot_reads(call, span, groups.reads, item);
  }
  const int64_t first = reads.count > 0 ? read_at(reads.first) : 0;
  if (reads.count > 0 && call.source[first] >= 0) {
    const int chain = call.chain[first];
    float* to = back.dvalues + static_cast<int64_t>(chain) * call.dv;
    if (reads.count > 32) {
      if (lane == 0) {
        rest = {reads.list, reads.count, chain};
      }
    } else {
      const bool here = lane < reads.count, live = back.live[chain] != 0;
      const int place = here ? reads.place(lane) : reads.first;
      sum_few<kRun>(live ? to : nullptr, to, call.dv, __ballot_sync(kWholeWarp, here),
                    call.weights[read_at(place)], back.dreads, place / call.reads);
      if (back.memory) {
        const bool writes = here && span.writes(place / call.reads);
        sum_few<kRun>(to, to, call.dv, __ballot_sync(kWholeWarp, writes),
                      writes ? back.dalong[place] : 0.0f, back.errors, place / call.reads);
      }
      __syncwarp();
      if (lane == 0) {
        back.live[chain] = 1;
      }
    }
  }
  __syncthreads();
  if (rest.count == 0) {
    return;
  }
  float* to = back.dvalues + static_cast<int64_t>(rest.chain) * call.dv;
  sum_many<kRun>(back.live[rest.chain] != 0 ? to : nullptr, to, call.dv, rest.count,
                 [&](int i, float* scale) {
                   const int place = place_of(rest.list[i]);
                   *scale = call.weights[read_at(place)];
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
  __syncthreads();
  if (threadIdx.x == 0) {
    back.live[rest.chain] = 1;
  }
}

// The first blocks have the pieces of the codebooks' lists: parts of what scores give to the keys.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 3)
    spread_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back,
                  int key_blocks) {
  const int block = blockIdx.x;
  if (block >= key_blocks) {
    spread_values<kRun>(call, span, groups, back, block - key_blocks);
    return;
  }
  const int pieces = pieces_of(call, span);
  const int item = block * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * pieces) {
    return;
  }
  const int book = item / pieces, piece = item % pieces;
  const Selection mine(call, span, groups, book,
                       piece * kFwpkmPiece + static_cast<int>(threadIdx.x % 32));
  const float scale =
      slope_of(call, call.scores[mine.of_all(call, book)]) * back.ds[mine.of_chunk(call, book)];
  sum_piece<T, kRun, 2>(call, span, book, piece, mine, scale, keys_read(call),
                        key_read(call, span, groups, book, mine.id), back.parts);
}

// The gradients of the keys before the chunk, in place of those after it: a warp for each.
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    dkeys_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * call.n) {
    return;
  }
  const int book = item / call.n, id = item % call.n;
  const int begin = groups.start(call, book, id), end = groups.start(call, book, id + 1);
  if (begin == end) {
    return;
  }
  float moved = 0;  // how much of itself a sub-key gets through the differences in its own move
  for (int i = begin + static_cast<int>(threadIdx.x % 32); i < end && back.keys_live && !call.dot;
       i += 32) {
    const int64_t at = Selection(call, span, groups, book, i).of_all(call, book);
    moved = fmaf(slope_of(call, call.scores[at]), back.push[at], moved);
  }
  moved = warp_sum(moved);
  float* dkey = back.dkeys + static_cast<int64_t>(item) * call.half;
  for (int first = 0; first < call.half; first += kFwpkmKeyGroups * 32 * kRun) {
    float sum[kFwpkmKeyGroups][kRun] = {};
    for_groups<kRun, kFwpkmKeyGroups>(first, call.half, [&](int g, int c) {
      float x[kRun];
      load_run(dkey + c, x);
      add_run(1 + moved, x, sum[g]);
    });
    add_parts<kRun>(call, span, book, id, begin, end, back.parts, first, sum);
    for_groups<kRun, kFwpkmKeyGroups>(first, call.half,
                                      [&](int g, int c) { store_wide(dkey + c, sum[g]); });
  }
}

unsigned thread_blocks(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kFwpkmThreads));
}

}  // namespace

void push_all(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmBack& back) {
  const int64_t rows = int64_t{call.batch} * call.time * call.books;
  softmax_kernel<<<thread_blocks(rows), kFwpkmThreads, 0, this_stream()>>>(call.scores, rows,
                                                                           call.k, back.p);
  check_launch("fwpkm softmax");
  marginals_kernel<<<fwpkm_blocks(int64_t{call.chunks} * call.marginals * call.n), kFwpkmThreads, 0,
                     this_stream()>>>(call, lists, back);
  check_launch("fwpkm marginals");
  pushes_kernel<<<thread_blocks(rows * call.k), kFwpkmThreads, 0, this_stream()>>>(call, back);
  check_launch("fwpkm pushes");
}

void find_gam(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
              const FwpkmBack& back) {
  const unsigned blocks = fwpkm_blocks(int64_t{call.books} * pieces_of(call, span));
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    gam_kernel<T, Run::value>
        <<<blocks, kFwpkmThreads, 0, this_stream()>>>(call, span, groups, back);
  });
  check_launch("fwpkm gradients of pushes");
  if (call.addr_loss) {
    dpbar_kernel<<<fwpkm_blocks(int64_t{call.marginals} * call.n), kFwpkmThreads, 0,
                   this_stream()>>>(call, span, groups, back);
    check_launch("fwpkm gradients of marginals");
  }
}

void to_earlier(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                const FwpkmBack& back) {
  const unsigned keys =
      call.keys_move ? fwpkm_blocks(int64_t{call.books} * pieces_of(call, span)) : 0;
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    spread_kernel<T, Run::value>
        <<<keys + fwpkm_blocks(int64_t{span.count} * call.reads), kFwpkmThreads, 0,
           this_stream()>>>(call, span, groups, back, static_cast<int>(keys));
  });
  check_launch("fwpkm gradients of rows");
  if (call.keys_move) {
    with_run(call, [&](auto run) {
      dkeys_kernel<decltype(run)::value>
          <<<fwpkm_blocks(int64_t{call.books} * call.n), kFwpkmThreads, 0, this_stream()>>>(
              call, span, groups, back);
    });
    check_launch("fwpkm gradients of keys");
  }
}

}  // namespace fwpkm
