#include "ops/fwpkm/cuda_group.cuh"

#include <algorithm>
#include <bit>

namespace fwpkm {
namespace {

int bits_below(int64_t limit) {
  return std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(limit - 1))));
}

__global__ void __launch_bounds__(kFwpkmThreads)
    sort_kernel(FwpkmCall call, FwpkmLists lists, int tiles) {
  const int block = blockIdx.x;
  sort_tile(call, lists, FwpkmSpan(call, block / tiles), block % tiles);
}

// How many elements of list[0..count) are below `element`.
__device__ int count_below(const uint64_t* list, int count, uint64_t element) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle] < element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where an element of an owner's tiles belongs in its list.
__device__ void merge_read(const FwpkmCall& call, const FwpkmGroups& groups, const FwpkmSpan& span,
                           int i) {
  const int length = span.count / call.owners * call.reads;
  const int64_t begin = static_cast<int64_t>(i / length) * length;
  const uint64_t* tiles = groups.read_tiles + begin;
  const int at = i % length, own = at / kFwpkmTile;
  const uint64_t element = tiles[at];
  int position = at % kFwpkmTile;
  for (int tile = 0; tile * kFwpkmTile < length; ++tile) {
    if (tile != own) {
      position += count_below(tiles + tile * kFwpkmTile,
                              min(kFwpkmTile, length - tile * kFwpkmTile), element);
    }
  }
  groups.reads[begin + position] = element;
}

// The same for a codebook's, whose tiles know where each sub-key starts.
__device__ void merge_entry(const FwpkmCall& call, const FwpkmGroups& groups, const FwpkmSpan& span,
                            int tiles, int64_t i) {
  const int length = span.count * call.k;
  const int book = static_cast<int>(i / length), at = static_cast<int>(i % length);
  const uint64_t element = groups.entry_tiles[i];
  const int32_t* starts =
      groups.tile_starts + static_cast<int64_t>(book) * tiles * (call.n + 1) + id_of(element);
  int position = at % kFwpkmTile;
  for (int tile = 0; tile < tiles; ++tile, starts += call.n + 1) {
    const int own = at / kFwpkmTile;
    position += tile == own ? 0 : starts[tile < own ? 1 : 0];
  }
  groups.entries[static_cast<int64_t>(book) * length + position] = element;
}

__device__ void merge_start(const FwpkmCall& call, const FwpkmGroups& groups, int tiles, int i) {
  const int book = i / (call.n + 1), id = i % (call.n + 1);
  int start = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    start += groups.tile_starts[(static_cast<int64_t>(book) * tiles + tile) * (call.n + 1) + id];
  }
  groups.starts[i] = start;
}

__global__ void __launch_bounds__(kFwpkmThreads)
    merge_kernel(FwpkmCall call, FwpkmLists lists, int first, int blocks) {
  const int block = blockIdx.x;  // `blocks` for each chunk
  const FwpkmSpan span(call, first + block / blocks);
  const FwpkmGroups groups = lists.of(call, span);
  const int64_t reads = lists.read_tiles > 1 ? static_cast<int64_t>(span.count) * call.reads : 0;
  const bool by_key = lists.entry_tiles > 1;
  const int64_t entries = by_key ? static_cast<int64_t>(span.count) * call.books * call.k : 0;
  const int64_t starts = by_key ? static_cast<int64_t>(call.books) * (call.n + 1) : 0;
  int64_t i = block % blocks * int64_t{kFwpkmThreads} + threadIdx.x;
  if (i < reads) {
    merge_read(call, groups, span, static_cast<int>(i));
  } else if (i -= reads; i < entries) {
    merge_entry(call, groups, span, lists.entry_tiles, i);
  } else if (i -= entries; i < starts) {
    merge_start(call, groups, lists.entry_tiles, static_cast<int>(i));
  }
}

}  // namespace

void FwpkmLists::take(Carver* carver, const FwpkmCall& call, bool by_slot, bool by_key,
                      bool all_chunks) {
  all = all_chunks;
  const int64_t length = std::min(call.time, call.chunk), chunk = call.batch * length;
  const int64_t tokens = all ? static_cast<int64_t>(call.batch) * call.time : chunk;
  const int64_t chunks = all ? call.chunks : 1;
  if (by_slot) {
    read_tiles = static_cast<int>(ceil_div(chunk / call.owners * call.reads, kFwpkmTile));
    slot_bits = bits_below(static_cast<int64_t>(call.n) * call.n);
  }
  if (by_key) {
    entry_tiles = static_cast<int>(ceil_div(chunk * call.k, kFwpkmTile));
    id_bits = bits_below(call.n);
  }
  // A list of one tile is sorted when its tile is.
  const auto take = [&](int tiles, int64_t count, uint64_t** tiled, uint64_t** merged) {
    *tiled = carver->take<uint64_t>(tiles > 0 ? count : 0);
    *merged = tiles > 1 ? carver->take<uint64_t>(count) : *tiled;
  };
  take(read_tiles, tokens * call.reads, &first.read_tiles, &first.reads);
  take(entry_tiles, tokens * call.books * call.k, &first.entry_tiles, &first.entries);
  const int64_t starts = chunks * call.books * (call.n + 1);
  first.tile_starts = carver->take<int32_t>(starts * entry_tiles);
  first.starts = entry_tiles > 1 ? carver->take<int32_t>(starts) : first.tile_starts;
}

void merge_tiles(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmSpan& span,
                 int chunks) {
  int64_t items = lists.read_tiles > 1 ? static_cast<int64_t>(span.count) * call.reads : 0;
  if (lists.entry_tiles > 1) {
    items += static_cast<int64_t>(call.books) * (int64_t{span.count} * call.k + call.n + 1);
  }
  if (items == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(items, kFwpkmThreads));
  merge_kernel<<<blocks* static_cast<unsigned>(chunks), kFwpkmThreads, 0, this_stream()>>>(
      call, lists, span.number, static_cast<int>(blocks));
  check_launch("fwpkm merging tiles");
}

void group_all(const FwpkmCall& call, const FwpkmLists& lists) {
  const int tiles = lists.tiles(call);
  if (tiles == 0) {
    return;
  }
  sort_kernel<<<static_cast<unsigned>(tiles * call.chunks), kFwpkmThreads, 0, this_stream()>>>(
      call, lists, tiles);
  check_launch("fwpkm sorting tiles");
  merge_tiles(call, lists, FwpkmSpan(call, 0), call.chunks);
}

}  // namespace fwpkm
