// Sums of rows that share a number (a token of the vocabulary, a slot of a memory), without
// atomics. Places are sorted by number; a warp walks along a window of the sorted list and adds up
// one number after the other, in the order of places. Runs that reach into more than two windows
// stay in the workspace and are joined afterwards, in the order of windows: a frequent number costs
// no more than a rare one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cub/device/device_radix_sort.cuh>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "ops/common/carver.h"
#include "ops/common/device.cuh"

namespace fwpkm {

inline constexpr int kRowSumThreads = 128;
inline constexpr int64_t kMostRowWindows = 16384;

// The sorted list, and what sums of rows of `width` floats need besides.
struct RowSumPlan {
  int64_t count, width;
  int64_t window, windows;  // places in a window, and how many there are
  int32_t* numbers;         // 0 .. count-1
  int32_t *ids, *places;    // sorted by id, then place
  float* partial;  // [windows, 2, width]: the run that came from the window before, and the one
                   // that begins here and goes on into the next
  std::byte* sort;
  size_t sort_bytes;

  RowSumPlan(int64_t places_count, int64_t row_width, Carver& carver)
      : RowSumPlan(places_count, row_width, carver, carver) {}
  // With the list elsewhere.
  RowSumPlan(int64_t places_count, int64_t row_width, Carver& list, Carver& carver)
      : count(places_count), width(row_width) {
    window = 32 * std::max<int64_t>(1, ceil_div(count, 32 * kMostRowWindows));
    windows = ceil_div(count, window);
    numbers = list.take<int32_t>(count);
    ids = list.take<int32_t>(count);
    places = list.take<int32_t>(count);
    partial = carver.take<float>(2 * windows * width);
    // cub tells what it needs only where there is a GPU. It is another copy of both lists and, for
    // each of its tiles of at least 2048 places, 256 counters.
    sort_bytes = static_cast<size_t>(9 * count) + (size_t{1} << 16);
    sort = list.take<std::byte>(static_cast<int64_t>(sort_bytes));
  }
  // Three numbers for each place of the list, in memory that is free once it is sorted: weights and
  // dots in its order, and where in the list each place is.
  __host__ __device__ float* list_weights() const { return reinterpret_cast<float*>(sort); }
  __host__ __device__ int32_t* in_list() const { return reinterpret_cast<int32_t*>(sort) + count; }
  float* list_dots() const { return reinterpret_cast<float*>(numbers); }
};

// What is added up: to[id] = (or +=, if `add`) weight * row, over all places of an id. Sums are
// floats and become a Sum when they are done.
template <typename T, typename Sum = float>
struct RowSumTerms {
  const T* rows;
  FastRows row_at;
  FastDivisor sharing;   // places that follow each other and share a row
  const float* weights;  // in the order of the list; null: all 1
  Sum* to;               // [limit, width]
  int64_t limit;         // ids are below it
  bool add;              // else ids that have no place get zeros
  // With these, dots = <row, values[id]> as well, in the order of the list.
  const T* values = nullptr;
  float* dots = nullptr;
  // Unless null or `add`: how many sums of squares there are, then those sums, at most two for each
  // window: together that of all numbers written, before they are rounded.
  double* squares = nullptr;
};

// A run as it lies in memory: held so, many can be on their way at once.
template <typename T, int kRun>
using RawRun = std::conditional_t<kRun * sizeof(T) == 16, uint4,
                                  std::conditional_t<kRun * sizeof(T) == 8, uint2, T>>;
template <int kRun, typename T>
__device__ inline RawRun<T, kRun> load_raw(const T* from) {
  return *reinterpret_cast<const RawRun<T, kRun>*>(from);
}
template <typename T, int kRun>
__device__ inline void unpack_run(const RawRun<T, kRun>& raw, float (&to)[kRun]) {
  load_run(reinterpret_cast<const T*>(&raw), to);
}

// Sets or adds to numbers that nobody wants soon: they should not take the place of others in the
// cache.
template <int kRun, typename T>
__device__ inline void put_once(T* to, const float (&x)[kRun], bool add) {
  constexpr int kStep = std::min(kRun, 16 / static_cast<int>(sizeof(T)));
#pragma unroll
  for (int i = 0; i < kRun; i += kStep) {
    auto* at = reinterpret_cast<RawRun<T, kStep>*>(to + i);
    float sums[kStep] = {};
    if (add) {
      unpack_run<T>(__ldcs(at), sums);
    }
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
      sums[k] += x[i + k];
    }
    RawRun<T, kStep> raw;
    store_run(reinterpret_cast<T*>(&raw), sums);
    __stcs(at, raw);
  }
}

// The sum of their squares, over the range of a double: what float has no room for is scaled.
template <int kRun>
__device__ inline double sum_of_squares(const float (&x)[kRun]) {
  const auto scaled = [&](float scale) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      sum += (x[i] * scale) * (x[i] * scale);
    }
    return sum;
  };
  const float sum = scaled(1);
  if (sum > 1e-30f && sum < 1e30f) {
    return sum;
  }
  return sum < 1 ? scaled(0x1p70f) * 0x1p-140 : scaled(0x1p-70f) * 0x1p140;
}

// Asks for kCount numbers that will soon be wanted, as far as they lie before `limit`.
template <int kCount, typename T>
__device__ inline void prefetch_run(const T* from, const T* limit) {
  constexpr int kLine = 128 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kLine) {
    if (from + i < limit) {
      asm volatile("prefetch.global.L2 [%0];" : : "l"(from + i));
    }
  }
}

// Asks for whole runs of 16 bytes that will be wanted soon, and once: they should not take the
// place of others in the cache.
template <typename T>
__device__ inline void prefetch_once(const T* from, int64_t count) {
  const auto bytes = static_cast<uint32_t>(count * sizeof(T));
#if __CUDA_ARCH__ >= 900
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;"
               :
               : "l"(__cvta_generic_to_global(from)), "r"(bytes), "l"(policy));
#else
  for (uint32_t i = 0; i < bytes; i += 128) {
    asm volatile("prefetch.global.L2 [%0];" : : "l"(reinterpret_cast<const std::byte*>(from) + i));
  }
#endif
}

// Sums over a warp of kCount numbers of each lane: lanes i * 32 / kCount and on get the i-th. Each
// has the bits that warp_sum gives.
template <int kCount>
__device__ inline float warp_sums(float (&x)[kCount]) {
  int step = 16;
#pragma unroll
  for (int left = kCount / 2; left > 0; left /= 2, step /= 2) {
    const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = upper ? x[i] : x[i + left], kept = upper ? x[i + left] : x[i];
      x[i] = kept + __shfl_xor_sync(0xffffffffu, given, step);
    }
  }
#pragma unroll
  for (; step > 0; step /= 2) {
    x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
  }
  return x[0];
}

template <typename Index>
__global__ void number_places_kernel(Index* numbers, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    numbers[i] = static_cast<Index>(i);
  }
}

// Zeros in the rows of ids that have no place. A lane looks one up; then all of its warp write.
template <typename T>
__global__ void clear_rows_kernel(RowSumPlan s, T* to, int64_t limit) {
  const int lane = threadIdx.x % 32;
  const int64_t first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x - lane, id = first + lane;
  int64_t from = 0;  // places before it have lower ids
  for (int64_t left = s.count; left > 0;) {
    const int64_t half = left / 2;
    const bool lower = s.ids[from + half] < id;
    from += lower ? half + 1 : 0;
    left = lower ? left - half - 1 : half;
  }
  const bool absent = id < limit && (from == s.count || s.ids[from] != id);
  for (unsigned rows = __ballot_sync(0xffffffffu, absent); rows != 0; rows &= rows - 1) {
    T* row = to + (first + __ffs(static_cast<int>(rows)) - 1) * s.width;
    for (int64_t i = lane; i < s.width; i += 32) {
      __stcs(row + i, from_float<T>(0));
    }
  }
}

// Numbers of places, in the order of the list, and where in it they are.
template <typename = void>
__global__ void to_list_kernel(RowSumPlan s, const float* from) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < s.count) {
    const int32_t place = __ldcs(s.places + i);
    s.list_weights()[i] = from[place];
    s.in_list()[place] = static_cast<int32_t>(i);
  }
}

// Where the places of window w begin and those of the one before end. A run that begins in one
// window and ends in the next is all the first one's; others are divided where they cross.
struct WindowEdge {
  int64_t at;
  bool divides;

  __device__ WindowEdge(const RowSumPlan& s, int64_t w) : at(min(s.count, w * s.window)) {
    divides = w > 0 && at < s.count && s.ids[at] == s.ids[at - 1];
    if (!divides) {
      return;
    }
    const int32_t id = s.ids[at];
    const int64_t before = at - s.window, behind = min(s.count, at + s.window);
    const bool begins = before == 0 || s.ids[before - 1] != id;
    const bool ends = behind == s.count || s.ids[behind] != id;
    if (!begins || !ends) {
      return;
    }
    divides = false;
    unsigned same = 0xffffffffu;
    for (; same == 0xffffffffu; at += __popc(same)) {
      const int64_t i = at + threadIdx.x % 32;
      same = __ballot_sync(0xffffffffu, i < behind && s.ids[i] == id);
    }
  }
};

// A place of the sorted list.
struct SortedPlace {
  int32_t id, place;
  float weight;
};

// A place as all lanes of a warp need it.
struct alignas(16) RowSumPlace {
  int64_t row;  // where its row begins, in bytes
  int32_t id;
  float weight;
};

// A lane has kHold runs of kRun columns, 32 runs apart. kBatch rows are loaded together, and a
// processor shall hold kBlocks blocks at once.
template <int kRunOf, int kHoldOf, int kBatchOf, int kBlocksOf>
struct RowSumShape {
  static constexpr int kRun = kRunOf, kHold = kHoldOf, kBatch = kBatchOf, kBlocks = kBlocksOf;
  static constexpr int kColumns = 32 * kHold * kRun;
};
// Without dots, for rows that can be taken four at a time and for any.
using RowSumOfFour = RowSumShape<4, 2, 4, 6>;
using RowSumOfOne = RowSumShape<1, 2, 4, 6>;

// Dots need all columns in one warp.
template <typename T, typename Sum, typename Shape, bool kDots>
__global__ void __launch_bounds__(kRowSumThreads, Shape::kBlocks)
    row_window_kernel(RowSumPlan s, RowSumTerms<T, Sum> terms) {
  constexpr int kRun = Shape::kRun, kHold = Shape::kHold, kBatch = Shape::kBatch,
                kColumns = Shape::kColumns;
  constexpr unsigned kAll = 0xffffffffu;
  __shared__ RowSumPlace shared[kRowSumThreads];
  const int lane = threadIdx.x % 32;
  const int64_t w = blockIdx.x * int64_t{kRowSumThreads / 32} + threadIdx.x / 32;
  if (w >= s.windows) {
    return;
  }
  RowSumPlace* held = shared + threadIdx.x / 32 * 32;
  const WindowEdge front(s, w), back(s, w + 1);
  const int64_t begin = front.at, end = back.at;
  double squares = 0;  // of this lane's numbers
  const auto leave_squares = [&] {
    if (terms.squares == nullptr) {
      return;
    }
    for (int step = 16; step > 0; step /= 2) {
      squares += __shfl_xor_sync(kAll, squares, step);
    }
    if (lane == 0) {
      terms.squares[1 + w] = squares;
      if (w == 0) {
        terms.squares[0] = static_cast<double>(2 * s.windows - 1);
      }
    }
  };
  if (begin == end) {
    leave_squares();
    return;
  }
  const int64_t start = blockIdx.y * int64_t{kColumns};
  // fn(run, its first column, whether there is such a column); loads behind the last go to the
  // last.
  const auto for_runs = [&](auto&& fn) {
#pragma unroll
    for (int h = 0; h < kHold; ++h) {
      const int64_t column = start + (h * 32 + lane) * kRun;
      fn(h, min(column, s.width - kRun), column < s.width);
    }
  };
  const std::byte* first_row[kHold];
  for_runs([&](int h, int64_t column, bool) {
    first_row[h] = reinterpret_cast<const std::byte*>(terms.rows + column);
  });
  float sum[kHold][kRun] = {}, value[kHold][kRun] = {};
  int32_t id = s.ids[begin];
  bool came = front.divides;  // from the window before
  const auto change_to = [&](int32_t next, bool goes_on, bool last) {
    RawRun<T, kRun> raw[kHold];
    if (kDots && !last) {
      for_runs([&](int h, int64_t column, bool) {
        raw[h] = __ldcs(
            reinterpret_cast<const RawRun<T, kRun>*>(terms.values + next * s.width + column));
      });
    }
    float* part = s.partial + (2 * w + (came ? 0 : 1)) * s.width;
    const bool whole = !came && !goes_on;
    for_runs([&](int h, int64_t column, bool inside) {
      if (inside && whole) {
        put_once(terms.to + id * s.width + column, sum[h], terms.add);
        squares += terms.squares != nullptr ? sum_of_squares(sum[h]) : 0;
      } else if (inside) {
        store_run(part + column, sum[h]);
      }
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        sum[h][r] = 0;
      }
    });
    if (kDots && !last) {
      for_runs([&](int h, int64_t, bool inside) {
        unpack_run<T>(raw[h], value[h]);
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          value[h][r] = inside ? value[h][r] : 0;
        }
      });
    }
    came = false;
    id = next;
  };
  if constexpr (kDots) {
    for_runs([&](int h, int64_t column, bool inside) {
      if (inside) {
        load_run(terms.values + id * s.width + column, value[h]);
      }
    });
  }
  // What the next round needs is asked for a round ahead. Past the end comes the last one again,
  // without a weight.
  const auto place_at = [&](int64_t i) {
    const bool inside = i < end;
    i = inside ? i : end - 1;
    const float weight = terms.weights != nullptr ? __ldcs(terms.weights + i) : 1;
    return SortedPlace{__ldcs(s.ids + i), __ldcs(s.places + i), inside ? weight : 0};
  };
  SortedPlace coming = place_at(begin + lane);
  int32_t before = id;
  for (int64_t first = begin; first < end; first += 32) {
    const int places = static_cast<int>(min(int64_t{32}, end - first));
    const SortedPlace own = coming;
    coming = place_at(first + 32 + lane);
    const int32_t left = __shfl_up_sync(kAll, own.id, 1);
    if (lane < places && own.id != (lane > 0 ? left : before)) {
      const int64_t row = own.id * s.width;
      if (terms.add) {
        prefetch_run<kColumns>(terms.to + row + start, terms.to + row + s.width);
      }
      if constexpr (kDots) {
        prefetch_once(terms.values + row, s.width);  // one warp has all columns
      }
    }
    before = __shfl_sync(kAll, own.id, 31);
    __syncwarp();  // the places before have been read
    const uint32_t shared_row = terms.sharing.quotient(static_cast<uint32_t>(own.place));
    held[lane] = {terms.row_at[shared_row] * static_cast<int64_t>(sizeof(T)), own.id, own.weight};
    __syncwarp();
    float own_dot = 0;
    for (int at = 0; at < places; at += kBatch) {
      RawRun<T, kRun> row[kBatch][kHold];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t from = held[at + i].row;
        for_runs([&](int h, int64_t, bool) {
          row[i][h] = load_raw<kRun>(reinterpret_cast<const T*>(first_row[h] + from));
        });
      }
      float dots[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int32_t next = held[at + i].id;
        const float weight = held[at + i].weight;
        if (next != id) {
          change_to(next, false, false);
        }
        for_runs([&](int h, int64_t, bool) {
          float x[kRun];
          unpack_run<T>(row[i][h], x);
#pragma unroll
          for (int r = 0; r < kRun; ++r) {
            sum[h][r] += weight * x[r];
            dots[i] += kDots ? x[r] * value[h][r] : 0;
          }
        });
      }
      if constexpr (kDots) {
        const float dot = __shfl_sync(kAll, warp_sums(dots), lane % kBatch * (32 / kBatch));
        own_dot = lane / kBatch * kBatch == at ? dot : own_dot;
      }
    }
    if (kDots && lane < places) {
      __stcs(terms.dots + first + lane, own_dot);
    }
  }
  change_to(id, back.divides, true);
  leave_squares();
}

// Runs that are divided; a block for each window that one begins in.
template <int kRun, typename T>
__global__ void __launch_bounds__(kRowSumThreads)
    row_join_kernel(RowSumPlan s, T* to, bool add, double* squares) {
  const int64_t w = blockIdx.x, begin = w * s.window, next = begin + s.window;
  const int64_t column = (blockIdx.y * int64_t{kRowSumThreads} + threadIdx.x) * kRun;
  const int32_t id = s.ids[next - 1];
  const bool came = begin > 0 && s.ids[begin - 1] == id;
  const bool goes_on = next + s.window < s.count && s.ids[next + s.window] == id;
  if (came || !goes_on) {
    if (squares != nullptr && threadIdx.x == 0) {
      squares[1 + s.windows + w] = 0;
    }
    return;
  }
  // The last window it reaches: steps that double, then halve.
  const auto reaches = [&](int64_t v) { return v < s.windows && s.ids[v * s.window] == id; };
  int64_t last = w + 1, step = 1;
  for (; reaches(last + step); step *= 2) {
    last += step;
  }
  for (; step > 0; step /= 2) {
    last += reaches(last + step) ? step : 0;
  }
  float sum[kRun] = {};
  if (column < s.width) {
    load_run(s.partial + (2 * w + 1) * s.width + column, sum);
#pragma unroll 4
    for (int64_t v = w + 1; v <= last; ++v) {
      float part[kRun];
      load_run(s.partial + 2 * v * s.width + column, part);
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        sum[r] += part[r];
      }
    }
    put_run(to + id * s.width + column, sum, add);
  }
  if (squares != nullptr) {
    __shared__ double parts[kRowSumThreads];
    parts[threadIdx.x] = sum_of_squares(sum);
    __syncthreads();
    if (threadIdx.x == 0) {
      double all = 0;
      for (const double part : parts) {
        all += part;
      }
      squares[1 + s.windows + w] = all;
    }
  }
}

// Sorts `count` numbers below `limit`.
inline void sort_places(const RowSumPlan& s, const int32_t* ids, int64_t limit, const char* op) {
  int bits = 1;
  while (bits < 31 && int64_t{1} << bits < limit) {
    ++bits;
  }
  number_places_kernel<<<blocks_for(s.count, 256), 256, 0, this_stream()>>>(s.numbers, s.count);
  check_launch(op);
  const auto sort = [&](void* workspace, size_t* bytes) {
    check_cuda(cub::DeviceRadixSort::SortPairs(workspace, *bytes, ids, s.ids, s.numbers, s.places,
                                               static_cast<int>(s.count), 0, bits, this_stream()),
               op);
  };
  size_t needed = 0, given = s.sort_bytes;
  sort(nullptr, &needed);
  require(needed <= given, op, "sorting {} numbers takes {} bytes, but there are {}", s.count,
          needed, given);
  sort(s.sort, &given);
}

// Numbers of places to list_weights(), once the list is sorted, and in_list().
inline void put_weights_in_list(const RowSumPlan& s, const float* weights, const char* op) {
  to_list_kernel<>
      <<<static_cast<unsigned>(ceil_div(s.count, 256)), 256, 0, this_stream()>>>(s, weights);
  check_launch(op);
}

// Adds up all terms; the places are sorted already. Squares only where a block has whole rows. What
// is left to do when the dots are there goes to `side`, if that is given, which the caller joins.
template <typename Shape, bool kDots, typename T, typename Sum>
void add_shared_rows(const RowSumPlan& s, RowSumTerms<T, Sum> terms, const char* op,
                     std::optional<Side> side = std::nullopt) {
  if (terms.add || s.width > std::min(Shape::kColumns, kRowSumThreads * Shape::kRun)) {
    terms.squares = nullptr;
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(s.windows, kRowSumThreads / 32)),
                  static_cast<unsigned>(ceil_div(s.width, Shape::kColumns)));
  row_window_kernel<T, Sum, Shape, kDots><<<grid, kRowSumThreads, 0, this_stream()>>>(s, terms);
  check_launch(op);
  std::optional<SideStream> beside;
  if (side) {
    SideStream::fork(*side);
    beside.emplace(*side);
  }
  if (s.windows > 1) {
    const dim3 joins(static_cast<unsigned>(s.windows - 1),
                     static_cast<unsigned>(ceil_div(s.width, kRowSumThreads * Shape::kRun)));
    row_join_kernel<Shape::kRun>
        <<<joins, kRowSumThreads, 0, this_stream()>>>(s, terms.to, terms.add, terms.squares);
    check_launch(op);
  }
  if (!terms.add) {
    constexpr int kThreads = 256;
    clear_rows_kernel<<<static_cast<unsigned>(ceil_div(terms.limit, kThreads)), kThreads, 0,
                        this_stream()>>>(s, terms.to, terms.limit);
    check_launch(op);
  }
}

}  // namespace fwpkm
