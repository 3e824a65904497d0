#include "ops/fwpkm/cuda_group.cuh"

#include <algorithm>
#include <bit>

#include "ops/fwpkm/cuda_keys.cuh"

namespace fwpkm {
namespace {

// Few tiles that much waits for: many threads each, but room for a block where others run.
constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kRounds = kFwpkmTile / kSortThreads;
constexpr int kDigit = 6;  // bits that a pass sorts by

int bits_below(int64_t limit) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(limit - 1))));
}

// One stable pass of a tile's sort by `bits` bits of ids from `shift` on: `order` are places in
// ids. Each warp counts the digits of its own stretch, in the order of the stretch; a sum over
// digits, then warps, says where each one puts its own.
__device__ void sort_pass(const uint32_t* ids, const uint16_t* order, uint16_t* sorted, int count,
                          int shift, int bits) {
  constexpr int kCounts = kSortWarps << kDigit;
  static_assert(kCounts == 2 * kSortThreads && kSortWarps <= 32);
  // One number more for each digit: a warp's counters then lie in different banks.
  __shared__ uint32_t counts[kCounts + kCounts / kSortWarps];
  __shared__ uint32_t totals[kSortWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t lower = (1u << lane) - 1;
  uint32_t* pair = counts + 2 * threadIdx.x + 2 * threadIdx.x / kSortWarps;
  pair[0] = pair[1] = 0;
  __syncthreads();
  uint32_t ranks[kRounds], digits[kRounds];
  uint16_t places[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int i = (warp * kRounds + round) * 32 + lane;
    places[round] = i < count ? order[i] : uint16_t{0};
    digits[round] = i < count ? ids[places[round]] >> shift & ((1u << bits) - 1) : 0;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const bool here = (warp * kRounds + round) * 32 + lane < count;
    unsigned same = __ballot_sync(kWholeWarp, here);
#pragma unroll
    for (int bit = 0; bit < kDigit; ++bit) {  // those above `bits` are 0 in all
      const bool set = (digits[round] >> bit & 1) != 0;
      const unsigned mask = __ballot_sync(kWholeWarp, set);
      same &= set ? mask : ~mask;
    }
    uint32_t* counter = counts + digits[round] * (kSortWarps + 1) + warp;
    const uint32_t before = *counter;
    ranks[round] = before + __popc(same & lower);
    __syncwarp();
    if (here && (same & lower) == 0) {
      *counter = before + __popc(same);
    }
    __syncwarp();
  }
  __syncthreads();
  const uint32_t a = pair[0], b = pair[1];
  uint32_t sum = a + b;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, sum, step);
    sum += lane >= step ? other : 0;
  }
  if (lane == 31) {
    totals[warp] = sum;
  }
  __syncthreads();
  sum += __reduce_add_sync(kWholeWarp, lane < warp ? totals[lane] : 0u);
  pair[0] = sum - a - b;
  pair[1] = sum - b;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if ((warp * kRounds + round) * 32 + lane < count) {
      sorted[counts[digits[round] * (kSortWarps + 1) + warp] + ranks[round]] = places[round];
    }
  }
  __syncthreads();
}

// Where the slots of each first sub-key begin in a sorted tile, whose ids are id_at(i).
template <typename IdAt>
__device__ void find_starts(int n, int count, int32_t* starts, IdAt&& id_at) {
  for (int id = threadIdx.x; id <= n; id += kSortThreads) {
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (id_at(middle) < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[id] = low;
  }
}

// A block for each tile of the owners' lists.
__global__ void __launch_bounds__(kSortThreads, 3)
    sort_kernel(FwpkmCall call, FwpkmLists lists, FwpkmSpan span) {
  __shared__ uint32_t ids[kFwpkmTile];
  __shared__ uint16_t orders[2][kFwpkmTile];
  const FwpkmGroups groups = lists.of(call, span);
  const int tiles = lists.read_tiles, index = static_cast<int>(blockIdx.x);
  const int list = index / tiles, tile = index % tiles;
  const int length = span.count / call.owners * call.reads;
  // A shorter chunk has fewer tiles; of those that are not there the starts count.
  const int begin = tile * kFwpkmTile, count = max(0, min(kFwpkmTile, length - begin));
  const auto place_at = [&](int i) { return list * length + begin + i; };
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    const int place = place_at(i);
    ids[i] = call.slots[static_cast<int64_t>(span.token(place / call.reads)) * call.reads +
                        place % call.reads];
    orders[0][i] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  const int passes = (lists.slot_bits + kDigit - 1) / kDigit;
  const int bits = (lists.slot_bits + passes - 1) / passes;
  for (int pass = 0; pass < passes && count > 0; ++pass) {
    sort_pass(ids, orders[pass % 2], orders[(pass + 1) % 2], count, pass * bits, bits);
  }
  const uint16_t* order = orders[passes % 2];
  uint64_t* to = groups.read_tiles + static_cast<int64_t>(list) * length + begin;
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    to[i] = element_of(static_cast<int>(ids[order[i]]), place_at(order[i]));
  }
  if (tiles > 1) {
    find_starts(call.n, count, groups.read_starts + static_cast<int64_t>(index) * (call.n + 1),
                [&](int i) { return static_cast<int>(ids[order[i]]) / call.n; });
  }
}

// Where an element of an owner's tiles belongs in its list: behind all that are below it in any
// tile. Its slot's first sub-key leaves few in each to be looked at, and the tiles are searched
// together: none waits for another's loads. A thread for each element.
__global__ void __launch_bounds__(kFwpkmThreads)
    merge_kernel(FwpkmCall call, FwpkmLists lists, FwpkmSpan span) {
  wait_for_earlier();
  constexpr int kTogether = 8;
  const int i = static_cast<int>(blockIdx.x) * kFwpkmThreads + static_cast<int>(threadIdx.x);
  if (i >= span.count * call.reads) {
    return;
  }
  const FwpkmGroups groups = lists.of(call, span);
  const int tiles = lists.read_tiles;
  const int length = span.count / call.owners * call.reads;
  const int owner = i / length, own = i % length / kFwpkmTile;
  const uint64_t* list = groups.read_tiles + static_cast<int64_t>(owner) * length;
  const uint64_t element = groups.read_tiles[i];
  const int32_t* starts = groups.read_starts + static_cast<int64_t>(owner) * tiles * (call.n + 1) +
                          id_of(element) / call.n;
  int position = i % length % kFwpkmTile;
  for (int first = 0; first < tiles; first += kTogether) {
    int low[kTogether], high[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int tile = first + u;
      const bool other = tile < tiles && tile != own;
      const int32_t* start = starts + static_cast<int64_t>(min(tile, tiles - 1)) * (call.n + 1);
      low[u] = start[0];
      high[u] = start[1];
      low[u] = other ? low[u] : 0;
      high[u] = other ? high[u] : 0;
    }
    bool more = true;
    while (more) {
      more = false;
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int middle = (low[u] + high[u]) / 2;
        const int at = min(first + u, tiles - 1) * kFwpkmTile + middle;
        const bool below = list[min(at, length - 1)] < element;
        const bool open = low[u] < high[u];
        low[u] = open && below ? middle + 1 : low[u];
        high[u] = open && !below ? middle : high[u];
        more = more || low[u] < high[u];
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      position += low[u];
    }
  }
  groups.reads[static_cast<int64_t>(owner) * length + position] = element;
}

}  // namespace

FwpkmKept::FwpkmKept(Carver* carver, const FwpkmCall& call) {
  const int64_t tokens = int64_t{call.batch} * call.time;
  const int64_t selections = call.keys_move ? tokens * call.books * call.k : 0;
  reads = carver->take<uint64_t>(call.write ? tokens * call.reads : 0);
  entries = carver->take<uint64_t>(selections);
  starts =
      carver->take<int32_t>(selections > 0 ? int64_t{call.chunks} * call.books * (call.n + 1) : 0);
  p = pbar = slope = nullptr;
  if (call.addr_loss) {
    const int64_t marginals = selections > 0 ? int64_t{call.chunks} * call.marginals * call.n : 0;
    p = carver->take<float>(selections);
    pbar = carver->take<float>(marginals);
    slope = carver->take<float>(marginals);
  }
}

void FwpkmLists::take(Carver* carver, const FwpkmCall& call, const FwpkmKept& kept, bool sorted) {
  const int64_t chunk = call.batch * longest_span(call);
  const int64_t tokens = int64_t{call.batch} * call.time, chunks = call.chunks;
  if (call.write) {
    read_tiles = static_cast<int>(ceil_div(chunk / call.owners * call.reads, kFwpkmTile));
    slot_bits = bits_below(static_cast<int64_t>(call.n) * call.n);
  }
  first = {kept.reads, kept.entries, kept.reads, kept.starts, nullptr};
  // A list of one tile is sorted when its tile is.
  if (read_tiles > 1 && !sorted) {
    first.read_tiles = carver->take<uint64_t>(tokens * call.reads);
    first.read_starts = carver->take<int32_t>(chunks * call.owners * read_tiles * (call.n + 1));
  }
}

void group_reads(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmSpan& span) {
  launch(false, &sort_kernel, static_cast<unsigned>(call.owners * lists.read_tiles), kSortThreads,
         0, "fwpkm sorting tiles", call, lists, span);
  if (lists.read_tiles > 1) {
    const int64_t reads = int64_t{span.count} * call.reads;
    launch_next(&merge_kernel, static_cast<unsigned>(ceil_div(reads, kFwpkmThreads)), kFwpkmThreads,
                0, "fwpkm merging tiles", call, lists, span);
  }
}

}  // namespace fwpkm
