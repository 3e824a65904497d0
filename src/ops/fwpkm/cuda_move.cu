// Moving sub-keys after a chunk, each with all that its selections push.
#include "ops/fwpkm/cuda_write.cuh"

namespace fwpkm {
namespace {

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

// How a selection moves its sub-key.
__device__ SelectionScale move_by(const FwpkmCall& call, const FwpkmSpan& span,
                                  const FwpkmFound& found, const FwpkmMarginals& marginals,
                                  int book, const Selection& one) {
  const int64_t at = one.of_all(call, book);
  const float push = call.addr_loss ? addressing_push(call, span, marginals.p, marginals.slope,
                                                      at - one.rank, book, one.rank)
                                    : found.push[at];
  return {-push * slope_of(call, call.scores[at])};
}

// The sub-key that a warp moves; none where there are more warps, or where nobody selected it.
struct MovedKey {
  int book, id;
  int begin, end;  // its selections
  bool here;
  float *key, *old;  // old: where it is kept as it was, or null
  float norm = 0;

  __device__ MovedKey(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                      const OwnKeys& own)
      : book(own.book) {
    const int warp = threadIdx.x / 32;
    id = own.first + min(warp, own.count - 1);
    begin = groups.start(call, book, id);
    end = groups.start(call, book, id + 1);
    here = warp < own.count && begin < end;
    key = call.moved + (static_cast<int64_t>(book) * call.n + id) * call.half;
    old = call.key_rows == nullptr || !here
              ? nullptr
              : call.key_rows +
                    static_cast<int64_t>(old_key_place(call, span, groups, book, id)) * call.half;
  }
  // Keeps columns from `first` on as they were.
  template <int kRun>
  __device__ void keep(int first, int half, const float (&x)[kFwpkmKeyGroups][kRun]) const {
    if (old != nullptr) {
      for_groups<kRun, kFwpkmKeyGroups>(first, half,
                                        [&](int g, int c) { store_wide(old + c, x[g]); });
    }
  }
  // Stores the new ones, also as products want them.
  template <int kRun>
  __device__ void put(const FwpkmCall& call, const FwpkmProducts& products, int first, int half,
                      const float (&x)[kFwpkmKeyGroups][kRun]) {
    for_groups<kRun, kFwpkmKeyGroups>(first, half, [&](int g, int c) {
      store_wide(key + c, x[g]);
      norm = dot_run(x[g], x[g], norm);
      if (call.given_ids == nullptr && call.narrow) {
        products.pack_key(call, book, id, c, x[g]);
      }
    });
  }
  __device__ void put_norm(const FwpkmCall& call, const FwpkmProducts& products) {
    norm = warp_sum(norm);
    if (here && call.given_ids == nullptr && threadIdx.x % 32 == 0) {
      products.norms[static_cast<int64_t>(book) * products.padded + id] = norm;
    }
  }
};

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
  MovedKey mine(call, span, groups, own);
  for (int first = 0; first < half; first += OwnRows<kRun>::kColumns) {
    __syncthreads();  // the columns before are done
    if (mine.here) {
      keys.fetch(warp, mine.key, first, half);
    }
    __syncthreads();
    sum_share<T, kRun, false>(
        call, span, groups, own, all, first, half, call.dot ? nullptr : &keys, &parts,
        [&](const Selection& one) { return move_by(call, span, found, marginals, own.book, one); });
    __syncthreads();
    let_next_start();  // the next chunk's queries can be fetched
    if (!mine.here) {
      continue;
    }
    float sum[kGroups][kRun] = {};
    keys.get(warp, first, half, sum);
    mine.keep(first, half, sum);
    parts.add(all, mine.begin, mine.end, warp, first, half, sum);
    mine.put(call, products, first, half, sum);
  }
  mine.put_norm(call, products);
}

}  // namespace

void move_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
               const FwpkmFound& found, const FwpkmMarginals& marginals,
               const FwpkmProducts& products) {
  const unsigned blocks = key_blocks(call, kFwpkmOwn);
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    const bool whole = call.half == OwnRows<Run::value>::kColumns;
    launch_next(whole ? &move_kernel<T, Run::value, true> : &move_kernel<T, Run::value, false>,
                blocks + (marginals.p == nullptr ? 0 : 1), kFwpkmThreads, 0, "fwpkm moving keys",
                call, span, groups, found, marginals, products, static_cast<int>(blocks));
  });
}

}  // namespace fwpkm
