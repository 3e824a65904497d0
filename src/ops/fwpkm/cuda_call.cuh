// What the CUDA kernels of the memory share: what a call consists of, the tokens of a chunk, and
// where the row of a slot is. Nothing here costs the order of the table.
//
// The host never sees a count: what is numbered on the CPU one after the other (chains, rows of the
// log, old sub-keys) gets numbers here that follow from places alone, with gaps. A list that could
// hold every slot is numbered by slot; any other by the first read that asks for the number.
#pragma once

#include "ops/common/carver.h"
#include "ops/common/device.cuh"
#include "ops/fwpkm/fwpkm.h"
#include "ops/pkm_read/select.cuh"

namespace fwpkm {

inline constexpr int kFwpkmThreads = 256;  // of a block
inline constexpr int kFwpkmWarps = kFwpkmThreads / 32;
// Runs of kRun columns that a lane holds at a time.
template <int kRun>
inline constexpr int kFwpkmGroups = kRun == 8 ? 2 : 4;

struct FwpkmCall {
  // As in FwpkmSizes and FwpkmSettings.
  int batch, time, chunk, chunks, lookahead, heads, k, n, half, dv, row, reads, books, marginals,
      owners;
  int64_t chain_cap, log_cap;
  bool dot, official, rewrite, shared, addr_loss, write, keys_move;
  float addr_weight;
  // Of a whole chunk: rows of the log, for each owner, and old sub-keys.
  int64_t log_step, key_step;
  bool narrow;  // q, v and y are bf16
  bool wide;    // all rows can be taken four numbers at a time

  const void *q, *v;
  const float *g, *keys, *overlay;  // keys: those of the current chunk
  float* table;                     // only read, unless there are `places`
  const int32_t *given_ids, *given_picks, *directory, *pages;
  int64_t table_stride;

  void* y;
  int32_t *slots, *ids, *picks, *writes, *counts;
  float *weights, *losses, *addressing, *moved, *log;

  // As in FwpkmSaved; in the workspace where nothing is saved. key_rows and key_starts may be null.
  float *scores, *share, *key_rows;
  int32_t *source, *chain, *key_starts;

  // Of a table in a store (store.h), else null: where the rows of slots were before the call, and
  // where rows of the log are.
  const int32_t *places, *free;
  bool halved;  // rows of values lie in halves

  // Slots that have a chain and their chains, by hash, for each owner map_mask + 1 entries. Null
  // where chains are numbered by slot.
  int2* map;
  uint32_t map_mask;

  explicit FwpkmCall(const OpArgs& args);
};

// A chunk, or a part of one: `length` tokens of each row of the batch from `first` on. Number j of
// them, rows one after the other, is token(j) of the batch.
struct FwpkmSpan {
  int number, time, first, length, writers, count;

  __host__ __device__ FwpkmSpan(const FwpkmCall& call, int chunk)
      : number(chunk), time(call.time), first(chunk * call.chunk) {
    length = time - first < call.chunk ? time - first : call.chunk;
    writers = call.write && length > call.lookahead ? length - call.lookahead : 0;
    count = call.batch * length;
  }
  // Tokens begin..end of it, for reading.
  FwpkmSpan part(const FwpkmCall& call, int begin, int end) const {
    FwpkmSpan p = *this;
    p.first += begin;
    p.length = end - begin;
    p.count = call.batch * p.length;
    return p;
  }
  __device__ int token(int j) const { return j / length * time + first + j % length; }
  __device__ bool writes(int j) const { return j % length < writers; }
};

// The chain of a slot, or -1 if nobody has asked for it yet.
__device__ inline int find_chain(const FwpkmCall& call, int owner, int slot) {
  if (call.map == nullptr) {
    return static_cast<int>(owner * call.chain_cap) + slot;
  }
  const int2* map = call.map + static_cast<int64_t>(owner) * (call.map_mask + 1);
  for (uint32_t at = static_cast<uint32_t>(slot * 0x9e3779b97f4a7c15ull >> 32);; ++at) {
    const int2 entry = map[at & call.map_mask];
    if (entry.x == slot) {
      return entry.y;
    }
    if (entry.x < 0) {
      return -1;
    }
  }
}
// Gives a slot that has none its chain. Each slot is added once; they do not meet.
__device__ inline void add_chain(const FwpkmCall& call, int owner, int slot, int chain) {
  int2* map = call.map + static_cast<int64_t>(owner) * (call.map_mask + 1);
  for (uint32_t at = static_cast<uint32_t>(slot * 0x9e3779b97f4a7c15ull >> 32);; ++at) {
    int2* entry = map + (at & call.map_mask);
    if (atomicCAS(&entry->x, -1, slot) == -1) {
      entry->y = chain;
      return;
    }
  }
}

// The row of an owner's overlay: -2-row, or -1 for the table's.
__device__ inline int overlay_source(const FwpkmCall& call, int owner, int slot) {
  if (call.directory == nullptr) {
    return -1;
  }
  const int page = call.directory[static_cast<int64_t>(owner) * call.n + slot / call.n];
  const int row = page < 0 ? -1 : call.pages[static_cast<int64_t>(page) * call.n + slot % call.n];
  return row < 0 ? -1 : -2 - row;
}

// A row of values by its place in a store.
__device__ inline float* placed_row(const FwpkmCall& call, int place) {
  const int slots = call.n * call.n;
  return place < slots ? call.table + static_cast<int64_t>(place) * call.dv
                       : call.log + static_cast<int64_t>(place - slots) * call.dv;
}
// Row `number` of the log.
__device__ inline float* log_row(const FwpkmCall& call, int number) {
  return call.places != nullptr ? placed_row(call, call.free[number])
                                : call.log + static_cast<int64_t>(number) * call.dv;
}

// A row of values, wherever it lies (FwpkmSaved::source).
__device__ inline const float* value_row(const FwpkmCall& call, int source, int slot) {
  if (call.places != nullptr) {
    return placed_row(call, source >= 0 ? source : -2 - source);
  }
  return source >= 0    ? call.log + static_cast<int64_t>(source) * call.dv
         : source == -1 ? call.table + slot * call.table_stride
                        : call.overlay + (-2 - static_cast<int64_t>(source)) * call.dv;
}

template <typename T>
__device__ inline const T* query_of(const FwpkmCall& call, int t, int book) {
  return static_cast<const T*>(call.q) + static_cast<int64_t>(t) * call.row + book * call.half;
}

// Where the selections of a token in a codebook begin.
__device__ inline int64_t selections_at(const FwpkmCall& call, int token, int book) {
  return (static_cast<int64_t>(token) * call.books + book) * call.k;
}

// The value that token t is to find.
template <typename T>
__device__ inline const T* target_of(const FwpkmCall& call, int t) {
  return static_cast<const T*>(call.v) + static_cast<int64_t>(t + call.lookahead) * call.dv;
}

__device__ inline float gate_of(const FwpkmCall& call, int t) {
  return call.g == nullptr ? 1.0f : call.g[t];
}

// The slope of a score by its sub-key is this times q - K, or times q for dot products.
__device__ inline float slope_of(const FwpkmCall& call, float score) {
  return call.dot ? 1.0f : 2 * expf(score);
}

// Tells the compiler what it cannot see of a pointer that went through other hands.
template <typename T>
__device__ inline T* global_pointer(T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

// put_run with wide stores, for global memory.
template <int kRun, typename T>
__device__ inline void put_wide(T* to, float (&values)[kRun], bool accumulate) {
  if (accumulate) {
    float old[kRun];
    load_run(to, old);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      values[i] += old[i];
    }
  }
  store_wide(to, values);
}

// Calls fn(group, column) for the runs that a warp's lane holds of columns first..width.
template <int kRun, int kGroups, typename Fn>
__device__ inline void for_groups(int first, int width, Fn&& fn) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int column = first + (g * 32 + static_cast<int>(threadIdx.x % 32)) * kRun;
    if (column < width) {
      fn(g, column);
    }
  }
}

template <int kRun>
__device__ inline float dot_run(const float (&a)[kRun], const float (&b)[kRun], float sum) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    sum = fmaf(a[i], b[i], sum);
  }
  return sum;
}
// to += scale * a
template <int kRun>
__device__ inline void add_run(float scale, const float (&a)[kRun], float (&to)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    to[i] = fmaf(scale, a[i], to[i]);
  }
}

// Adds to `sum` the rows that token t read, times their weights, columns from `first` on. Two rows
// are on their way at a time.
template <int kRun>
__device__ inline void add_read_rows(const FwpkmCall& call, int t, int first,
                                     float (&sum)[kFwpkmGroups<kRun>][kRun]) {
  const int64_t at = static_cast<int64_t>(t) * call.reads;
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < call.reads; begin += 32) {
    const int some = min(32, call.reads - begin);
    float weight = 0;
    int source = 0, slot = 0;
    if (lane < some) {
      weight = call.weights[at + begin + lane];
      source = call.source[at + begin + lane];
      slot = call.slots[at + begin + lane];
    }
    const auto row_of = [&](int r) {
      return value_row(call, __shfl_sync(kWholeWarp, source, r), __shfl_sync(kWholeWarp, slot, r));
    };
    for (int r = 0; r < some; r += 2) {
      const bool two = r + 1 < some;
      const float wa = __shfl_sync(kWholeWarp, weight, r);
      const float wb = __shfl_sync(kWholeWarp, weight, min(r + 1, 31));
      const float *a = row_of(r), *b = row_of(min(r + 1, 31));
      float x[kFwpkmGroups<kRun>][kRun], y[kFwpkmGroups<kRun>][kRun];
      for_groups<kRun, kFwpkmGroups<kRun>>(first, call.dv,
                                           [&](int g, int c) { load_run(a + c, x[g]); });
      if (two) {
        for_groups<kRun, kFwpkmGroups<kRun>>(first, call.dv,
                                             [&](int g, int c) { load_run(b + c, y[g]); });
      }
      for_groups<kRun, kFwpkmGroups<kRun>>(first, call.dv, [&](int g, int) {
        add_run(wa, x[g], sum[g]);
        if (two) {
          add_run(wb, y[g], sum[g]);
        }
      });
    }
  }
}

// Row `i` of rows of dv numbers.
template <typename T>
__device__ inline T* row_of(const FwpkmCall& call, void* rows, int i) {
  return static_cast<T*>(rows) + static_cast<int64_t>(i) * call.dv;
}

// Memory for numbers of q's and v's type.
inline void* take_reals(Carver* carver, const FwpkmCall& call, int64_t count) {
  return call.narrow ? static_cast<void*>(carver->take<bf16>(count))
                     : static_cast<void*>(carver->take<float>(count));
}

// Tokens of each row in the longest chunk.
inline int64_t longest_span(const FwpkmCall& call) {
  return call.time < call.chunk ? call.time : call.chunk;
}

// Calls fn with the number of columns to take at a time.
template <typename Fn>
void with_run(const FwpkmCall& call, Fn&& fn) {
  if (call.wide) {
    fn(std::integral_constant<int, 4>());
  } else {
    fn(std::integral_constant<int, 1>());
  }
}
template <typename Fn>
void with_real_and_run(const FwpkmCall& call, Fn&& fn) {
  with_run(call, [&](auto run) {
    if (call.narrow) {
      fn(static_cast<bf16*>(nullptr), run);
    } else {
      fn(static_cast<float*>(nullptr), run);
    }
  });
}

// The item of a warp where each has one. It comes from one lane, so that the compiler knows it to
// be the same in all: what follows from it needs no registers of lanes, and branches by it do not
// part them.
__device__ inline int warp_item() {
  const unsigned warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);
  return static_cast<int>(blockIdx.x * kFwpkmWarps + warp);
}

// Blocks for that many items with a warp each.
inline unsigned fwpkm_blocks(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kFwpkmWarps));
}

}  // namespace fwpkm
