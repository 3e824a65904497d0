// Sums over the selections of a sub-key. A block has a few sub-keys, whose selections lie side by
// side in their codebook's list. Its warps share these evenly, so that nobody waits for a sub-key
// that all tokens like: each adds up what it has of a sub-key, and the parts come together in
// shared memory.
#pragma once

#include "ops/fwpkm/cuda_group.cuh"

namespace fwpkm {

inline constexpr int kFwpkmOwn = 4;        // sub-keys of a block
inline constexpr int kFwpkmKeyGroups = 2;  // runs of columns that a lane holds of a sub-key

// Blocks that all sub-keys need, if each has `own` of them.
inline unsigned key_blocks(const FwpkmCall& call, int own) {
  return static_cast<unsigned>(call.books * ceil_div(call.n, own));
}

// The sub-keys of a block: `count` from `first` on.
struct OwnKeys {
  int book, first, count;

  __device__ OwnKeys(const FwpkmCall& call, int block, int most = kFwpkmOwn) {
    const int blocks = (call.n + most - 1) / most;
    book = block / blocks;
    first = block % blocks * most;
    count = min(most, call.n - first);
  }
};
// Their selections in a chunk: begin..end of the codebook's list.
struct OwnSelections {
  int begin, end;

  __device__ OwnSelections(const FwpkmCall& call, const FwpkmGroups& groups, const OwnKeys& own)
      : begin(groups.start(call, own.book, own.first)),
        end(groups.start(call, own.book, own.first + own.count)) {}
  // Where a warp's share begins.
  __device__ int share(int warp) const {
    return begin + static_cast<int>(static_cast<int64_t>(end - begin) * warp / kFwpkmWarps);
  }
};

// How many tokens a marginal is the mean of.
__device__ inline float marginal_tokens(const FwpkmCall& call, const FwpkmSpan& span) {
  return static_cast<float>(span.count * (call.official ? call.heads : 1));
}

// One selection, as the lanes of a warp hold as many as there are lanes.
struct Selection {
  bool here;
  int id, j, rank;  // sub-key; token number in the chunk; rank among the token's selected
  int t;            // token

  // Number `position` of a codebook's list; past `end` there is none, and the last one stands in.
  __device__ Selection(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       int book, int position, int end) {
    here = position < end;
    const uint64_t element =
        groups.entries[static_cast<int64_t>(book) * span.count * call.k + min(position, end - 1)];
    id = id_of(element);
    j = place_of(element) / call.k;
    rank = place_of(element) % call.k;
    t = span.token(j);
  }
  // Its number among the selections of all tokens, and of the chunk's.
  __device__ int64_t of_all(const FwpkmCall& call, int book) const {
    return selections_at(call, t, book) + rank;
  }
  __device__ int64_t of_chunk(const FwpkmCall& call, int book) const {
    return selections_at(call, j, book) + rank;
  }
};

// Where a chunk keeps a sub-key as it was before the chunk moved it.
__device__ inline int old_key_place(const FwpkmCall& call, const FwpkmSpan& span,
                                    const FwpkmGroups& groups, int book, int id) {
  const int base = static_cast<int>(span.number * call.key_step), length = span.count * call.k;
  if (call.n <= length) {
    return base + book * call.n + id;
  }
  const uint64_t* entries = groups.entries + static_cast<int64_t>(book) * length;
  return base + book * length + place_of(entries[groups.start(call, book, id)]);
}

// A run of numbers as they are in memory: until it is used it takes no more registers than that.
template <typename T, int kRun>
struct alignas(sizeof(T) * kRun) PackedRun {
  T values[kRun];
};

// Columns of a block's sub-keys, or of something like them, in shared memory.
template <int kRun>
struct OwnRows {
  static constexpr int kColumns = kFwpkmKeyGroups * 32 * kRun;
  float rows[kFwpkmOwn][kColumns];

  // Puts columns from `first` on of row d there; the work of a warp.
  __device__ void fetch(int d, const float* row, int first, int width) {
    for_groups<kRun, kFwpkmKeyGroups>(first, width, [&](int, int c) {
      float x[kRun];
      load_run(row + c, x);
      store_run(&rows[d][c - first], x);
    });
  }
  __device__ void get(int d, int first, int width, float (&to)[kFwpkmKeyGroups][kRun]) const {
    for_groups<kRun, kFwpkmKeyGroups>(first, width,
                                      [&](int g, int c) { load_run(&rows[d][c - first], to[g]); });
  }
};

// A warp's next selections, two for each lane: numbers `lane` and 32 + `lane` of them.
struct SelectionWindow {
  static constexpr int kLength = 64;
  Selection low, high;
  int count;
  uint64_t heads;  // those that are the first of their sub-key here

  __device__ SelectionWindow(const FwpkmCall& call, const FwpkmSpan& span,
                             const FwpkmGroups& groups, int book, int begin, int end)
      : low(call, span, groups, book, begin + static_cast<int>(threadIdx.x % 32), end),
        high(call, span, groups, book, begin + 32 + static_cast<int>(threadIdx.x % 32), end),
        count(min(kLength, end - begin)) {
    const int lane = threadIdx.x % 32, before = max(lane - 1, 0);
    const int below_low = __shfl_sync(kWholeWarp, low.id, before);
    const int below_high = __shfl_sync(kWholeWarp, high.id, before);
    const int last = __shfl_sync(kWholeWarp, low.id, 31);
    const unsigned first = __ballot_sync(kWholeWarp, lane == 0 || low.id != below_low);
    const unsigned second =
        __ballot_sync(kWholeWarp, high.here && high.id != (lane == 0 ? last : below_high));
    heads = static_cast<uint64_t>(second) << 32 | first;
  }
  // Of what lanes have for their two, that of number i.
  template <typename V>
  __device__ static V of(int i, V for_low, V for_high) {
    return __shfl_sync(kWholeWarp, i < 32 ? for_low : for_high, i % 32);
  }
};

// Selections whose queries are on their way at once.
template <typename T>
inline constexpr int kFwpkmTogether = sizeof(T) == 2 ? 8 : 4;

// Walks through a window, columns first..half, kFwpkmTogether selections at a time: calls use(i, u,
// head, x) for number i, the u-th of those together, with x its query and `head` as in the window,
// then done(i) with the first of them. prepare() is called once, while the first queries are on
// their way. Past the end the last selection is used again, as if it had no effect.
template <typename T, int kRun, typename Prepare, typename Use, typename Done>
__device__ inline void walk_selections(const FwpkmCall& call, int book,
                                       const SelectionWindow& window, int first, int half,
                                       Prepare&& prepare, Use&& use, Done&& done) {
  constexpr int kGroups = kFwpkmKeyGroups, kTogether = kFwpkmTogether<T>;
#pragma unroll 1
  for (int begin = 0; begin < window.count; begin += kTogether) {
    PackedRun<T, kRun> packed[kTogether][kGroups];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int i = min(begin + u, window.count - 1);
      const T* q = query_of<T>(call, window.of(i, window.low.t, window.high.t), book);
      for_groups<kRun, kGroups>(first, half, [&](int g, int c) {
        packed[u][g] = *reinterpret_cast<const PackedRun<T, kRun>*>(q + c);
      });
    }
    if (begin == 0) {
      prepare();
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      float x[kGroups][kRun];
      for_groups<kRun, kGroups>(first, half,
                                [&](int g, int) { load_run(packed[u][g].values, x[g]); });
      use(begin + u, u, (window.heads >> (begin + u) & 1) != 0, x);
    }
    done(begin);
  }
}

// What warps have of sub-keys, columns of one round. A warp and a sub-key that share something have
// row warp + sub-key: along the list one or the other of the two goes up, so all these differ.
template <int kRun>
struct KeyParts {
  float rows[kFwpkmWarps + kFwpkmOwn][OwnRows<kRun>::kColumns];
  float extras[kFwpkmWarps + kFwpkmOwn];

  // Adds the parts of sub-key number d of a block, selections begin..end; -> the sum of its extras.
  __device__ float add(const OwnSelections& all, int begin, int end, int d, int first, int width,
                       float (&sum)[kFwpkmKeyGroups][kRun]) const {
    float extra = 0;
#pragma unroll
    for (int warp = 0; warp < kFwpkmWarps; ++warp) {
      if (max(all.share(warp), begin) < min(all.share(warp + 1), end)) {
        extra += extras[warp + d];
        for_groups<kRun, kFwpkmKeyGroups>(first, width, [&](int g, int c) {
          float x[kRun];
          load_run(&rows[warp + d][c - first], x);
          add_run(1.0f, x, sum[g]);
        });
      }
    }
    return extra;
  }
};

// How a selection counts in a sum: scale * (q - K), and `extra` in a sum of its own.
struct SelectionScale {
  float scale, extra = 0;
};

// A warp's share of the sums over scale * (q - K), columns first..half. `keys`: the block's
// sub-keys as the chunk read them; null for dot products, where it is scale * q.
// scale_of(selection) is called by the lane that holds it. kExtra: whether there are extras.
template <typename T, int kRun, bool kExtra, typename ScaleOf>
__device__ inline void sum_share(const FwpkmCall& call, const FwpkmSpan& span,
                                 const FwpkmGroups& groups, const OwnKeys& own,
                                 const OwnSelections& all, int first, int half,
                                 const OwnRows<kRun>* keys, KeyParts<kRun>* parts,
                                 ScaleOf&& scale_of) {
  constexpr int kGroups = kFwpkmKeyGroups;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = all.share(warp), end = all.share(warp + 1);
  float sum[kGroups][kRun] = {}, key[kGroups][kRun] = {}, extra = 0;
  int current = -1;
  const auto flush = [&] {
    const int row = warp + current - own.first;
    for_groups<kRun, kGroups>(0, half - first,
                              [&](int g, int c) { store_run(&parts->rows[row][c], sum[g]); });
    if (lane == 0) {
      parts->extras[row] = extra;
    }
  };
  for (int at = begin; at < end; at += SelectionWindow::kLength) {
    const SelectionWindow window(call, span, groups, own.book, at, end);
    SelectionScale low{}, high{};
    const auto prepare = [&] {
      low = window.low.here ? scale_of(window.low) : SelectionScale{};
      high = window.high.here ? scale_of(window.high) : SelectionScale{};
    };
    const auto use = [&](int i, int, bool head, float(&x)[kGroups][kRun]) {
      if (head) {
        const int id = window.of(i, window.low.id, window.high.id);
        if (id != current) {
          if (current >= 0) {
            flush();
          }
          current = id;
          extra = 0;
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int a = 0; a < kRun; ++a) {
              sum[g][a] = 0;
            }
          }
          if (keys != nullptr) {
            keys->get(id - own.first, first, half, key);
          }
        }
      }
      const float scale = window.of(i, low.scale, high.scale);
      if constexpr (kExtra) {
        extra += window.of(i, low.extra, high.extra);
      }
      for_groups<kRun, kGroups>(first, half, [&](int g, int) {
#pragma unroll
        for (int a = 0; a < kRun; ++a) {
          sum[g][a] = fmaf(scale, x[g][a] - key[g][a], sum[g][a]);
        }
      });
    };
    walk_selections<T, kRun>(call, own.book, window, first, half, prepare, use, [](int) {});
  }
  if (current >= 0) {
    flush();
  }
}

// How the addressing loss pushes a token's sub-score number `rank` in a codebook; `at` is where the
// token's begin there; slope: of p log(p + eps), by sub-key.
__device__ inline float addressing_push(const FwpkmCall& call, const FwpkmSpan& span,
                                        const float* p, const float* slope, int64_t at, int book,
                                        int rank) {
  const float* a = slope + static_cast<int64_t>(book % call.marginals) * call.n;
  float mean = 0;
#pragma unroll 8
  for (int r = 0; r < call.k; ++r) {
    mean = fmaf(p[at + r], a[call.ids[at + r]], mean);
  }
  return call.addr_weight * p[at + rank] * (a[call.ids[at + rank]] - mean) /
         marginal_tokens(call, span);
}

// The slope of p log(p + eps).
__device__ inline float marginal_slope(float p) {
  const float eps = static_cast<float>(kMarginalEps);
  return p > 0 ? logf(p + eps) + p / (p + eps) : 0.0f;
}

}  // namespace fwpkm
