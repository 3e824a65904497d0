// Selection of the k best, in one order everywhere: the higher score first and, of equal scores,
// the lower index. Used by the reads of the slow and of the fast product-key memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace fwpkm {

// The k best of scores[0..n), best first, 1 <= k <= n. `best` gets the scores and `ids` their
// indices. Numbers that are not a number come last, so ids are always k different indices.
// `scratch` is top_k_scratch(n) bytes, aligned to 64.
void top_k(const float* scores, int64_t n, int64_t k, float* best, int32_t* ids, void* scratch);
size_t top_k_scratch(int64_t n);

// The product stage. a and b are the k best sub-scores of the two codebooks as top_k leaves them,
// a_ids and b_ids their sub-keys. The k best of the k*k sums a_i + b_j, best first: `best` gets the
// sums and `slots` the indices a_ids_i * n + b_ids_j. Of equal sums the lower slot comes first;
// sums that became equal by rounding count as equal. `scratch` is product_top_k_scratch(k) bytes,
// aligned to 64.
void product_top_k(const float* a, const int32_t* a_ids, const float* b, const int32_t* b_ids,
                   int64_t k, int64_t n, float* best, int32_t* slots, void* scratch);
size_t product_top_k_scratch(int64_t k);

// The same two by sorting everything: slow, obvious, for float and double. No NaN.
template <typename T>
void top_k_reference(const T* scores, int64_t n, int64_t k, T* best, int32_t* ids) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t i, int32_t j) { return scores[i] > scores[j]; });
  for (int64_t r = 0; r < k; ++r) {
    ids[r] = order[static_cast<size_t>(r)];
    best[r] = scores[ids[r]];
  }
}

template <typename T>
void product_top_k_reference(const T* a, const int32_t* a_ids, const T* b, const int32_t* b_ids,
                             int64_t k, int64_t n, T* best, int32_t* slots) {
  struct Pair {
    T sum;
    int32_t slot;
  };
  std::vector<Pair> pairs;
  pairs.reserve(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      pairs.push_back({a[i] + b[j], static_cast<int32_t>(a_ids[i] * n + b_ids[j])});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    return x.sum != y.sum ? x.sum > y.sum : x.slot < y.slot;
  });
  for (int64_t r = 0; r < k; ++r) {
    best[r] = pairs[static_cast<size_t>(r)].sum;
    slots[r] = pairs[static_cast<size_t>(r)].slot;
  }
}

}  // namespace fwpkm
