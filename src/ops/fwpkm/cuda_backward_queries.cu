// Backward of the keys, token by token: from the gradients of weights to those of queries.
#include <algorithm>

#include "ops/fwpkm/cuda_backward.cuh"

namespace fwpkm {
namespace {

// The sum over the half of a warp that this lane is in.
__device__ float half_sum(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, step);
  }
  return x;
}

// What the addressing loss's gradient gives to a token's scores in one codebook, where the keys
// have gradients. A half of a warp has a codebook.
struct ThroughAddressing {
  const float *p, *gam, *a, *dpbar;
  const int32_t* ids;
  float lambda, share;
  float a_mean = 0, gam_mean = 0, dp_mean = 0;

  __device__ ThroughAddressing(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                               int64_t all, int64_t own, int book) {
    const int64_t marginal = static_cast<int64_t>(book % call.marginals) * call.n;
    p = back.p + all;
    gam = back.gam + own;
    a = back.slope + static_cast<int64_t>(span.number) * call.marginals * call.n + marginal;
    dpbar = back.dpbar + marginal;
    ids = call.ids + all;
    lambda = call.addr_weight;
    share = 1.0f / marginal_tokens(call, span);
    for (int r = threadIdx.x % 16; r < call.k; r += 16) {
      a_mean = fmaf(p[r], a[ids[r]], a_mean);
      gam_mean = fmaf(p[r], lambda * gam[r], gam_mean);
    }
    a_mean = half_sum(a_mean);
    gam_mean = half_sum(gam_mean);
    for (int r = threadIdx.x % 16; r < call.k; r += 16) {
      dp_mean = fmaf(p[r], dp(r), dp_mean);
    }
    dp_mean = half_sum(dp_mean);
  }
  __device__ float dp(int r) const {
    const float slope = a[ids[r]];
    return (lambda * gam[r] * (slope - a_mean) - slope * gam_mean + dpbar[ids[r]]) * share;
  }
  __device__ float ds(int r) const { return p[r] * (dp(r) - dp_mean); }
};

// From dw to the gradients of the token's sub-scores: a head at a time, half a warp for each of its
// codebooks.
__global__ void __launch_bounds__(kFwpkmThreads)
    scores_kernel(FwpkmCall call, FwpkmSpan span, FwpkmBack back) {
  const int j = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (j >= span.count) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const int64_t first = static_cast<int64_t>(span.token(j)) * call.reads;
  const int64_t own = static_cast<int64_t>(j) * call.reads;
  const float *weights = call.weights + first, *dw = back.dw + first;
  float mean = 0;
  for (int r = lane; r < call.reads; r += 32) {
    mean = fmaf(weights[r], dw[r], mean);
  }
  mean = warp_sum(mean);
  for (int head = 0; head < call.heads; ++head) {
    const int book = 2 * head + lane / 16;
    const int64_t all = 2 * first + book * call.k, at = 2 * own + book * call.k;
    const auto store = [&](auto&& from_keys) {
      for (int rank = lane % 16; rank < call.k; rank += 16) {
        float sum = from_keys(rank);
#pragma unroll 8
        for (int r = head * call.k; r < (head + 1) * call.k; ++r) {
          const int pick = call.picks[first + r];
          const bool part = (lane < 16 ? pick / call.k : pick % call.k) == rank;
          const float slot = weights[r] * (dw[r] - mean);
          sum += part ? slot : 0.0f;
        }
        back.ds[all + rank] = sum;
      }
    };
    const auto from_slope = [&](int rank) {  // r in 2 r (q - K) goes through the score
      return back.keys_live && !call.dot ? back.push[all + rank] * back.gam[at + rank] : 0.0f;
    };
    if (back.keys_live && call.addr_loss) {
      const ThroughAddressing through(call, span, back, all, at, book);
      store([&](int rank) { return from_slope(rank) + through.ds(rank); });
    } else {
      store(from_slope);
    }
  }
}

// What a selected sub-key and its gradient give to the query's, by number among all selections.
struct QueryTerm {
  int id;
  float by_score, by_key = 0;

  __device__ QueryTerm(const FwpkmCall& call, const FwpkmBack& back, bool live, int64_t at)
      : id(call.ids[at]) {
    const float slope = slope_of(call, call.scores[at]);
    by_score = slope * back.ds[at];
    if (live) {
      by_key = -slope * back.push[at];
    }
  }
};

// A query's gradient from those of its scores and of the sub-keys that it moved: a warp for each
// codebook of each token.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    query_kernel(FwpkmCall call, FwpkmLists lists, FwpkmBack back, FwpkmQueries queries,
                 int blocks) {
  constexpr int kGroups = kFwpkmKeyGroups, kAhead = 4;
  const int block = blockIdx.x, number = block / blocks;  // `blocks` for each chunk
  const FwpkmSpan span(call, queries.first + number);
  const FwpkmGroups groups = lists.of(call, span);
  const int item = block % blocks * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= span.count * call.books) {
    return;
  }
  const bool live = (queries.live >> number & 1) != 0;
  const int lane = threadIdx.x % 32, t = span.token(item / call.books), book = item % call.books;
  const int64_t all = selections_at(call, t, book);
  const T* query = query_of<T>(call, t, book);
  T* dq = static_cast<T*>(back.dq) + static_cast<int64_t>(t) * call.row + book * call.half;
  const float* dkeys = back.dkeys_after(call, span.number);
  const auto row_of = [&](const float* rows, int row, int i) {
    return rows + static_cast<int64_t>(__shfl_sync(kWholeWarp, row, i)) * call.half;
  };
  for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
    float q[kGroups][kRun] = {}, sum[kGroups][kRun] = {};
    if (!call.dot) {
      for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) { load_run(query + c, q[g]); });
    }
    for (int begin = 0; begin < call.k; begin += 32) {
      const int some = min(32, call.k - begin);
      const QueryTerm term(call, back, live, all + begin + min(lane, some - 1));
      const int key = key_read(call, span, groups, book, term.id);
      for (int r = 0; r < some; r += kAhead) {
        float x[kAhead][kGroups][kRun], y[kAhead][kGroups][kRun];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int i = min(r + u, some - 1);
          const float* k = row_of(keys_read(call), key, i);
          const float* dk = row_of(dkeys, book * call.n + term.id, i);
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
            load_run(k + c, x[u][g]);
            if (live) {
              load_run(dk + c, y[u][g]);
            }
          });
        }
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int i = min(r + u, some - 1);
          const float a = __shfl_sync(kWholeWarp, term.by_score, i);
          const float b = __shfl_sync(kWholeWarp, term.by_key, i);
          if (r + u >= some) {
            continue;
          }
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int) {
            add_run(-1.0f, q[g], x[u][g]);  // q is 0 for dot products
            add_run(a, x[u][g], sum[g]);
            if (live) {
              add_run(b, y[u][g], sum[g]);
            }
          });
        }
      }
    }
    for_groups<kRun, kGroups>(first, call.half,
                              [&](int g, int c) { put_wide(dq + c, sum[g], back.add_q); });
  }
}

// The same where many queries share few sub-keys: a block has a codebook of a chunk, as many
// columns of it as shared memory has room for, and some of the tokens, four to a warp.
constexpr int kSlice = 32;  // columns
constexpr int kSliceThreads = 1024;
constexpr int kSliceLanes = kSlice / 4;  // of a token, four columns each
constexpr size_t kSliceBytes = 160 << 10;

// Puts the slice's columns of a codebook's sub-keys, as the chunk read them, or of their gradients
// into shared memory: rows of kSlice numbers. Sub-keys that nobody selected may have no row.
template <typename RowOf>
__device__ void fill_slice(const FwpkmCall& call, int first, RowOf&& row_of, float* to) {
  const int thread = threadIdx.x, c = thread % kSliceLanes * 4;
#pragma unroll 4
  for (int id = thread / kSliceLanes; id < call.n; id += kSliceThreads / kSliceLanes) {
    float x[4] = {};
    const float* row = row_of(id);
    if (row != nullptr && first + c < call.half) {
      load_run(row + first + c, x);
    }
    store_run(to + id * kSlice + c, x);
  }
}

template <typename T>
__global__ void __launch_bounds__(kSliceThreads)
    slice_kernel(FwpkmCall call, FwpkmLists lists, FwpkmBack back, FwpkmQueries queries,
                 int shares) {
  extern __shared__ __align__(16) float slice_memory[];
  // Whether each difference is rounded by itself, or only their sum, of which bf16 shows nothing.
  constexpr bool kExact = sizeof(T) == 4;
  const int slices = (call.half + kSlice - 1) / kSlice;
  const int share = static_cast<int>(blockIdx.x) % shares;
  const int first = static_cast<int>(blockIdx.x) / shares % slices * kSlice;
  const int book = static_cast<int>(blockIdx.x) / shares / slices % call.books;
  const int number = static_cast<int>(blockIdx.x) / shares / slices / call.books;
  const FwpkmSpan span(call, queries.first + number);
  const FwpkmGroups groups = lists.of(call, span);
  const bool live = (queries.live >> number & 1) != 0;
  float *keys = slice_memory, *dkeys = keys + call.n * kSlice;
  fill_slice(
      call, first,
      [&](int id) -> const float* {
        if (call.keys_move && call.n > span.count * call.k &&
            groups.start(call, book, id) == groups.start(call, book, id + 1)) {
          return nullptr;
        }
        return keys_read(call) +
               static_cast<int64_t>(key_read(call, span, groups, book, id)) * call.half;
      },
      keys);
  if (live) {
    const float* rows =
        back.dkeys_after(call, span.number) + static_cast<int64_t>(book) * call.n * call.half;
    fill_slice(
        call, first, [&](int id) { return rows + static_cast<int64_t>(id) * call.half; }, dkeys);
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, rank = lane % kSliceLanes, base = lane - rank;
  const int column = rank * 4, c = first + column;
  const int end = static_cast<int>(static_cast<int64_t>(span.count) * (share + 1) / shares);
  constexpr int kTokens = 32 / kSliceLanes;  // of a warp
  int begin = static_cast<int>(static_cast<int64_t>(span.count) * share / shares) +
              static_cast<int>(threadIdx.x / 32) * kTokens;
  for (; begin < end; begin += kSliceThreads / kSliceLanes) {
    const int j = begin + lane / kSliceLanes, t = span.token(min(j, end - 1));
    const bool here = j < end && c < call.half;
    const int64_t all = selections_at(call, t, book);
    float q[4] = {}, sum[4] = {}, by_scores = 0;
    if (here && !call.dot) {
      load_run(query_of<T>(call, t, book) + c, q);
    }
    for (int r = 0; r < call.k; r += kSliceLanes) {
      const int some = min(kSliceLanes, call.k - r);
      const QueryTerm term(call, back, live, all + r + min(rank, some - 1));
      by_scores += rank < some ? term.by_score : 0.0f;
      const auto add = [&](int i) {
        const int at = __shfl_sync(kWholeWarp, term.id, base + i) * kSlice + column;
        const float a = __shfl_sync(kWholeWarp, term.by_score, base + i);
        const float b = __shfl_sync(kWholeWarp, term.by_key, base + i);
        float x[4];
        load_run(keys + at, x);
        if constexpr (kExact) {
          add_run(-1.0f, q, x);  // q is 0 for dot products
        }
        add_run(a, x, sum);
        if (live) {
          load_run(dkeys + at, x);
          add_run(b, x, sum);
        }
      };
      if (some == kSliceLanes) {  // without branches, several loads are on their way
#pragma unroll
        for (int i = 0; i < kSliceLanes; ++i) {
          add(i);
        }
      } else {
        for (int i = 0; i < some; ++i) {
          add(i);
        }
      }
    }
    if constexpr (!kExact) {
#pragma unroll
      for (int step = kSliceLanes / 2; step > 0; step /= 2) {
        by_scores += __shfl_xor_sync(kWholeWarp, by_scores, step);
      }
      add_run(-by_scores, q, sum);
    }
    if (here) {
      put_wide(static_cast<T*>(back.dq) + static_cast<int64_t>(t) * call.row + book * call.half + c,
               sum, back.add_q);
    }
  }
}

size_t slice_bytes(const FwpkmCall& call) {
  return size_t{2} * static_cast<size_t>(call.n) * kSlice * sizeof(float);
}
// Whether the sub-keys fit and are read often enough to be fetched as a whole.
bool in_slices(const FwpkmCall& call) {
  return call.half % 4 == 0 && slice_bytes(call) <= std::min(kSliceBytes, most_shared_memory()) &&
         call.batch * longest_span(call) * call.k >= 2 * call.n;
}

template <typename T>
void launch_slices(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmBack& back,
                   const FwpkmQueries& queries) {
  // About a block for each SM; more only where there are more slices.
  constexpr int64_t kBlocks = 132, kLeast = 4 * kSliceThreads / kSliceLanes;
  const int64_t slices = queries.count * int64_t{call.books} * ceil_div(call.half, kSlice);
  const int64_t most = ceil_div(call.batch * longest_span(call), kLeast);
  const int64_t shares = std::max<int64_t>(1, std::min(kBlocks / slices, most));
  const size_t bytes = slice_bytes(call);
  launch(false, &slice_kernel<T>, static_cast<unsigned>(slices * shares), kSliceThreads, bytes,
         "fwpkm gradients of queries", call, lists, back, queries, static_cast<int>(shares));
}

}  // namespace

void through_scores(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back) {
  launch(false, &scores_kernel, fwpkm_blocks(span.count), kFwpkmThreads, 0,
         "fwpkm gradients of scores", call, span, back);
}

int queries_together(const FwpkmCall& call) {
  // Fetched once for all tokens of a chunk, sub-keys pay best when all SMs have a chunk's.
  constexpr int kMost = 8;
  return in_slices(call) ? std::clamp(call.chunks, 1, kMost) : 1;
}

void to_queries(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmBack& back,
                const FwpkmQueries& queries) {
  if (back.dq == nullptr) {
    return;
  }
  if (call.wide && in_slices(call)) {
    if (call.narrow) {
      launch_slices<bf16>(call, lists, back, queries);
    } else {
      launch_slices<float>(call, lists, back, queries);
    }
  } else {
    const unsigned blocks = fwpkm_blocks(call.batch * longest_span(call) * call.books);
    with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
      launch(false, &query_kernel<T, Run::value>, blocks * static_cast<unsigned>(queries.count),
             kFwpkmThreads, 0, "fwpkm gradients of queries", call, lists, back, queries,
             static_cast<int>(blocks));
    });
  }
}

}  // namespace fwpkm
