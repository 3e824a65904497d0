// The one thread pool: OpenMP's, which oneDNN uses too.
//
// Kernels split their work into items whose results do not depend on which thread does them, so a
// kernel's output never depends on the number of threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fwpkm {

// Threads that parallel loops use. 0 asks for all the machine's cores.
void set_threads(int count);
int threads();
// Index of the calling thread inside a parallel loop, 0 outside.
int thread_index();

namespace detail {
using LoopBody = void (*)(void* closure, int64_t begin, int64_t end);
void parallel_ranges(int64_t count, int64_t grain, LoopBody body, void* closure);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover 0..count, in parallel. Every range but the
// last has a multiple of `grain` items. Exceptions must not leave the body.
template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, Body&& body) {
  using Closure = std::remove_reference_t<Body>;
  detail::parallel_ranges(
      count, grain,
      [](void* closure, int64_t begin, int64_t end) {
        (*static_cast<Closure*>(closure))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(i) for each i, in parallel; items are handed out one at a time.
template <typename Body>
void parallel_items(int64_t count, Body&& body);

namespace detail {
using ItemBody = void (*)(void* closure, int64_t item);
void parallel_items(int64_t count, ItemBody body, void* closure);
}  // namespace detail

template <typename Body>
void parallel_items(int64_t count, Body&& body) {
  using Closure = std::remove_reference_t<Body>;
  detail::parallel_items(
      count, [](void* closure, int64_t item) { (*static_cast<Closure*>(closure))(item); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace fwpkm
