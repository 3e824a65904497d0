// What row_sums.cuh does, with dots, for rows in bf16 on tensor cores. A warp walks along a window
// of the sorted list as there, run by run (places that share an id), up to 16 places at a time.
//
// A row goes into a product as it lies in memory: 16 bytes of a lane, four words of two columns,
// are its A (mma.cuh); which word and which half meets which number is B's matter. Lane l has
// line = l / 4 and pair = l % 4 as below.
//
// Sums: the lane loads columns 8 line .. 8 line + 7 of 64, of place `pair` of four. Then A [m, k]
// has k = (place, half), the words 0 and 1 in rows m = line and line + 8, and 2 and 3 there too,
// but 8 columns on. A weight is the sum of two bf16, which keep 17 of a float's 24 bits; column n
// of B has one of the two (n / 4) where k's words (n / 2 % 2) and half (n % 2) are the same as n's,
// and zeros elsewhere. So every lane gets four columns that lie side by side, of one of the two
// sums that are added at the end of a run.
//
// Dots: the lane loads columns 8 pair .. 8 pair + 7 of 32, of place `line` of eight. B has words 0
// and 2 of the value in column 0, words 1 and 3 in column 1, and else zeros; the dot is
// D [line, 0] + D [line + 8, 1], which one lane has.
//
// All rows are loaded twice, 64 columns at a time; the second time they are in the L1 cache.
#pragma once

#include "ops/common/mma.cuh"
#include "ops/common/row_sums.cuh"

namespace fwpkm {

inline constexpr int kTileColumns = 64, kTileBytes = 2 * kTileColumns;
inline constexpr int kMostTiles = 8;    // to a row
inline constexpr int kTilePlaces = 16;  // that are multiplied together
inline constexpr int kRowParts = 2;     // in which both sums of a row meet
inline constexpr int kTilesAtOnce = kMostTiles / kRowParts;
inline constexpr int kRowColumns = kMostTiles * kTileColumns / 32;  // that a lane writes
// The second sum is in other banks than the first.
inline constexpr int kSumPitch = kTilesAtOnce * kTileColumns + 16;
inline constexpr int kRowTileBlocks = 4;  // that a processor shall hold at once

// A place as all lanes of a warp need it.
struct alignas(16) RowTilePlace {
  int64_t row;      // where its row begins, in bytes
  uint32_t weight;  // two bf16
  int32_t id;
};

// What a warp keeps in shared memory.
struct alignas(16) RowTileShared {
  RowTilePlace places[32];
  double squares[32];  // of each lane's numbers
  // Wanted too seldom to be in registers: which window this is and where it ends; whether its first
  // run came from the one before, its last goes on into the next, and squares are wanted.
  int window, end, came, goes_on, squared;
  union {
    float sums[2][kSumPitch];
    // Columns of B: words 0 and 2, or 1 and 3, of each 16 bytes; those of the first and the second
    // 32 columns side by side.
    uint2 value[kMostTiles][2][4][2];
  };
};

// The nearest bf16, and the nearest to what is left.
__device__ inline uint32_t in_two(float x) {
  const float first = to_float(from_float<bf16>(x));
  return pack_two(first, x - first);
}

// kTiles: tiles of a row, or 0 for any number up to kMostTiles.
template <typename Sum, int kTiles, bool kAdd>
__global__ void __launch_bounds__(kRowSumThreads, kRowTileBlocks)
    row_tile_kernel(RowSumPlan s, RowSumTerms<bf16, Sum> terms) {
  constexpr unsigned kAll = 0xffffffffu;
  __shared__ RowTileShared shared[kRowSumThreads / 32];
  __shared__ uint4 zeros[kMostTiles * kTileBytes / 16];
  for (int i = static_cast<int>(threadIdx.x); i < kMostTiles * kTileBytes / 16;
       i += kRowSumThreads) {
    zeros[i] = {0, 0, 0, 0};
  }
  __syncthreads();
  const auto w = static_cast<int>(blockIdx.x * (kRowSumThreads / 32) + threadIdx.x / 32);
  if (w >= s.windows) {
    return;
  }
  const WindowEdge front(s, w), back(s, w + 1);
  const auto begin = static_cast<int>(front.at);
  if (begin == back.at) {
    leave_squares(s, terms.squares, w, 0);
    return;
  }
  RowTileShared& held = shared[threadIdx.x / 32];
  const int lane = threadIdx.x % 32, line = lane / 4, pair = lane % 4;
  const int tiles = kTiles > 0 ? kTiles : static_cast<int>(s.width / kTileColumns);
  const int width = tiles * kTileColumns;
  // fn(p, first column) for the 8 columns that this lane writes of each part of a row.
  const auto for_parts = [&](auto&& fn) {
#pragma unroll
    for (int p = 0; p < kRowParts; ++p) {
      fn(p, (p * 32 + lane) * 8);
    }
  };
  // Which of the bytes of a weight, or zeros (4), are in this lane's registers of B.
  uint32_t picks[2];
  {
    const uint32_t term = line / 4 * 2, both = (term + 1) << 4 | term;
    const uint32_t pick = line % 2 == 0 ? 0x4400u | both : both << 8 | 0x44u;
    picks[0] = line / 2 % 2 == 0 ? pick : 0x4444u;
    picks[1] = line / 2 % 2 == 1 ? pick : 0x4444u;
  }
  const uint4* const value =
      line < 2 ? reinterpret_cast<const uint4*>(held.value[0][line][pair]) : zeros;

  held.squares[lane] = 0;
  if (lane == 0) {
    held.window = w;
    held.squared = terms.squares != nullptr ? 1 : 0;
    held.end = static_cast<int>(back.at);
    held.came = front.divides ? 1 : 0;
    held.goes_on = back.divides ? 1 : 0;
  }
  float sum[kMostTiles][4] = {};
  int32_t id = s.ids[begin];
  const auto load_value = [&](uint4(&raw)[kRowParts], int32_t of) {
    for_parts([&](int p, int column) {
      raw[p] = __ldcs(reinterpret_cast<const uint4*>(terms.values + int64_t{of} * width +
                                                     min(column, width - 8)));
    });
  };
  const auto hold_value = [&](const uint4(&raw)[kRowParts]) {
    __syncwarp();
    for_parts([&](int p, int column) {
      if (column < width) {
        const int tile = column / kTileColumns, second = lane / 4 % 2;
        held.value[tile][0][pair][second] = {raw[p].x, raw[p].z};
        held.value[tile][1][pair][second] = {raw[p].y, raw[p].w};
      }
    });
    __syncwarp();
  };
  const auto write_sums = [&](bool last) {
    const int came = held.came;
    const bool whole = (came | (last ? held.goes_on : 0)) == 0;
    float* part = s.partial + (2 * int64_t{held.window} + 1 - came) * width;
    float all[kRowColumns];
    for_parts([&](int p, int) {
      __syncwarp();  // what was there has been read
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        float(&x)[4] = sum[p * kTilesAtOnce + i];
        store_run(held.sums[pair / 2] + i * kTileColumns + line * 8 + pair % 2 * 4, x);
        load_run(reinterpret_cast<const float*>(zeros + p * kTilesAtOnce + i),
                 x);  // a fourth of the instructions
      }
      __syncwarp();
      float x[8], rest[8];
      load_run(held.sums[0] + lane * 8, x);
      load_run(held.sums[1] + lane * 8, rest);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        all[p * 8 + i] = x[i] + rest[i];
      }
    });
    for_parts([&](int p, int column) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = all[p * 8 + i] = column < width ? all[p * 8 + i] : 0;
      }
      if (column < width && whole) {
        put_once(terms.to + (int64_t{id} * width + column), x, kAdd);
      } else if (column < width) {
        store_run(part + column, x);
      }
    });
    if (!kAdd && whole && held.squared != 0) {
      held.squares[lane] += sum_of_squares(all);
    }
    if (lane == 0) {
      held.came = 0;
    }
  };

  // Holds the next up to 32 places. A run that may go on behind them is left to the next time,
  // unless it is all of them.
  const auto hold_places = [&](int first, int& taken, unsigned& starting) {
    const int end = held.end;
    const SortedPlace own(s, terms.weights, first + lane, end);
    const int32_t left = __shfl_up_sync(kAll, own.id, 1);
    const bool starts = lane > 0 && own.id != left;
    starting = __ballot_sync(kAll, starts);
    taken = min(32, end - first);
    if (first + taken < end && starting != 0) {
      taken = 31 - __clz(static_cast<int>(starting));
    }
    if (starts) {
      if constexpr (kAdd) {
        const Sum* row = terms.to + int64_t{own.id} * width;
        prefetch_run<kMostTiles * kTileColumns>(row, row + width);
      }
      prefetch_once(terms.values + int64_t{own.id} * width, width);
    }
    __syncwarp();  // the places before have been read
    const uint32_t shared_row = terms.sharing.quotient(static_cast<uint32_t>(own.place));
    held.places[lane] = {terms.row_at[shared_row] * static_cast<int64_t>(sizeof(bf16)),
                         in_two(own.weight), own.id};
    __syncwarp();
  };

  // Places at .. at + count - 1 of those held, of one run; count <= 4 kFours. Behind the last one
  // it comes again, without a weight.
  const auto multiply = [&]<int kFours>(std::integral_constant<int, kFours>, int first, int at,
                                        int count) {
    constexpr int kEights = (kFours + 1) / 2;
    const int last = at + count - 1;
    const auto* const rows = reinterpret_cast<const std::byte*>(terms.rows);
    const std::byte* along[kEights];
    const std::byte* across[kFours];
    uint32_t weight[kFours][2];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      along[e] = rows + held.places[min(at + e * 8 + line, last)].row + pair * 16;
    }
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const int i = at + f * 4 + pair;
      const RowTilePlace place = held.places[min(i, last)];
      across[f] = rows + place.row + line * 16;
      const uint32_t both = i <= last ? place.weight : 0;
      weight[f][0] = __byte_perm(both, 0, picks[0]);
      weight[f][1] = __byte_perm(both, 0, picks[1]);
    }
    float dot[kEights][4] = {};
    const auto load = [](const std::byte* from) { return *reinterpret_cast<const uint4*>(from); };
#pragma unroll
    for (int tile = 0; tile < kMostTiles; ++tile) {
      if (tile < tiles) {
        const uint4 columns = value[tile * (kTileBytes / 16)];
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          const std::byte* from = along[e] + tile * kTileBytes;
          const uint4 one = load(from), two = load(from + kTileBytes / 2);
          mma(dot[e], {one.x, one.y, one.z, one.w}, columns.x, columns.y);
          mma(dot[e], {two.x, two.y, two.z, two.w}, columns.z, columns.w);
        }
#pragma unroll
        for (int f = 0; f < kFours; ++f) {
          const uint4 row = load(across[f] + tile * kTileBytes);
          mma(sum[tile], {row.x, row.y, row.z, row.w}, weight[f][0], weight[f][1]);
        }
      }
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (pair == 0 && e * 8 + line < count) {
        __stcs(terms.dots + first + at + e * 8 + line, dot[e][0] + dot[e][3]);
      }
    }
  };

  {
    uint4 raw[kRowParts];
    load_value(raw, id);
    hold_value(raw);
  }
  int first = begin, at = 0, taken = 0;  // places of the list before those held; of those, and all
  unsigned starting = 0;                 // those held that begin a run
  for (;;) {
    if (at == taken) {
      first += taken;
      at = taken = 0;
      if (first < held.end) {
        hold_places(first, taken, starting);
      }
    }
    const bool done = at == taken;
    const int32_t next = held.places[at].id;
    if (done || next != id) {
      uint4 raw[kRowParts];
      load_value(raw, next);
      write_sums(done);
      if (done) {
        break;
      }
      hold_value(raw);
      id = next;
    }
    const unsigned behind = starting & (kAll << at << 1);
    const int stop = behind != 0 ? min(taken, __ffs(static_cast<int>(behind)) - 1) : taken;
    const int count = min(kTilePlaces, stop - at);
    if (count > 12) {
      multiply(std::integral_constant<int, 4>(), first, at, count);
    } else if (count > 8) {
      multiply(std::integral_constant<int, 3>(), first, at, count);
    } else if (count > 4) {
      multiply(std::integral_constant<int, 2>(), first, at, count);
    } else {
      multiply(std::integral_constant<int, 1>(), first, at, count);
    }
    at += count;
  }
  leave_squares(s, terms.squares, held.window, held.squares[lane]);
}

// add_shared_rows with dots, for rows of whole tiles, all in runs of 16 bytes.
template <typename Sum>
void add_rows_in_tiles(const RowSumPlan& s, RowSumTerms<bf16, Sum> terms, const char* op) {
  const auto launch = [&](auto whole, auto other) {
    const auto kernel = s.width == kMostTiles * kTileColumns ? whole : other;
    kernel<<<static_cast<unsigned>(ceil_div(s.windows, kRowSumThreads / 32)), kRowSumThreads, 0,
             this_stream()>>>(s, terms);
    check_launch(op);
  };
  if (terms.add) {
    terms.squares = nullptr;
    launch(&row_tile_kernel<Sum, kMostTiles, true>, &row_tile_kernel<Sum, 0, true>);
  } else {
    launch(&row_tile_kernel<Sum, kMostTiles, false>, &row_tile_kernel<Sum, 0, false>);
  }
  finish_shared_rows<8>(s, terms, op);
}

}  // namespace fwpkm
