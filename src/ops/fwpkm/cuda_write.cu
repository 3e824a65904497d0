#include "ops/fwpkm/cuda_write.cuh"

#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// The number of a read of all tokens from its place in the chunk.
__device__ int64_t read_at(const FwpkmCall& call, const FwpkmSpan& span, int place) {
  return static_cast<int64_t>(span.token(place / call.reads)) * call.reads + place % call.reads;
}

// Gives a slot that was never read before its chain: the number of its first read.
__device__ int first_chain(const FwpkmCall& call, const SlotReads& reads, int64_t first) {
  const int64_t before = static_cast<int64_t>(reads.owner) * call.time * call.reads;
  const auto chain = static_cast<int>(reads.owner * call.chain_cap + first - before);
  if (threadIdx.x % 32 == 0) {
    add_chain(call, reads.owner, reads.slot, chain);
    call.writes[static_cast<int64_t>(chain) * 3 + 1] = reads.slot;
  }
  return chain;
}

// The row of the log that a slot gets.
__device__ int new_row(const FwpkmCall& call, const FwpkmSpan& span, const SlotReads& reads) {
  const int each = span.writers * call.reads;  // writing reads of a row of the batch
  const int64_t slots = static_cast<int64_t>(call.n) * call.n;
  int64_t row = reads.slot;
  if (slots > static_cast<int64_t>(call.shared ? call.batch : 1) * each) {
    const int j = reads.first_writing / call.reads;
    row = (call.shared ? static_cast<int64_t>(j / span.length) * each : 0) +
          j % span.length * call.reads + reads.first_writing % call.reads;
  }
  return static_cast<int>(reads.owner * call.log_cap + span.number * call.log_step + row);
}

// A slot that is left to the block.
struct LongWrite {
  const uint64_t* list;
  const float* from;
  float* to;
  float share;
  int count, first_writing;
};

// Each warp has an element of the sorted reads, and the slot whose first read it is.
template <int kRun>
__device__ void write_slots(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                            const FwpkmFound& found, int block) {
  __shared__ LongWrite
      rest;  // at most one: a slot with more than 32 reads is the last to begin here
  if (threadIdx.x == 0) {
    rest.count = 0;
  }
  __syncthreads();
  const int item = block * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  SlotReads reads;
  if (item < span.count * call.reads) {
    reads = slot_reads(call, span, groups.reads, item);
  }
  if (reads.count > 0) {
    const int64_t first = read_at(call, span, reads.first);
    const int found_chain = call.chain[first];
    const float* from = value_row(call, call.source[first], reads.slot);
    const int counted = call.official ? reads.count : reads.writing;
    const float share = 1.0f / static_cast<float>(max(1, counted));
    const bool writes = lane < reads.count && span.writes(reads.place(lane) / call.reads);
    const float scale = writes ? found.coefficients[reads.place(lane)] * share : 0.0f;
    __syncwarp();  // all lanes have the chain before one changes it
    const int chain = found_chain < 0 ? first_chain(call, reads, first) : found_chain;
    for (int i = lane; i < reads.count; i += 32) {
      const int place = reads.place(i);
      const int64_t read = read_at(call, span, place);
      call.chain[read] = chain;
      if (span.writes(place / call.reads)) {
        call.share[read] = share;
      }
    }
    const int row = new_row(call, span, reads);
    float* to = call.log + static_cast<int64_t>(row) * call.dv;
    if (reads.writing > 0 && lane == 0) {
      call.writes[static_cast<int64_t>(chain) * 3 + 2] = row;
    }
    __syncwarp();
    if (reads.count <= 32 && reads.writing > 0) {
      sum_few<kRun>(from, to, call.dv, __ballot_sync(kWholeWarp, writes), scale, found.errors,
                    reads.place(lane) / call.reads);
    } else if (reads.writing > 0 && lane == 0) {
      rest = {reads.list, from, to, share, reads.count, reads.first_writing};
    }
  }
  __syncthreads();
  if (rest.count > 0) {
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

template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    write_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmFound found,
                 FwpkmKeyWork keys, int marginal_blocks) {
  const int block = blockIdx.x;
  if (block < marginal_blocks) {
    const int item = block * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
    if (item < call.marginals * call.n) {
      find_marginal(call, span, groups, found.p, item, keys.pbar, keys.slope);
    }
    return;
  }
  write_slots<kRun>(call, span, groups, found, block - marginal_blocks);
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

// Parts of the sums that move the keys: a warp for each piece; the last block has the loss.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    move_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmFound found,
                FwpkmKeyWork keys, int blocks) {
  const int block = blockIdx.x;
  if (block == blocks) {
    addressing_loss(call, keys.pbar, call.addressing + span.number);
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
  const int64_t at = mine.of_all(call, book);
  const float push = call.addr_loss ? addressing_push(call, span, found.p, keys.slope,
                                                      at - mine.rank, book, mine.rank)
                                    : found.push[at];
  sum_piece<T, kRun, 4>(call, span, book, piece, mine, -push * slope_of(call, call.scores[at]),
                        call.keys, book * call.n + mine.id, keys.parts);
}

// The moved sub-keys, and what they were: a warp for each.
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    keep_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, const float* parts) {
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.books * call.n) {
    return;
  }
  const int book = item / call.n, id = item % call.n;
  const int begin = groups.start(call, book, id), end = groups.start(call, book, id + 1);
  if (begin == end) {
    return;
  }
  float* key = call.moved + static_cast<int64_t>(item) * call.half;
  float* old =
      call.key_rows == nullptr
          ? nullptr
          : call.key_rows +
                static_cast<int64_t>(old_key_place(call, span, groups, book, id)) * call.half;
  for (int first = 0; first < call.half; first += kFwpkmKeyGroups * 32 * kRun) {
    float sum[kFwpkmKeyGroups][kRun] = {};
    for_groups<kRun, kFwpkmKeyGroups>(first, call.half, [&](int g, int c) {
      load_run(key + c, sum[g]);
      if (old != nullptr) {
        store_wide(old + c, sum[g]);
      }
    });
    add_parts<kRun>(call, span, book, id, begin, end, parts, first, sum);
    for_groups<kRun, kFwpkmKeyGroups>(first, call.half,
                                      [&](int g, int c) { store_wide(key + c, sum[g]); });
  }
}

}  // namespace

void write_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                  const FwpkmFound& found, const FwpkmKeyWork& keys) {
  const unsigned marginals =
      keys.pbar == nullptr ? 0 : fwpkm_blocks(int64_t{call.marginals} * call.n);
  with_run(call, [&](auto run) {
    write_kernel<decltype(run)::value>
        <<<marginals + fwpkm_blocks(int64_t{span.count} * call.reads), kFwpkmThreads, 0,
           this_stream()>>>(call, span, groups, found, keys, static_cast<int>(marginals));
  });
  check_launch("fwpkm writing values");
}

void move_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
               const FwpkmFound& found, const FwpkmKeyWork& keys) {
  const unsigned blocks = fwpkm_blocks(int64_t{call.books} * pieces_of(call, span));
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    move_kernel<T, Run::value>
        <<<blocks + (keys.pbar == nullptr ? 0 : 1), kFwpkmThreads, 0, this_stream()>>>(
            call, span, groups, found, keys, static_cast<int>(blocks));
  });
  check_launch("fwpkm moving keys");
  with_run(call, [&](auto run) {
    keep_kernel<decltype(run)::value>
        <<<fwpkm_blocks(int64_t{call.books} * call.n), kFwpkmThreads, 0, this_stream()>>>(
            call, span, groups, keys.parts);
  });
  check_launch("fwpkm keeping keys");
}

}  // namespace fwpkm
