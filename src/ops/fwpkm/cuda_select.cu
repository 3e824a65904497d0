// Two ways to a token's k best sub-keys, with the same result (README.md, "Selecting"): a product
// says which could be among them, and those are looked at closely; where that could be too many, or
// what is not a number gets in the way, all are.
//
// For queries in bf16 the product is one of tensor cores, with sub-keys rounded to bf16; where one
// kernel can do all of it, that is cuda_tiles.cu.
#include <algorithm>

#include "ops/fwpkm/cuda_search.cuh"

namespace fwpkm {
namespace {

constexpr int kNear = 128;                     // sub-keys that can be looked at closely
constexpr int64_t kScores = int64_t{1} << 24;  // about how many are kept at a time

// A sub-key, packed; those past the end are zeros.
template <int kRun>
__device__ void pack_key(const FwpkmCall& call, const FwpkmProducts& work, int book, int id,
                         const float* key) {
  for (int c = threadIdx.x % 32 * kRun; c < call.half; c += 32 * kRun) {
    float x[kRun] = {};
    if (id < call.n) {
      load_run(key + c, x);
    }
    work.pack_key(call, book, id, c, x);
  }
  bf16* row = work.keys + (static_cast<int64_t>(book) * work.padded + id) * work.depth;
  for (int c = call.half + threadIdx.x % 32; c < work.depth; c += 32) {
    row[c] = from_float<bf16>(0);
  }
}
template <int kRun>
__device__ void pack_query(const bf16* query, bf16* to, int half, int depth) {
  for (int c = threadIdx.x % 32 * kRun; c < half; c += 32 * kRun) {
    float x[kRun];
    load_run(query + c, x);
    store_wide(to + c, x);
  }
  for (int c = half + threadIdx.x % 32; c < depth; c += 32) {
    to[c] = from_float<bf16>(0);
  }
}

// A warp for each sub-key (the first `key_rows`), then one for each query and codebook.
template <int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    prepare_kernel(FwpkmCall call, FwpkmProducts work, FwpkmSpan span, int key_rows) {
  const int lane = threadIdx.x % 32;
  int item = blockIdx.x * kFwpkmWarps + threadIdx.x / 32;
  if (item < key_rows) {
    const int book = item / work.padded, id = item % work.padded;
    const bool here = id < call.n;
    const float* key = call.keys + (static_cast<int64_t>(book) * call.n + id) * call.half;
    float sum = 0;
    for (int c = lane; here && c < call.half; c += 32) {
      sum = fmaf(key[c], key[c], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      work.norms[item] = sum;
    }
    if (call.narrow) {
      pack_key<kRun>(call, work, book, id, key);
    }
    if (work.tiled && lane == 0) {
      for (int i = item; i < work.tiles(call); i += key_rows) {
        work.arrivals[i] = 0;
      }
    }
    return;
  }
  item -= key_rows;
  if (call.narrow && !work.tiled && item < call.books * span.count) {
    const int book = item / span.count, t = span.token(item % span.count);
    pack_query<kRun>(query_of<bf16>(call, t, book),
                     work.queries + static_cast<int64_t>(item) * work.depth, call.half, work.depth);
  }
}

// The k-th largest of what the lanes hold, k <= 32; 0 where that is not a number.
__device__ uint32_t kth_of_lanes(int k, uint32_t order) {
  int reach = 0;
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) {
    reach += __shfl_sync(kWholeWarp, order, lane) >= order ? 1 : 0;
  }
  return __reduce_max_sync(kWholeWarp, reach >= k ? order : 0u);
}

// Products of a stretch of sub-keys as a warp holds them: what their closeness is but for |q|^2.
constexpr int kParts = 4;
constexpr int kStretch = kParts * 128;
struct Stretch {
  float values[kParts][4];

  // Past the end they are not numbers; rows are padded to four. `norm`: the largest.
  __device__ void load(const FwpkmCall& call, const float* products, const float* norms, int first,
                       float* norm) {
    const int lane = threadIdx.x % 32;
    float y[kParts][4] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int i = first + part * 128 + lane * 4;
      if (i < call.n) {
        load_run(products + i, values[part]);
        load_run(norms + i, y[part]);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int left = call.n - (first + part * 128 + lane * 4);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const float x = values[part][u];
        *norm = fmaxf(*norm, y[part][u]);  // 0 for those that only pad
        values[part][u] = u >= left ? NAN : call.dot ? x : fmaf(2.0f, x, -y[part][u]);
      }
    }
  }
  __device__ void add_best(float (&best)[kParts]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        best[part] = fmaxf(best[part], values[part][u]);
      }
    }
  }
  // Adds those that are not below `least` to a list of `count`, as far as it has room; -> how many
  // there are then.
  __device__ int append(float least, int first, int count, uint64_t* list) const {
    const int lane = threadIdx.x % 32;
    unsigned taken = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        taken |= values[part][u] >= least ? 1u << (part * 4 + u) : 0u;
      }
    }
    int before = __popc(taken);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kWholeWarp, before, step);
      before += lane >= step ? other : 0;
    }
    const int all = __shfl_sync(kWholeWarp, before, 31);
    int at = count + before - __popc(taken);
    for (; taken != 0 && at < kNear; taken &= taken - 1, ++at) {
      const int bit = __ffs(taken) - 1;
      list[at] = static_cast<uint64_t>(first + bit / 4 * 128 + lane * 4 + bit % 4);
    }
    return count + all;
  }
};

// Those that the products let through; false if they are too many to be looked at. Whoever is more
// than twice the slack below k others is not among the best.
template <typename T, int kRun>
__device__ bool take_from_near(const Search<T, kRun>& search, const float* products,
                               const float* norms, const FwpkmSlack& slack) {
  const FwpkmCall& call = search.call;
  uint64_t* list = search.list;
  const int lane = threadIdx.x % 32;
  float norm = 0, square = 0;
  for (int c = lane * kRun; c < call.half; c += 32 * kRun) {
    float x[kRun];
    load_run(search.q + c, x);
    square = dot_run(x, x, square);
  }
  // The best of groups: k of them that reach a value are k sub-keys that do.
  Stretch held;
  held.load(call, products, norms, 0, &norm);
  float best[kParts] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  held.add_best(best);
  for (int first = kStretch; first < call.n; first += kStretch) {
    Stretch next;
    next.load(call, products, norms, first, &norm);
    next.add_best(best);
  }
  uint32_t kth;
  if (call.k <= 16) {
    kth = kth_of_lanes(call.k, order_of(fmaxf(fmaxf(best[0], best[1]), fmaxf(best[2], best[3]))));
  } else {
    kth = kth_largest(call.k, [&](auto&& fn) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        fn(order_of(best[part]));
      }
    });
  }
  const float off = slack.most(warp_sum(square), warp_max(norm));
  const float least = kth == 0 ? -INFINITY : score_of(kth) - 2 * off;
  int count = held.append(least, 0, 0, list);
  for (int first = kStretch; first < call.n; first += kStretch) {
    Stretch next;
    next.load(call, products, norms, first, &norm);
    count = next.append(least, first, count, list);
  }
  if (count < call.k || count > kNear) {
    return false;
  }
  __syncwarp();
  search.look(
      count, [&](int i) { return static_cast<int>(list[i]); },
      [&](int i, float closeness) {  // it took all lanes, which have the ids they look at
        if (lane == i % 32) {
          list[i] = key_of(order_of(closeness), static_cast<int>(list[i]));
        }
      });
  __syncwarp();
  for (int i = lane; i < count; i += 32) {
    const uint64_t key = list[i];
    int rank = 0;
#pragma unroll 8
    for (int other = 0; other < count; ++other) {
      rank += list[other] > key ? 1 : 0;
    }
    if (rank < call.k) {
      search.ids[rank] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
      search.scores[rank] = score_of_closeness(call, score_of(static_cast<uint32_t>(key >> 32)));
    }
  }
  __syncwarp();  // `list` serves again
  return true;
}

// The softmax over the selected sub-scores of a codebook.
__device__ void store_softmax(const float* scores, int k, float* p) {
  const int lane = threadIdx.x % 32;
  float top = -INFINITY, total = 0;
  for (int r = lane; r < k; r += 32) {
    top = fmaxf(top, scores[r]);
  }
  top = warp_max(top);
  for (int r = lane; r < k; r += 32) {
    total += expf(scores[r] - top);
  }
  total = warp_sum(total);
  for (int r = lane; r < k; r += 32) {
    p[r] = expf(scores[r] - top) / total;
  }
}

// Two neighbouring warps have a head of a token, one for each codebook; the first then picks slots.
// What they find stays in shared memory if it fits there.
template <typename T, int kRun, int kHeld>
__global__ void __launch_bounds__(kFwpkmThreads, 4)
    select_kernel(FwpkmCall call, FwpkmProducts work, FwpkmSpan span, FwpkmSlack slack, float* p) {
  __shared__ uint64_t lists[kFwpkmWarps][kNear];
  __shared__ float best_scores[kFwpkmWarps][kNear / 2];
  __shared__ int32_t best_ids[kFwpkmWarps][kNear / 2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int item = blockIdx.x * (kFwpkmWarps / 2) + warp / 2;
  const bool here = item < span.count * call.heads, held = 2 * call.k <= kNear;
  const int j = here ? item / call.heads : 0, head = here ? item % call.heads : 0;
  const int t = span.token(j), book = 2 * head + warp % 2;
  const int64_t at = selections_at(call, t, book);
  uint64_t* list = call.k <= kNear
                       ? lists[warp]
                       : work.lists + (static_cast<int64_t>(item) * 2 + warp % 2) * call.k;
  if (here) {
    const Search<T, kRun> search{call,
                                 query_of<T>(call, t, book),
                                 call.keys + static_cast<int64_t>(book) * call.n * call.half,
                                 list,
                                 held ? best_scores[warp] : call.scores + at,
                                 held ? best_ids[warp] : call.ids + at};
    if (call.given_ids != nullptr) {
      search.take_given(call.given_ids + at);
    } else {
      float* products = work.products + (static_cast<int64_t>(book) * span.count + j) * work.padded;
      if (!held || !take_from_near(search, products, work.norms + book * work.padded, slack)) {
        search.take_from_all(products);
      }
    }
    __syncwarp();
    for (int r = lane; r < call.k && held; r += 32) {
      call.scores[at + r] = search.scores[r];
      call.ids[at + r] = search.ids[r];
    }
    if (p != nullptr) {
      store_softmax(search.scores, call.k, p + at);
    }
  }
  __syncthreads();
  if (here && warp % 2 == 0) {
    const int64_t read = static_cast<int64_t>(t) * call.reads + head * call.k;
    const Best best{
        {held ? best_scores[warp] : call.scores + at,
         held ? best_scores[warp + 1] : call.scores + at + call.k},
        {held ? best_ids[warp] : call.ids + at, held ? best_ids[warp + 1] : call.ids + at + call.k},
        call.weights + read,
        call.slots + read,
        call.picks + read};
    pick_slots<kHeld>(call, best, call.given_picks == nullptr ? nullptr : call.given_picks + read,
                      list);
  }
}

// What products need of the first `key_rows` sub-keys, those of padding among them, and of queries.
void prepare(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span, int key_rows,
             int64_t queries) {
  if (key_rows + queries == 0) {
    return;
  }
  with_run(call, [&](auto run) {
    prepare_kernel<decltype(run)::value>
        <<<fwpkm_blocks(key_rows + queries), kFwpkmThreads, 0, this_stream()>>>(call, work, span,
                                                                                key_rows);
  });
  check_launch("fwpkm preparing products");
}

// Products of all queries of a span with all sub-keys.
void multiply(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span) {
  if (call.narrow) {
    gpu_gemm({.transpose_b = true,
              .m = span.count,
              .n = work.padded,
              .k = work.depth,
              .lda = work.depth,
              .ldb = work.depth,
              .ldc = work.padded,
              .batch = call.books,
              .stride_a = int64_t{span.count} * work.depth,
              .stride_b = int64_t{work.padded} * work.depth,
              .stride_c = int64_t{span.count} * work.padded},
             work.queries, work.keys, work.products);
    return;
  }
  const float* q = static_cast<const float*>(call.q) + int64_t{span.first} * call.row;
  for (int64_t book = 0; book < call.books; ++book) {
    gpu_gemm({.transpose_b = true,
              .m = span.length,
              .n = call.n,
              .k = call.half,
              .lda = call.row,
              .ldb = call.half,
              .ldc = work.padded,
              .batch = call.batch,
              .stride_a = int64_t{call.time} * call.row,
              .stride_c = int64_t{span.length} * work.padded},
             q + book * call.half, call.keys + book * call.n * call.half,
             work.products + book * span.count * work.padded);
  }
}

// Floats: as README.md has it. Tensor cores cut off where floats round, hence twice as much, and a
// number of a sub-key is off by at most 2^-9 of it, which counts twice in a distance.
FwpkmSlack product_slack(const FwpkmCall& call) {
  const float sums = 0x1.0p-23f * (3 * static_cast<float>(call.half) + 8);
  return call.narrow ? FwpkmSlack{2 * sums, 0x1.0p-8f} : FwpkmSlack{sums, 0};
}

}  // namespace

void FwpkmProducts::take(Carver* carver, const FwpkmCall& call) {
  const bool given = call.given_ids != nullptr;
  const bool fits = !given && fits_tiles(call);
  tiled = fits && call.wide;
  const int unit = fits ? kFwpkmUnit : 8;
  padded = (call.n + unit - 1) / unit * unit;
  depth = (call.half + 7) / 8 * 8;
  const int64_t each = int64_t{call.batch} * call.books * padded;  // scores of a token of each row
  const int64_t longest = std::min(call.time, call.chunk);
  // Where tiles fit only unaligned rows come here: memory must not depend on where rows lie.
  const int64_t scores = fits ? kScores >> 8 : kScores;
  tokens = static_cast<int>(
      std::clamp<int64_t>(scores / std::max<int64_t>(1, each), 1, std::max<int64_t>(1, longest)));
  const int64_t rows = int64_t{call.batch} * tokens * call.books;
  products = carver->take<float>(given ? 0 : rows * padded);
  norms = carver->take<float>(given ? 0 : int64_t{call.books} * padded);
  const bool packed = call.narrow && !given;
  queries = carver->take<bf16>(packed ? rows * depth : 0);
  keys = carver->take<bf16>(packed ? int64_t{call.books} * padded * depth : 0);
  lists = carver->take<uint64_t>(call.k > kNear ? rows * call.k : 0);
  arrivals = carver->take<int>(fits ? tiles(call) : 0);
}

void select_slots(const FwpkmCall& call, const FwpkmProducts& work, const FwpkmSpan& span,
                  bool new_keys, float* p, const FwpkmTally& tally) {
  if (work.tiled) {
    prepare(call, work, span, new_keys ? call.books * work.padded : 0, 0);
    select_in_tiles(call, work, span, product_slack(call), p, tally);
    return;
  }
  for (int begin = 0; begin < span.length; begin += work.tokens) {
    const FwpkmSpan part = span.part(call, begin, std::min(begin + work.tokens, span.length));
    if (call.given_ids == nullptr) {
      const int key_rows = new_keys && begin == 0 ? call.books * work.padded : 0;
      prepare(call, work, part, key_rows, call.narrow ? int64_t{call.books} * part.count : 0);
      multiply(call, work, part);
    }
    const auto launch = [&](auto kernel) {
      const int64_t items = int64_t{part.count} * call.heads;
      kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmWarps / 2)), kFwpkmThreads, 0,
               this_stream()>>>(call, work, part, product_slack(call), p);
      check_launch("fwpkm selecting");
    };
    with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
      if (call.k <= 8) {
        launch(&select_kernel<T, Run::value, 8>);
      } else {
        launch(&select_kernel<T, Run::value, 0>);
      }
    });
  }
  if (tally.counts != nullptr) {
    tally_selections(call, span, tally, p);
  }
}

}  // namespace fwpkm
