#include <algorithm>

#include "ops/fwpkm/cuda_halves.cuh"
#include "ops/fwpkm/store.h"

namespace fwpkm {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    number_kernel(int32_t* places, int32_t* free, int slots, int rows) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < slots) {
    places[i] = i;
  }
  if (i < rows) {
    free[i] = slots + i;
  }
}

// A block for each row, which all of it has read before it is written.
template <bool kJoin>
__global__ void __launch_bounds__(kThreads) turn_kernel(float* table, int width) {
  extern __shared__ uint32_t words[];
  const auto* halves = reinterpret_cast<const uint16_t*>(words);
  float* row = table + static_cast<int64_t>(blockIdx.x) * width;
  for (int c = threadIdx.x; c < width; c += kThreads) {
    words[c] = __float_as_uint(row[c]);
  }
  __syncthreads();
  auto* to = reinterpret_cast<uint16_t*>(row);
  for (int c = threadIdx.x; c < width; c += kThreads) {
    if constexpr (kJoin) {
      row[c] = Halves::join(halves[c], halves[width + c]);
    } else {
      const Halves both(__uint_as_float(words[c]));
      to[c] = static_cast<uint16_t>(both.upper);
      to[width + c] = static_cast<uint16_t>(both.lower);
    }
  }
}

template <bool kJoin>
void turn(const View& values) {
  const auto rows = static_cast<unsigned>(values.dim(0));
  const auto width = static_cast<int>(values.dim(1));
  launch(false, &turn_kernel<kJoin>, rows, kThreads, static_cast<size_t>(width) * sizeof(float),
         "fwpkm laying out rows", values.ptr<float>(), width);
}

__global__ void __launch_bounds__(kThreads)
    adopt_kernel(const int32_t* writes, int entries, int32_t* places, int32_t* free) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int number = i < entries ? writes[3 * static_cast<int64_t>(i) + 2] : -1;
  if (number >= 0) {
    const int slot = writes[3 * static_cast<int64_t>(i) + 1], old = places[slot];
    places[slot] = free[number];
    free[number] = old;
  }
}

// Columns first.. of the rows of slots that are elsewhere, `width` of them; a warp for each slot.
struct Columns {
  float *table, *log, *some;
  const int32_t* places;
  int slots, dv, first, width;

  __device__ const float* row(int place) const {
    return place < slots ? table + static_cast<int64_t>(place) * dv
                         : log + static_cast<int64_t>(place - slots) * dv;
  }
};
template <bool kBack>
__global__ void __launch_bounds__(kThreads) sort_kernel(Columns all) {
  const int slot = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 32);
  if (slot >= all.slots || all.places[slot] == slot) {
    return;
  }
  float* some = all.some + static_cast<int64_t>(slot) * all.width;
  float* own = all.table + static_cast<int64_t>(slot) * all.dv + all.first;
  const float* row = all.row(all.places[slot]) + all.first;
  for (int c = threadIdx.x % 32; c < all.width && all.first + c < all.dv; c += 32) {
    if constexpr (kBack) {
      own[c] = some[c];
    } else {
      some[c] = row[c];
    }
  }
}

unsigned blocks(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kThreads));
}

}  // namespace

void FwpkmStoreCuda::number(const View& places, const View& free) {
  launch(false, &number_kernel, blocks(std::max(places.dim(0), free.dim(0))), kThreads, 0,
         "fwpkm numbering rows", places.ptr<int32_t>(), free.ptr<int32_t>(),
         static_cast<int>(places.dim(0)), static_cast<int>(free.dim(0)));
}

void FwpkmStoreCuda::halve(const View& values) {
  turn<false>(values);
}

void FwpkmStoreCuda::join(const View& values) {
  turn<true>(values);
}

void FwpkmStoreCuda::adopt(const FwpkmResult& result, const View& places, const View& free) {
  const auto entries = static_cast<int>(result.writes.dim(0));
  if (entries > 0) {
    launch(false, &adopt_kernel, blocks(entries), kThreads, 0, "fwpkm keeping rows",
           static_cast<const int32_t*>(result.writes.view().ptr<int32_t>()), entries,
           places.ptr<int32_t>(), free.ptr<int32_t>());
  }
}

void FwpkmStoreCuda::sort(const View& values, const View& log, const View& places,
                          const View& some) {
  Columns all = {values.ptr<float>(),
                 log.ptr<float>(),
                 some.ptr<float>(),
                 places.ptr<int32_t>(),
                 static_cast<int>(values.dim(0)),
                 static_cast<int>(values.dim(1)),
                 0,
                 static_cast<int>(some.dim(1))};
  for (; all.first < all.dv; all.first += all.width) {
    launch(false, &sort_kernel<false>, blocks(int64_t{32} * all.slots), kThreads, 0,
           "fwpkm sorting rows", all);
    launch(false, &sort_kernel<true>, blocks(int64_t{32} * all.slots), kThreads, 0,
           "fwpkm sorting rows", all);
  }
}

}  // namespace fwpkm
