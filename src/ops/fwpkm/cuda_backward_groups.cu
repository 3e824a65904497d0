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
      const Selection one(call, span, groups, book, i, end);
      const Selection two(call, span, groups, book, i + 32, end);
      const float a = slope_gradient(call, back, one, book);
      const float b = slope_gradient(call, back, two, book);
      sum += two.here ? a + b : a;
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

// The sum over a warp of x[which % kCount], in each lane for its own `which`: kCount sums at the
// price of a few more exchanges than one.
template <int kCount>
__device__ float sums_for_lanes(float (&x)[kCount], int which) {
  static_assert(kCount == 4 || kCount == 8);
  const int lane = threadIdx.x % 32;
  int step = 16;
#pragma unroll
  for (int left = kCount / 2; left > 0; left /= 2, step /= 2) {
    const bool upper = (lane & step) != 0;  // has the upper half of what is left
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = upper ? x[i] : x[i + left];
      x[i] = (upper ? x[i + left] : x[i]) + __shfl_xor_sync(kWholeWarp, given, step);
    }
  }
  float sum = x[0];
#pragma unroll
  for (; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, step);
  }
  // Sum number s is in lane 32 / kCount * s now.
  return __shfl_sync(kWholeWarp, sum, (which & (kCount - 1)) * (32 / kCount));
}

// A warp's share of gam = -<x, E>, the gradients of pushes, columns first..half. `keys`, `e`:
// the block's sub-keys (null for dot products) and their gradients.
template <typename T, int kRun>
__device__ void add_gam(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                        const FwpkmBack& back, const OwnKeys& own, const OwnSelections& all,
                        int first, int half, const OwnRows<kRun>* keys, const OwnRows<kRun>& e) {
  constexpr int kGroups = kFwpkmKeyGroups, kTogether = kFwpkmTogether<T>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int end = all.share(warp + 1);
  for (int at = all.share(warp); at < end; at += SelectionWindow::kLength) {
    const SelectionWindow window(call, span, groups, own.book, at, end);
    float scores[2] = {}, along[2] = {}, parts[kTogether];
    float key[kGroups][kRun] = {}, gradient[kGroups][kRun] = {};
    const auto prepare = [&] {
      scores[0] = call.scores[window.low.of_all(call, own.book)];
      scores[1] = call.scores[window.high.of_all(call, own.book)];
    };
    const auto use = [&](int i, int u, bool head, float(&x)[kGroups][kRun]) {
      if (head) {
        const int d = window.of(i, window.low.id, window.high.id) - own.first;
        e.get(d, first, half, gradient);
        if (keys != nullptr) {
          keys->get(d, first, half, key);
        }
      }
      parts[u] = 0;
      for_groups<kRun, kGroups>(first, half, [&](int g, int) {
        add_run(-1.0f, key[g], x[g]);
        parts[u] = dot_run(x[g], gradient[g], parts[u]);
      });
    };
    const auto done = [&](int i) {
      const float sum = sums_for_lanes(parts, lane - i);
      const int part = i / 32;  // low or high
      along[part] = lane >= i % 32 && lane < i % 32 + kTogether ? sum : along[part];
    };
    walk_selections<T, kRun>(call, own.book, window, first, half, prepare, use, done);
    const auto store = [&](const Selection& one, float score, float sum) {
      if (one.here) {
        float* gam = back.gam + one.of_chunk(call, own.book);
        *gam = (first == 0 ? 0.0f : *gam) - slope_of(call, score) * sum;
      }
    };
    store(window.low, scores[0], along[0]);
    store(window.high, scores[1], along[1]);
  }
}

// The gradients of the keys before a chunk, from those after it and from those of scores; then, for
// the chunk before, the gradients of its pushes. kWhole: as in moving.
template <typename T, int kRun, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    dkeys_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmGroups groups_before,
                 FwpkmBack back) {
  wait_for_earlier();
  constexpr int kGroups = kFwpkmKeyGroups;
  const int half = kWhole ? OwnRows<kRun>::kColumns : call.half;
  __shared__ __align__(16) KeyParts<kRun> parts;
  __shared__ __align__(16) OwnRows<kRun> keys, keys_before, e;
  const OwnKeys own(call, static_cast<int>(blockIdx.x));
  const FwpkmSpan before(call, span.number - 1);
  const OwnSelections all(call, groups, own), all_before(call, groups_before, own);
  const auto scale_of = [&](const Selection& mine) {
    const int64_t at = mine.of_all(call, own.book);
    const float slope = slope_of(call, call.scores[at]);
    return SelectionScale{slope * back.ds[at],
                          back.keys_live && !call.dot ? slope * back.push[at] : 0.0f};
  };
  const int warp = threadIdx.x / 32, d = min(warp, own.count - 1), id = own.first + d;
  const bool mine = warp < own.count;
  const int begin = groups.start(call, own.book, id), end = groups.start(call, own.book, id + 1);
  const int64_t at = (static_cast<int64_t>(own.book) * call.n + id) * call.half;
  const float* after = back.dkeys_after(call, span.number) + at;
  float* to = back.dkeys_after(call, before.number) + at;
  const auto fetch_key = [&](const FwpkmSpan& of, const FwpkmGroups& in, int first,
                             OwnRows<kRun>* rows) {
    if (in.start(call, own.book, id) < in.start(call, own.book, id + 1)) {
      rows->fetch(
          d,
          keys_read(call) + static_cast<int64_t>(key_read(call, of, in, own.book, id)) * call.half,
          first, half);
    }
  };
  for (int first = 0; first < half; first += OwnRows<kRun>::kColumns) {
    __syncthreads();  // the columns before are done
    if (mine && !call.dot) {
      fetch_key(span, groups, first, &keys);
      fetch_key(before, groups_before, first, &keys_before);
    }
    __syncthreads();
    sum_share<T, kRun, true>(call, span, groups, own, all, first, half, call.dot ? nullptr : &keys,
                             &parts, scale_of);
    __syncthreads();
    if (mine) {
      float old[kGroups][kRun] = {}, sum[kGroups][kRun] = {};
      if (back.keys_live) {
        for_groups<kRun, kGroups>(first, half, [&](int g, int c) { load_run(after + c, old[g]); });
      }
      // Of itself a sub-key also gets what its own move had of it.
      const float scale = 1 + parts.add(all, begin, end, d, first, half, sum);
      for_groups<kRun, kGroups>(first, half, [&](int g, int c) {
        add_run(scale, old[g], sum[g]);
        store_wide(to + c, sum[g]);
        store_run(&e.rows[d][c - first], sum[g]);
      });
    }
    __syncthreads();
    add_gam<T, kRun>(call, before, groups_before, back, own, all_before, first, half,
                     call.dot ? nullptr : &keys_before, e);
  }
}

}  // namespace

void push_all(const FwpkmCall& call, const FwpkmBack& back) {
  const int64_t items = int64_t{call.batch} * call.time * call.books * call.k;
  pushes_kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmThreads)), kFwpkmThreads, 0,
                  this_stream()>>>(call, back);
  check_launch("fwpkm pushes");
}

void find_dpbar(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                const FwpkmBack& back) {
  launch_next(&dpbar_kernel, fwpkm_blocks(int64_t{call.marginals} * call.n), kFwpkmThreads, 0,
              "fwpkm gradients of marginals", call, span, groups, back);
}

void to_earlier_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       const FwpkmBack& back) {
  const unsigned blocks = fwpkm_blocks(ceil_div(int64_t{span.count} * call.reads, kFwpkmWindow));
  with_run(call, [&](auto run) {
    launch(false, &spread_values_kernel<decltype(run)::value>, blocks, kFwpkmThreads, 0,
           "fwpkm gradients of rows", call, span, groups, back);
  });
}

void to_earlier_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmLists& lists,
                     const FwpkmBack& back) {
  const FwpkmSpan before(call, span.number - 1);
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    const bool whole = call.half == OwnRows<Run::value>::kColumns;
    launch_next(whole ? &dkeys_kernel<T, Run::value, true> : &dkeys_kernel<T, Run::value, false>,
                key_blocks(call), kFwpkmThreads, 0, "fwpkm gradients of keys", call, span,
                lists.of(call, span), lists.of(call, before), back);
  });
}

}  // namespace fwpkm
