#include "ops/fwpkm/cuda_write.cuh"

#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// Gives a slot that was never read before its chain: the number of its first read.
__device__ int first_chain(const FwpkmCall& call, int owner, int slot, int64_t first) {
  const int64_t before = static_cast<int64_t>(owner) * call.time * call.reads;
  const auto chain = static_cast<int>(owner * call.chain_cap + first - before);
  add_chain(call, owner, slot, chain);
  call.writes[static_cast<int64_t>(chain) * 3 + 1] = slot;
  return chain;
}

// The row of the log that a slot gets; `first`: the place of its first read that writes.
__device__ int new_row(const FwpkmCall& call, const FwpkmSpan& span, int owner, int slot,
                       int first) {
  const int each = span.writers * call.reads;  // writing reads of a row of the batch
  const int64_t slots = static_cast<int64_t>(call.n) * call.n;
  int64_t row = slot;
  if (slots > static_cast<int64_t>(call.shared ? call.batch : 1) * each) {
    const int j = first / call.reads;
    row = (call.shared ? static_cast<int64_t>(j / span.length) * each : 0) +
          j % span.length * call.reads + first % call.reads;
  }
  return static_cast<int>(owner * call.log_cap + span.number * call.log_step + row);
}

__device__ float share_of(const FwpkmCall& call, int reads, int writing) {
  return 1.0f / static_cast<float>(max(1, call.official ? reads : writing));
}

// Chain and share of a read.
__device__ void keep_read(const FwpkmCall& call, int64_t read, int chain, bool writes,
                          float share) {
  call.chain[read] = chain;
  if (writes) {
    call.share[read] = share;
  }
}

// The slots that begin in a window and end in sight of its warp. `terms`: memory for the rows of
// all of them.
template <int kRun>
__device__ void write_window(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found,
                             const SlotWindow& window, RowTerm* terms) {
  const int lane = threadIdx.x % 32, slot = id_of(window.element);
  const bool here = window.group != 0, heads = here && lane == window.head();
  const int place = here ? place_of(window.element) : 0, j = place / call.reads;
  const int owner = call.shared ? 0 : j / span.length;
  const int64_t read = read_at(call, span, place);
  const bool writes = here && span.writes(j);
  int chain = 0, source = 0;
  if (heads) {
    chain = call.chain[read];
    source = call.source[read];
  }
  const float coefficient = writes ? found.coefficients[place] : 0.0f;
  const unsigned all_writing = __ballot_sync(kWholeWarp, writes);
  const unsigned writing = all_writing & window.group;
  const int first = __shfl_sync(kWholeWarp, place, writing == 0 ? 0 : __ffs(writing) - 1);
  const int row = new_row(call, span, owner, slot, first);
  if (heads && chain < 0) {
    chain = first_chain(call, owner, slot, read);
  }
  if (heads && writing != 0) {
    call.writes[static_cast<int64_t>(chain) * 3 + 2] = row;
  }
  chain = __shfl_sync(kWholeWarp, chain, window.head());
  const float share = share_of(call, __popc(window.group), __popc(writing));
  if (here) {
    keep_read(call, read, chain, writes, share);
  }
  // Of each slot the row it has, then the errors of those that write it.
  const bool begins = heads && writing != 0;
  const unsigned all_begins = __ballot_sync(kWholeWarp, begins), below = (1u << lane) - 1;
  const int at = __popc(all_begins & below) + __popc(all_writing & below);
  if (begins) {
    terms[at] = {value_row(call, source, slot), nullptr, 1.0f};
  }
  if (writes) {
    const bool last = (writing & ~below) == 1u << lane;
    terms[begins ? at + 1 : at] = {found.errors + static_cast<int64_t>(j) * call.dv,
                                   last ? call.log + static_cast<int64_t>(row) * call.dv : nullptr,
                                   coefficient * share};
  }
  __syncwarp();
  sum_terms<kRun>(terms, __popc(all_begins) + __popc(all_writing), call.dv);
}

// A slot that is left to the block.
struct LongWrite {
  const uint64_t* list;
  const float* from;
  float* to;
  float share;
  int count, first_writing;
};

// Prepares it. Nothing is to be written if the count stays 0.
__device__ void leave_slot(const FwpkmCall& call, const FwpkmSpan& span, const SlotReads& reads,
                           LongWrite* rest) {
  const int lane = threadIdx.x % 32;
  const int64_t first = read_at(call, span, reads.first);
  const float* from = value_row(call, call.source[first], reads.slot);
  const float share = share_of(call, reads.count, reads.writing);
  const int row = new_row(call, span, reads.owner, reads.slot, reads.first_writing);
  int chain = call.chain[first];
  __syncwarp();  // all lanes have the chain before one changes it
  if (lane == 0) {
    chain = chain < 0 ? first_chain(call, reads.owner, reads.slot, first) : chain;
    if (reads.writing > 0) {
      call.writes[static_cast<int64_t>(chain) * 3 + 2] = row;
      *rest = {reads.list, from,        call.log + static_cast<int64_t>(row) * call.dv,
               share,      reads.count, reads.first_writing};
    }
  }
  chain = __shfl_sync(kWholeWarp, chain, 0);
  for (int i = lane; i < reads.count; i += 32) {
    const int place = reads.place(i);
    keep_read(call, read_at(call, span, place), chain, span.writes(place / call.reads), share);
  }
}

// Each warp has a window of the sorted reads.
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    write_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmFound found) {
  __shared__ RowTerm terms[kFwpkmWarps][kFwpkmWindow + 32];
  __shared__ LongWrite rests[kFwpkmWarps];  // a long slot is the last one to begin in its window
  const int warp = threadIdx.x / 32;
  const int item = (blockIdx.x * kFwpkmWarps + warp) * kFwpkmWindow;
  if (threadIdx.x % 32 == 0) {
    rests[warp].count = 0;
  }
  __syncwarp();
  if (item < span.count * call.reads) {
    const SlotWindow window(call, span, groups.reads, item);
    if (window.left >= 0) {
      leave_slot(call, span, slot_reads(call, span, groups.reads, window.left), &rests[warp]);
    }
    write_window<kRun>(call, span, found, window, terms[warp]);
  }
  __syncthreads();
  for (const LongWrite& rest : rests) {
    if (rest.count == 0) {
      continue;
    }
    sum_many<kRun>(rest.from, rest.to, call.dv, rest.count, [&](int i, float* scale) {
      // Those that write nothing have no error; another's, times 0, stands in.
      const int place = place_of(rest.list[i]);
      const bool writes = span.writes(place / call.reads);
      *scale = writes ? found.coefficients[place] * rest.share : 0.0f;
      return found.errors +
             static_cast<int64_t>((writes ? place : rest.first_writing) / call.reads) * call.dv;
    });
  }
}

// addr_weight * sum of p log(p + eps), to one number; the work of a block.
__device__ void addressing_loss(const FwpkmCall& call, const float* pbar, float* to) {
  __shared__ double sums[kFwpkmThreads];
  double sum = 0;
  for (int i = threadIdx.x; i < call.marginals * call.n; i += kFwpkmThreads) {
    sum += pbar[i] * logf(pbar[i] + static_cast<float>(kMarginalEps));
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int step = kFwpkmThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *to = static_cast<float>(call.addr_weight * sums[0]);
  }
}

// Moves sub-keys, a few for each block, and keeps what they were. What products need of them is
// renewed. The last block has the loss. kWhole: sub-keys have as many columns as a round.
template <typename T, int kRun, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    move_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmFound found,
                FwpkmMarginals marginals, FwpkmProducts products, int blocks) {
  wait_for_earlier();
  constexpr int kGroups = kFwpkmKeyGroups;
  const int half = kWhole ? OwnRows<kRun>::kColumns : call.half;
  __shared__ __align__(16) KeyParts<kRun> parts;
  __shared__ __align__(16) OwnRows<kRun> keys;
  const int block = blockIdx.x, warp = threadIdx.x / 32;
  if (block == blocks) {
    addressing_loss(call, marginals.pbar, call.addressing + span.number);
    return;
  }
  const OwnKeys own(call, block);
  const OwnSelections all(call, groups, own);
  const auto scale_of = [&](const Selection& mine) {
    const int64_t at = mine.of_all(call, own.book);
    const float push = call.addr_loss ? addressing_push(call, span, marginals.p, marginals.slope,
                                                        at - mine.rank, own.book, mine.rank)
                                      : found.push[at];
    return SelectionScale{-push * slope_of(call, call.scores[at])};
  };
  // A warp has a sub-key, and none where there are more warps.
  const int id = own.first + min(warp, own.count - 1);
  const int begin = groups.start(call, own.book, id), end = groups.start(call, own.book, id + 1);
  const bool mine = warp < own.count && begin < end;
  float* key = call.moved + (static_cast<int64_t>(own.book) * call.n + id) * call.half;
  float* old =
      call.key_rows == nullptr || !mine
          ? nullptr
          : call.key_rows +
                static_cast<int64_t>(old_key_place(call, span, groups, own.book, id)) * call.half;
  const bool multiplied = call.given_ids == nullptr;
  float norm = 0;
  for (int first = 0; first < half; first += OwnRows<kRun>::kColumns) {
    __syncthreads();  // the columns before are done
    if (mine) {
      keys.fetch(warp, key, first, half);
    }
    __syncthreads();
    sum_share<T, kRun, false>(call, span, groups, own, all, first, half, call.dot ? nullptr : &keys,
                              &parts, scale_of);
    __syncthreads();
    let_next_start();  // the next chunk's queries can be fetched
    if (!mine) {
      continue;
    }
    float sum[kGroups][kRun] = {};
    keys.get(warp, first, half, sum);
    if (old != nullptr) {
      for_groups<kRun, kGroups>(first, half, [&](int g, int c) { store_wide(old + c, sum[g]); });
    }
    parts.add(all, begin, end, warp, first, half, sum);
    for_groups<kRun, kGroups>(first, half, [&](int g, int c) {
      store_wide(key + c, sum[g]);
      norm = dot_run(sum[g], sum[g], norm);
      if (multiplied && call.narrow) {
        products.pack_key(call, own.book, id, c, sum[g]);
      }
    });
  }
  norm = warp_sum(norm);
  if (mine && multiplied && threadIdx.x % 32 == 0) {
    products.norms[static_cast<int64_t>(own.book) * products.padded + id] = norm;
  }
}

}  // namespace

void write_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                  const FwpkmFound& found) {
  const int64_t windows = ceil_div(int64_t{span.count} * call.reads, kFwpkmWindow);
  with_run(call, [&](auto run) {
    launch(false, &write_kernel<decltype(run)::value>, fwpkm_blocks(windows), kFwpkmThreads, 0,
           "fwpkm writing values", call, span, groups, found);
  });
}

void move_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
               const FwpkmFound& found, const FwpkmMarginals& marginals,
               const FwpkmProducts& products) {
  const unsigned blocks = key_blocks(call);
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    const bool whole = call.half == OwnRows<Run::value>::kColumns;
    launch_next(whole ? &move_kernel<T, Run::value, true> : &move_kernel<T, Run::value, false>,
                blocks + (marginals.p == nullptr ? 0 : 1), kFwpkmThreads, 0, "fwpkm moving keys",
                call, span, groups, found, marginals, products, static_cast<int>(blocks));
  });
}

}  // namespace fwpkm
