// Selecting for a query and a codebook, and for a head: what all ways to the best have in common.
#pragma once

#include "ops/fwpkm/cuda_pick.cuh"
#include "ops/fwpkm/cuda_read.cuh"

namespace fwpkm {

// How close kCount sub-keys are to a query: minus the squared distance, from differences, or the
// dot product. In one order, so that it has the same bits wherever it is computed.
template <typename T, int kRun, int kCount>
__device__ inline void find_closeness(const FwpkmCall& call, const T* q, const float* keys,
                                      const int (&ids)[kCount], float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = 0;
  }
  for (int c = threadIdx.x % 32 * kRun; c < call.half; c += 32 * kRun) {
    float x[kRun], key[kCount][kRun];
    load_run(q + c, x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      load_run(keys + static_cast<int64_t>(ids[i]) * call.half + c, key[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int a = 0; a < kRun; ++a) {
        const float y = call.dot ? key[i][a] : x[a] - key[i][a];
        sums[i] = fmaf(call.dot ? x[a] : y, y, sums[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = (call.dot ? 1.0f : -1.0f) * warp_sum(sums[i]);
  }
}

__device__ inline float score_of_closeness(const FwpkmCall& call, float closeness) {
  return call.dot ? closeness : -logf(static_cast<float>(kIdwEps) - closeness);
}

// How far a product, with its norm, can be from the closeness less |q|^2: parts of |q|^2 + |K|^2,
// and parts of |q| |K|.
struct FwpkmSlack {
  float sums, rounding;

  __device__ float most(float query, float key) const {
    return fmaf(sums, query + key, rounding * sqrtf(query) * sqrtf(key));
  }
};

// A query and a codebook, in the hands of a warp.
template <typename T, int kRun>
struct Search {
  const FwpkmCall& call;
  const T* q;
  const float* keys;  // of the codebook
  uint64_t* list;     // for kNear elements, or k if those are more
  float* scores;      // [k]: the best, in order
  int32_t* ids;       // [k]

  // Calls fn(i, closeness) in all lanes for each of `count` sub-keys id(i).
  template <typename IdOf, typename Fn>
  __device__ void look(int count, IdOf&& id, Fn&& fn) const {
    constexpr int kCount = 5;
    for (int i = 0; i < count; i += kCount) {
      int some[kCount];
      float sums[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        some[u] = id(min(i + u, count - 1));
      }
      find_closeness<T, kRun, kCount>(call, q, keys, some, sums);
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        if (i + u < count) {
          fn(i + u, sums[u]);
        }
      }
    }
  }

  __device__ void take_given(const int32_t* given) const {
    look(
        call.k, [&](int i) { return given[i]; },
        [&](int i, float closeness) {
          if (threadIdx.x % 32 == 0) {
            ids[i] = given[i];
            scores[i] = score_of_closeness(call, closeness);
          }
        });
  }

  // All sub-keys, directly; `row` is memory for n numbers.
  __device__ void take_from_all(float* row) const {
    look(
        call.n, [](int i) { return i; },
        [&](int i, float closeness) {
          if (threadIdx.x % 32 == 0) {
            row[i] = closeness;
          }
        });
    __syncwarp();
    warp_top_k<0>(row, call.n, call.k, scores, ids, list);
    for (int r = threadIdx.x % 32; r < call.k; r += 32) {
      scores[r] = score_of_closeness(call, scores[r]);
    }
  }
};

// Whether one kernel can do all of it, but for rows that are not aligned.
bool fits_tiles(const FwpkmCall& call);
// Selects the slots of a chunk's tokens where it does (FwpkmProducts::tiled).
void select_in_tiles(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span,
                     const FwpkmSlack& slack, float* p, const FwpkmTally& tally);

}  // namespace fwpkm
