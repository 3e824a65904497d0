// Backward sub-key by sub-key.
#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_key_tiles.cuh"

namespace fwpkm {
namespace {

// Pushes of all chunks: a thread for each.
__global__ void __launch_bounds__(kFwpkmThreads) pushes_kernel(FwpkmCall call, FwpkmBack back) {
  const int64_t item = blockIdx.x * int64_t{kFwpkmThreads} + threadIdx.x;
  if (item >= static_cast<int64_t>(call.batch) * call.time * call.books * call.k) {
    return;
  }
  const int rank = static_cast<int>(item % call.k);
  const int book = static_cast<int>(item / call.k % call.books);
  const int t = static_cast<int>(item / call.k / call.books);
  const FwpkmSpan span(call, t % call.time / call.chunk);
  back.push[item] = addressing_push(
      call, span, back.p, back.slope + static_cast<int64_t>(span.number) * call.marginals * call.n,
      item - rank, book, rank);
}

// What a selection adds to the gradient of its sub-key's slope.
__device__ float slope_gradient(const FwpkmCall& call, const FwpkmBack& back, const Selection& s,
                                int book) {
  const float* p = back.p + s.of_all(call, book) - s.rank;
  const float* gam = back.gam + s.of_chunk(call, book) - s.rank;
  const float lambda = call.addr_weight;
  float mean = 0;
#pragma unroll 8
  for (int r = 0; r < call.k; ++r) {
    mean = fmaf(p[r], lambda * gam[r], mean);
  }
  return p[s.rank] * (lambda * gam[s.rank] - mean);
}

// dpbar: a warp for each sub-key of each marginal, two selections for each lane at a time.
__global__ void __launch_bounds__(kFwpkmThreads)
    dpbar_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back) {
  wait_for_earlier();
  const int item = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (item >= call.marginals * call.n) {
    return;
  }
  const int id = item % call.n;
  float sum = 0;
  for (int book = item / call.n; book < call.books; book += call.marginals) {
    const int end = groups.start(call, book, id + 1);
    for (int i = groups.start(call, book, id) + static_cast<int>(threadIdx.x % 32); i < end;
         i += 64) {
      const Selection one(call, span, groups, book, i, end);
      const Selection two(call, span, groups, book, i + 32, end);
      const float a = slope_gradient(call, back, one, book);
      const float b = slope_gradient(call, back, two, book);
      sum += two.here ? a + b : a;
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    const float eps = static_cast<float>(kMarginalEps);
    const float p =
        back.pbar[static_cast<int64_t>(span.number) * call.marginals * call.n + item] + eps;
    back.dpbar[item] = sum / marginal_tokens(call, span) * (1.0f / p + eps / (p * p));
  }
}

// The sum over a warp of x[which % kCount], in each lane for its own `which`: kCount sums at the
// price of a few more exchanges than one.
template <int kCount>
__device__ float sums_for_lanes(float (&x)[kCount], int which) {
  static_assert(kCount == 4 || kCount == 8);
  const int lane = threadIdx.x % 32;
  int step = 16;
#pragma unroll
  for (int left = kCount / 2; left > 0; left /= 2, step /= 2) {
    const bool upper = (lane & step) != 0;  // has the upper half of what is left
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = upper ? x[i] : x[i + left];
      x[i] = (upper ? x[i + left] : x[i]) + __shfl_xor_sync(kWholeWarp, given, step);
    }
  }
  float sum = x[0];
#pragma unroll
  for (; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, step);
  }
  // Sum number s is in lane 32 / kCount * s now.
  return __shfl_sync(kWholeWarp, sum, (which & (kCount - 1)) * (32 / kCount));
}

// A warp's share of gam = -<x, E>, the gradients of pushes, columns first..half. `keys`, `e`:
// the block's sub-keys (null for dot products) and their gradients.
template <typename T, int kRun>
__device__ void add_gam(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                        const FwpkmBack& back, const OwnKeys& own, const OwnSelections& all,
                        int first, int half, const OwnRows<kRun>* keys, const OwnRows<kRun>& e) {
  constexpr int kGroups = kFwpkmKeyGroups, kTogether = kFwpkmTogether<T>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int end = all.share(warp + 1);
  for (int at = all.share(warp); at < end; at += SelectionWindow::kLength) {
    const SelectionWindow window(call, span, groups, own.book, at, end);
    float scores[2] = {}, along[2] = {}, parts[kTogether];
    float key[kGroups][kRun] = {}, gradient[kGroups][kRun] = {};
    const auto prepare = [&] {
      scores[0] = call.scores[window.low.of_all(call, own.book)];
      scores[1] = call.scores[window.high.of_all(call, own.book)];
    };
    const auto use = [&](int i, int u, bool head, float(&x)[kGroups][kRun]) {
      if (head) {
        const int d = window.of(i, window.low.id, window.high.id) - own.first;
        e.get(d, first, half, gradient);
        if (keys != nullptr) {
          keys->get(d, first, half, key);
        }
      }
      parts[u] = 0;
      for_groups<kRun, kGroups>(first, half, [&](int g, int) {
        add_run(-1.0f, key[g], x[g]);
        parts[u] = dot_run(x[g], gradient[g], parts[u]);
      });
    };
    const auto done = [&](int i) {
      const float sum = sums_for_lanes(parts, lane - i);
      const int part = i / 32;  // low or high
      along[part] = lane >= i % 32 && lane < i % 32 + kTogether ? sum : along[part];
    };
    walk_selections<T, kRun>(call, own.book, window, first, half, prepare, use, done);
    const auto store = [&](const Selection& one, float score, float sum) {
      if (one.here) {
        float* gam = back.gam + one.of_chunk(call, own.book);
        *gam = (first == 0 ? 0.0f : *gam) - slope_of(call, score) * sum;
      }
    };
    store(window.low, scores[0], along[0]);
    store(window.high, scores[1], along[1]);
  }
}

// How a selection counts in the gradient of its sub-key. Of itself a sub-key also gets what its own
// move had of it: the extra.
__device__ SelectionScale gradient_by(const FwpkmCall& call, const FwpkmBack& back, int book,
                                      const Selection& one) {
  const int64_t at = one.of_all(call, book);
  const float slope = slope_of(call, call.scores[at]);
  return {slope * back.ds[at], back.keys_live && !call.dot ? slope * back.push[at] : 0.0f};
}

// The sub-key of a warp, where it has one.
struct GradientOfKey {
  bool here;
  int d, id;           // the number in its block; the sub-key
  int begin, end;      // its selections
  const float* after;  // the gradient after the chunk, and before it
  float* to;

  __device__ GradientOfKey(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                           const FwpkmBack& back, const OwnKeys& own) {
    const int warp = threadIdx.x / 32;
    here = warp < own.count;
    d = min(warp, own.count - 1);
    id = own.first + d;
    begin = groups.start(call, own.book, id);
    end = groups.start(call, own.book, id + 1);
    const int64_t at = (static_cast<int64_t>(own.book) * call.n + id) * call.half;
    after = back.dkeys_after(call, span.number) + at;
    to = back.dkeys_after(call, span.number - 1) + at;
  }
  // The sub-key as a chunk read it; null if none of its tokens did, and for dot products.
  __device__ const float* key(const FwpkmCall& call, const FwpkmSpan& span,
                              const FwpkmGroups& groups, int book) const {
    const bool selected = groups.start(call, book, id) < groups.start(call, book, id + 1);
    return !here || call.dot || !selected
               ? nullptr
               : keys_read(call) +
                     static_cast<int64_t>(key_read(call, span, groups, book, id)) * call.half;
  }
};

// The gradients of the keys before a chunk, from those after it and from those of scores; then, for
// the chunk before, the gradients of its pushes. kWhole: as in moving.
template <typename T, int kRun, bool kWhole>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    dkeys_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmGroups groups_before,
                 FwpkmBack back) {
  wait_for_earlier();
  constexpr int kGroups = kFwpkmKeyGroups;
  const int half = kWhole ? OwnRows<kRun>::kColumns : call.half;
  __shared__ __align__(16) KeyParts<kRun> parts;
  __shared__ __align__(16) OwnRows<kRun> keys, keys_before, e;
  const OwnKeys own(call, static_cast<int>(blockIdx.x));
  const FwpkmSpan before(call, span.number - 1);
  const OwnSelections all(call, groups, own), all_before(call, groups_before, own);
  const GradientOfKey mine(call, span, groups, back, own);
  const auto fetch_key = [&](const float* key, int first, OwnRows<kRun>* rows) {
    if (key != nullptr) {
      rows->fetch(mine.d, key, first, half);
    }
  };
  for (int first = 0; first < half; first += OwnRows<kRun>::kColumns) {
    __syncthreads();  // the columns before are done
    fetch_key(mine.key(call, span, groups, own.book), first, &keys);
    fetch_key(mine.key(call, before, groups_before, own.book), first, &keys_before);
    __syncthreads();
    sum_share<T, kRun, true>(
        call, span, groups, own, all, first, half, call.dot ? nullptr : &keys, &parts,
        [&](const Selection& one) { return gradient_by(call, back, own.book, one); });
    __syncthreads();
    if (mine.here) {
      float old[kGroups][kRun] = {}, sum[kGroups][kRun] = {};
      if (back.keys_live) {
        for_groups<kRun, kGroups>(first, half,
                                  [&](int g, int c) { load_run(mine.after + c, old[g]); });
      }
      const float scale = 1 + parts.add(all, mine.begin, mine.end, mine.d, first, half, sum);
      for_groups<kRun, kGroups>(first, half, [&](int g, int c) {
        add_run(scale, old[g], sum[g]);
        store_wide(mine.to + c, sum[g]);
        store_run(&e.rows[mine.d][c - first], sum[g]);
      });
    }
    __syncthreads();
    add_gam<T, kRun>(call, before, groups_before, back, own, all_before, first, half,
                     call.dot ? nullptr : &keys_before, e);
  }
}

// What gradients of pushes need of the selections of a round.
struct PushSelections {
  int tokens[kKeyRound], owns[kKeyRound];  // owns: the number of the sub-key in its block
  int at[kKeyRound];                       // where the gradient goes
  float slopes[kKeyRound];

  __device__ void put(const FwpkmCall& call, int i, const OwnKeys& own, const Selection& one) {
    tokens[i] = one.t;
    owns[i] = one.id - own.first;
    at[i] = static_cast<int>(one.of_chunk(call, own.book));
    slopes[i] = slope_of(call, call.scores[one.of_all(call, own.book)]);
  }
};

struct GradientMemory {
  KeyQueries queries;
  KeyFactors factors;
  int tokens[kKeyRound];
  PushSelections pushes;
  float sums[kKeyOwn][kKeyColumns];
  bf16 e[kKeyRows][kKeyLd];  // gradients of the block's sub-keys, in parts
  float along[kKeyOwn];      // <K, E>
};

// gam = -<q - K, E> of a stage of selections, `count` of them from number `first` on; a warp has 8.
__device__ void put_gam(const FwpkmCall& call, const FwpkmBack& back, const GradientMemory& shared,
                        const bf16 (&queries)[kKeyStage][kKeyLd], int first, int count) {
  const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x / 32) * 8;
  if (own >= count) {
    return;
  }
  float d[4] = {};
  for (int c = 0; c < call.half; c += 32) {
    uint32_t a[4], b[4];
    load_pieces(b, &queries[own + lane % 8][c + lane / 8 * 8]);
    load_a(a, &shared.e[0][c], kKeyLd);
    mma(d, a, b[0], b[1]);
    load_a(a, &shared.e[0][c + 16], kKeyLd);
    mma(d, a, b[2], b[3]);
  }
  // Selections 2 (lane % 4) and the next: of all rows those of their sub-keys count.
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int i = own + lane % 4 * 2 + u, at = first + min(i, count - 1);
    const int key = shared.pushes.owns[at];
    if (lane / 4 == key && i < count) {
      back.gam[shared.pushes.at[at]] =
          -shared.pushes.slopes[at] * (d[u] + d[u + 2] - shared.along[key]);
    }
  }
}

// The same on tensor cores.
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    dkeys_tiles_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups,
                       FwpkmGroups groups_before, FwpkmBack back) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<GradientMemory*>(memory);
  constexpr int kGroups = kFwpkmKeyGroups;
  const int half = call.half;
  const OwnKeys own(call, static_cast<int>(blockIdx.x), kKeyOwn);
  const FwpkmSpan before(call, span.number - 1);
  const OwnSelections all(call, groups, own), all_before(call, groups_before, own);
  const GradientOfKey mine(call, span, groups, back, own);
  int number = 0;  // of stages that were fetched
  const auto look_up_pushes = [&](const KeyRound& round) {
    round.each(call, before, groups_before, own.book,
               [&](int i, const Selection& one) { shared.pushes.put(call, i, own, one); });
  };
  const auto fetch_pushes = [&](const KeyRound& round, int stage) {
    shared.queries.fetch(call, own.book, shared.pushes.tokens, round.count, stage, number++);
  };
  const KeyRound first_pushes(all_before, all_before.begin);
  look_up_pushes(first_pushes);
  KeySums sums;
  SelectionScale total{};
  int first = all.begin;
  do {  // once even if nothing is selected
    const KeyRound round(all, first);
    __syncthreads();  // the round before has been used
    round.each(call, span, groups, own.book,
               [&](int i, const Selection& one) { shared.tokens[i] = one.t; });
    __syncthreads();
    const int base = number;
    const auto fetch = [&](int stage) {
      if (round.last() && stage >= round.stages()) {
        fetch_pushes(first_pushes, stage - round.stages());
      } else {
        shared.queries.fetch(call, own.book, shared.tokens, round.count, stage, number++);
      }
    };
    for (int stage = 0; stage + 1 < kKeyStages; ++stage) {
      fetch(stage);
    }
    if (first == all.begin) {
      wait_for_earlier();
    }
    round.each(call, span, groups, own.book, [&](int i, const Selection& one) {
      shared.factors.put(i, one.id - own.first,
                         one.here ? gradient_by(call, back, own.book, one) : SelectionScale{});
    });
    walk_stages(round.stages(), fetch, [&](int stage) {
      sums.add(shared.queries.stage(base + stage), shared.factors, stage * kKeyStage,
               round.in_stage(stage), half);
    });
    if (mine.here) {
      shared.factors.add_up(max(mine.begin - first, 0), min(mine.end - first, round.count), &total);
    }
    first += kKeyRound;
  } while (first < all.end);
  // On their way while the sums are put together.
  float key[kGroups][4] = {}, key_before[kGroups][4] = {}, old[kGroups][4] = {};
  const auto load_key = [&](const float* from, float(&to)[kGroups][4]) {
    if (from != nullptr) {
      for_groups<4, kGroups>(0, half, [&](int g, int c) { load_run(from + c, to[g]); });
    }
  };
  load_key(mine.key(call, span, groups, own.book), key);
  load_key(mine.key(call, before, groups_before, own.book), key_before);
  load_key(mine.here && back.keys_live ? mine.after : nullptr, old);
  sums.store(shared.sums);
  __syncthreads();
  if (mine.here) {
    float along = 0;
    for_groups<4, kGroups>(0, half, [&](int g, int c) {
      float sum[4];
      load_run(&shared.sums[mine.d][c], sum);
      add_run(-total.scale, key[g], sum);
      add_run(1 + total.extra, old[g], sum);
      store_wide(mine.to + c, sum);
      along = dot_run(key_before[g], sum, along);
      put_run_parts(shared.e, c, mine.d, sum);
    });
    along = warp_sum(along);
    if (threadIdx.x % 32 == 0) {
      shared.along[mine.d] = along;
    }
  }
  for (int begin = all_before.begin; begin < all_before.end; begin += kKeyRound) {
    const KeyRound round(all_before, begin);
    if (begin != all_before.begin) {
      __syncthreads();  // the round before has been used
      look_up_pushes(round);
      __syncthreads();
      for (int stage = 0; stage + 1 < kKeyStages; ++stage) {
        fetch_pushes(round, stage);
      }
    }
    const int base = number - (kKeyStages - 1);
    walk_stages(
        round.stages(), [&](int stage) { fetch_pushes(round, stage); },
        [&](int stage) {
          put_gam(call, back, shared, shared.queries.stage(base + stage), stage * kKeyStage,
                  round.in_stage(stage));
        });
  }
}

}  // namespace

void push_all(const FwpkmCall& call, const FwpkmBack& back) {
  const int64_t items = int64_t{call.batch} * call.time * call.books * call.k;
  pushes_kernel<<<static_cast<unsigned>(ceil_div(items, kFwpkmThreads)), kFwpkmThreads, 0,
                  this_stream()>>>(call, back);
  check_launch("fwpkm pushes");
}

void find_dpbar(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                const FwpkmBack& back) {
  launch_next(&dpbar_kernel, fwpkm_blocks(int64_t{call.marginals} * call.n), kFwpkmThreads, 0,
              "fwpkm gradients of marginals", call, span, groups, back);
}

void to_earlier_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmLists& lists,
                     const FwpkmBack& back) {
  const FwpkmSpan before(call, span.number - 1);
  const auto start = [&](auto kernel, int own, size_t bytes) {
    launch_next(kernel, key_blocks(call, own), kFwpkmThreads, bytes, "fwpkm gradients of keys",
                call, span, lists.of(call, span), lists.of(call, before), back);
  };
  if (in_key_tiles(call, sizeof(GradientMemory))) {
    start(&dkeys_tiles_kernel, kKeyOwn, sizeof(GradientMemory));
    return;
  }
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    const bool whole = call.half == OwnRows<Run::value>::kColumns;
    start(whole ? &dkeys_kernel<T, Run::value, true> : &dkeys_kernel<T, Run::value, false>,
          kFwpkmOwn, 0);
  });
}

}  // namespace fwpkm
