#include "base/parallel.h"

#include <omp.h>

#include <algorithm>

namespace fwpkm {

void set_threads(int count) {
  omp_set_num_threads(count > 0 ? count : omp_get_num_procs());
}

int threads() {
  return omp_get_max_threads();
}

int thread_index() {
  return omp_get_thread_num();
}

namespace detail {

void parallel_ranges(int64_t count, int64_t grain, LoopBody body, void* closure) {
  const int64_t blocks = (count + grain - 1) / grain;
  if (blocks <= 1 || omp_in_parallel()) {
    if (count > 0) {
      body(closure, 0, count);
    }
    return;
  }
#pragma omp parallel
  {
    const int64_t team = omp_get_num_threads();
    const int64_t me = omp_get_thread_num();
    const int64_t begin = blocks * me / team * grain;
    const int64_t end = std::min(count, blocks * (me + 1) / team * grain);
    if (begin < end) {
      body(closure, begin, end);
    }
  }
}

void parallel_items(int64_t count, ItemBody body, void* closure) {
  if (count <= 1 || omp_in_parallel()) {
    for (int64_t i = 0; i < count; ++i) {
      body(closure, i);
    }
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < count; ++i) {
    body(closure, i);
  }
}

}  // namespace detail
}  // namespace fwpkm
