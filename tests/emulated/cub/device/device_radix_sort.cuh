// What kernels ask of CUB.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "emulator.h"

namespace cub {

struct DeviceRadixSort {
  // Equal keys stay in their order.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* workspace, size_t& bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, int count, int, int,
                               cudaStream_t) {
    if (workspace == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    emulated::enqueue([=] {
      std::vector<int> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
      for (int i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[static_cast<size_t>(i)]];
        sorted_values[i] = values[order[static_cast<size_t>(i)]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
