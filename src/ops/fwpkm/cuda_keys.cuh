// Sums over the selections of a sub-key. A codebook's sorted list is cut into pieces of one length,
// so that nobody waits for a sub-key that all tokens like: a warp adds up the parts of groups that
// lie in its piece, and another kernel adds up the parts of each group.
#pragma once

#include "ops/fwpkm/cuda_group.cuh"

namespace fwpkm {

inline constexpr int kFwpkmPiece = 32;
inline constexpr int kFwpkmKeyGroups = 2;  // runs of columns that a lane holds of a sub-key

inline __host__ __device__ int pieces_of(const FwpkmCall& call, const FwpkmSpan& span) {
  return (span.count * call.k + kFwpkmPiece - 1) / kFwpkmPiece;
}
// Rows of parts for each codebook. A group and a piece that share something have row group + piece:
// along the list one or the other of the two goes up, so all these differ.
inline __host__ __device__ int64_t key_part_rows(const FwpkmCall& call, const FwpkmSpan& span) {
  return static_cast<int64_t>(pieces_of(call, span)) + call.n;
}

// How many tokens a marginal is the mean of.
__device__ inline float marginal_tokens(const FwpkmCall& call, const FwpkmSpan& span) {
  return static_cast<float>(span.count * (call.official ? call.heads : 1));
}

// One selection, as the lanes of a warp hold the ones of a piece.
struct Selection {
  bool here;
  int id, j, rank;  // sub-key; token number in the chunk; rank among the token's selected
  int t;            // token

  __device__ Selection(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       int book, int position) {
    const int length = span.count * call.k;
    here = position < length;
    const uint64_t element =
        groups.entries[static_cast<int64_t>(book) * length + min(position, length - 1)];
    id = id_of(element);
    j = place_of(element) / call.k;
    rank = place_of(element) % call.k;
    t = span.token(j);
  }
  // Its number among the selections of all tokens, and of the chunk's.
  __device__ int64_t of_all(const FwpkmCall& call, int book) const {
    return (static_cast<int64_t>(t) * call.books + book) * call.k + rank;
  }
  __device__ int64_t of_chunk(const FwpkmCall& call, int book) const {
    return (static_cast<int64_t>(j) * call.books + book) * call.k + rank;
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

// Walks through a piece, columns from `first` on: calls use(i, head, x, rows) for selection i, with
// x its query and rows[m] row numbers[m] of tables[m], where each lane has the numbers of the
// selection at its place. Selections of a sub-key lie side by side and have the same rows: these
// are fetched at the first one (`head`) only, while the sub-key before is at work. kAhead queries
// are on their way at a time. A table that is null has rows of zeros.
template <typename T, int kRun, int kAhead, int kTables, typename Use>
__device__ inline void walk_piece(const FwpkmCall& call, int book, const Selection& mine, int first,
                                  const float* const (&tables)[kTables],
                                  const int (&numbers)[kTables], Use&& use) {
  constexpr int kGroups = kFwpkmKeyGroups;
  const int lane = threadIdx.x % 32;
  const int some = __popc(__ballot_sync(kWholeWarp, mine.here));
  const int before = __shfl_sync(kWholeWarp, mine.id, max(lane - 1, 0));
  const unsigned heads = __ballot_sync(kWholeWarp, mine.here && (lane == 0 || mine.id != before));
  unsigned left = heads;
  float rows[kTables][kGroups][kRun] = {}, next[kTables][kGroups][kRun] = {};
  const auto fetch_next = [&] {
    if (left == 0) {
      return;
    }
    const int i = __ffs(left) - 1;
    left &= left - 1;
#pragma unroll
    for (int m = 0; m < kTables; ++m) {
      const int64_t number = __shfl_sync(kWholeWarp, numbers[m], i);
      if (tables[m] != nullptr) {
        for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
          load_run(tables[m] + number * call.half + c, next[m][g]);
        });
      }
    }
  };
  fetch_next();
  for (int begin = 0; begin < some; begin += kAhead) {
    PackedRun<T, kRun> packed[kAhead][kGroups];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int i = min(begin + u, some - 1);
      const T* q = query_of<T>(call, __shfl_sync(kWholeWarp, mine.t, i), book);
      for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
        packed[u][g] = *reinterpret_cast<const PackedRun<T, kRun>*>(q + c);
      });
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int i = begin + u;
      if (i >= some) {
        break;
      }
      const bool head = (heads >> i & 1) != 0;
      if (head) {
#pragma unroll
        for (int m = 0; m < kTables; ++m) {
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int a = 0; a < kRun; ++a) {
              rows[m][g][a] = next[m][g][a];
            }
          }
        }
        fetch_next();
      }
      float x[kGroups][kRun];
      for_groups<kRun, kGroups>(first, call.half,
                                [&](int g, int) { load_run(packed[u][g].values, x[g]); });
      use(i, head, x, rows);
    }
  }
}

// Adds up, for the groups in a piece, scale * (q - K), or scale * q for dot products. Each lane has
// the selection at its place in the piece, its scale and the number in `keys` of its sub-key as the
// chunk read it.
template <typename T, int kRun, int kAhead>
__device__ inline void sum_piece(const FwpkmCall& call, const FwpkmSpan& span, int book, int piece,
                                 const Selection& mine, float scale, const float* keys, int key,
                                 float* parts) {
  constexpr int kGroups = kFwpkmKeyGroups;
  float* part = parts + (book * key_part_rows(call, span) + piece) * call.half;
  const float* const tables[1] = {call.dot ? nullptr : keys};
  const int numbers[1] = {key};
  for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
    float sum[kGroups][kRun] = {};
    int group = __shfl_sync(kWholeWarp, mine.id, 0);
    const auto flush = [&] {
      for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
        store_wide(part + static_cast<int64_t>(group) * call.half + c, sum[g]);
      });
    };
    walk_piece<T, kRun, kAhead>(
        call, book, mine, first, tables, numbers,
        [&](int i, bool head, float(&x)[kGroups][kRun], const float(&rows)[1][kGroups][kRun]) {
          const float s = __shfl_sync(kWholeWarp, scale, i);
          if (head && i > 0) {
            flush();
            group = __shfl_sync(kWholeWarp, mine.id, i);
          }
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int) {
#pragma unroll
            for (int a = 0; a < kRun; ++a) {
              sum[g][a] = fmaf(s, x[g][a] - rows[0][g][a], head ? 0.0f : sum[g][a]);
            }
          });
        });
    flush();
  }
}

// Adds the parts of a group, selections begin..end of its codebook's list, to `sum`: columns from
// `first` on.
template <int kRun>
__device__ inline void add_parts(const FwpkmCall& call, const FwpkmSpan& span, int book, int id,
                                 int begin, int end, const float* parts, int first,
                                 float (&sum)[kFwpkmKeyGroups][kRun]) {
  const float* group = parts + (book * key_part_rows(call, span) + id) * call.half;
#pragma unroll 4
  for (int piece = begin / kFwpkmPiece; piece <= (end - 1) / kFwpkmPiece; ++piece) {
    for_groups<kRun, kFwpkmKeyGroups>(first, call.half, [&](int g, int c) {
      float x[kRun];
      load_run(group + static_cast<int64_t>(piece) * call.half + c, x);
      add_run(1.0f, x, sum[g]);
    });
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
