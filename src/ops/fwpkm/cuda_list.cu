// Selections grouped by sub-key, from what tiles of tokens selected.
#include "ops/fwpkm/cuda_group.cuh"
#include "ops/fwpkm/cuda_keys.cuh"

namespace fwpkm {
namespace {

constexpr int kListThreads = 512;
constexpr int kListWarps = kListThreads / 32;
constexpr int kListTiles = 4;  // whose selections a block puts into their lists

// A block for each tile of a codebook.
__global__ void __launch_bounds__(kFwpkmThreads)
    tally_kernel(FwpkmCall call, FwpkmSpan span, FwpkmTally tally, const float* p) {
  extern __shared__ __align__(16) unsigned long long masks[];
  const int book = static_cast<int>(blockIdx.x) % call.books;
  const int number = static_cast<int>(blockIdx.x) / call.books, first = number * kFwpkmTileTokens;
  const int count = min(kFwpkmTileTokens, span.count - first);
  for (int id = threadIdx.x; id < call.n; id += kFwpkmThreads) {
    masks[id] = 0;
  }
  __syncthreads();
  const auto place = [&](int i) { return selections_at(call, span.token(first + i), book); };
  for (int s = threadIdx.x; s < count * call.k; s += kFwpkmThreads) {
    const int i = s / call.k;
    const int64_t at = place(i) + s % call.k;
    tally.add(call, book, i, call.ids[at], p == nullptr ? 0.0f : p[at], masks);
  }
  __syncthreads();
  tally.store(call, span, book, number, masks,
              [&](int i, int r) { return call.ids[place(i) + r]; });
}

// The sum over the threads before this one; `all`: over all of the block.
__device__ int sum_before(int x, int* all) {
  __shared__ int totals[kListWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    totals[warp] = sum;
  }
  __syncthreads();
  const int total = lane < kListWarps ? totals[lane] : 0;
  *all = static_cast<int>(__reduce_add_sync(kWholeWarp, static_cast<unsigned>(total)));
  const int earlier = lane < warp ? total : 0;
  return sum - x + static_cast<int>(__reduce_add_sync(kWholeWarp, static_cast<unsigned>(earlier)));
}

// A block puts the selections of some tiles into a codebook's list. Each finds out for itself where
// all sub-keys begin. The blocks also share the marginals.
__global__ void __launch_bounds__(kListThreads, 3)
    list_kernel(FwpkmCall call, FwpkmGroups groups, FwpkmSpan span, FwpkmTally tally,
                FwpkmMarginals marginals) {
  wait_for_earlier();
  __shared__ int next[kListTiles][kListThreads];
  const int tiles = tiles_of(span), blocks = (tiles + kListTiles - 1) / kListTiles;
  const int book = static_cast<int>(blockIdx.x) / blocks;
  const int block = static_cast<int>(blockIdx.x) % blocks, first_tile = block * kListTiles;
  const int own_tiles = min(kListTiles, tiles - first_tile);
  const int first = first_tile * kFwpkmTileTokens;
  const int selections =
      (min((first_tile + own_tiles) * kFwpkmTileTokens, span.count) - first) * call.k;
  const uint8_t* counts = tally.counts + static_cast<int64_t>(book) * tiles * call.n;
  uint64_t* list = groups.entries + static_cast<int64_t>(book) * span.count * call.k;
  int32_t* starts = groups.starts + static_cast<int64_t>(book) * (call.n + 1);
  int start = 0;  // of the sub-keys that a round of the loop has
  for (int base = 0; base < call.n; base += kListThreads) {
    const int id = base + static_cast<int>(threadIdx.x);
    int total = 0, before = 0, own[kListTiles] = {};
    if (id < call.n) {
#pragma unroll
      for (int u = 0; u < kListTiles; ++u) {
        own[u] = counts[static_cast<int64_t>(first_tile + min(u, own_tiles - 1)) * call.n + id];
      }
#pragma unroll 16
      for (int tile = 0; tile < tiles; ++tile) {
        const int count = counts[static_cast<int64_t>(tile) * call.n + id];
        total += count;
        before += tile < first_tile ? count : 0;
      }
    }
    int all = 0;
    const int begin = start + sum_before(total, &all);
    int at = begin + before;
#pragma unroll
    for (int u = 0; u < kListTiles; ++u) {
      next[u][threadIdx.x] = at;
      at += own[u];
    }
    if (block == 0 && id < call.n) {
      starts[id] = begin;
    }
    start += all;
    __syncthreads();
#pragma unroll 4
    for (int s = threadIdx.x; s < selections; s += kListThreads) {
      const int j = first + s / call.k, rank = s % call.k;
      const int selected = call.ids[selections_at(call, span.token(j), book) + rank];
      const int earlier = tally.before[selections_at(call, j, book) + rank];
      if (selected >= base && selected < base + kListThreads) {
        list[next[j / kFwpkmTileTokens - first_tile][selected - base] + earlier] =
            element_of(selected, j * call.k + rank);
      }
    }
    __syncthreads();
  }
  if (block == 0 && threadIdx.x == 0) {
    starts[call.n] = start;
  }
  if (marginals.p != nullptr && book < call.marginals) {
    const int end = static_cast<int>(static_cast<int64_t>(call.n) * (block + 1) / blocks);
    for (int id = static_cast<int>(static_cast<int64_t>(call.n) * block / blocks + threadIdx.x);
         id < end; id += kListThreads) {
      const int item = book * call.n + id;
      const auto mean = static_cast<float>(static_cast<double>(tally.sums[item]) *
                                           FwpkmTally::kUnit / marginal_tokens(call, span));
      tally.sums[item] = 0;
      marginals.pbar[item] = mean;
      marginals.slope[item] = marginal_slope(mean);
    }
  }
}

}  // namespace

void tally_selections(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmTally& tally,
                      const float* p) {
  const size_t bytes = static_cast<size_t>(call.n) * sizeof(unsigned long long);
  launch(false, &tally_kernel, static_cast<unsigned>(tiles_of(span) * call.books), kFwpkmThreads,
         bytes, "fwpkm counting selections", call, span, tally, p);
}

void group_selections(const FwpkmCall& call, const FwpkmGroups& groups, const FwpkmSpan& span,
                      const FwpkmTally& tally, const FwpkmMarginals& marginals, bool next) {
  const auto blocks = static_cast<unsigned>(call.books * ceil_div(tiles_of(span), kListTiles));
  launch(next, &list_kernel, blocks, kListThreads, 0, "fwpkm grouping selections", call, groups,
         span, tally, marginals);
}

}  // namespace fwpkm
