// The rows that tokens read: a warp for each token.
#include "ops/fwpkm/cuda_read.cuh"
#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

// A read as a lane holds it.
struct Term {
  float weight = 0;
  const float* row = nullptr;
};

// The softmax over all of a token's reads, from the sums of scores that `weights` holds.
struct JointSoftmax {
  const float* sums;
  float top = -INFINITY, total = 0;
  float first;  // expf of this lane's first one, or 0

  __device__ JointSoftmax(const float* of, int count) : sums(of) {
    const int lane = threadIdx.x % 32;
    const float own = lane < count ? sums[lane] : -INFINITY;
    top = own;
    for (int r = lane + 32; r < count; r += 32) {
      top = fmaxf(top, sums[r]);
    }
    top = warp_max(top);
    total = first = expf(own - top);
    for (int r = lane + 32; r < count; r += 32) {
      total += expf(sums[r] - top);
    }
    total = warp_sum(total);
  }
  // Of read r, which is one of this lane's.
  __device__ float operator()(int r) const {
    return (r < 32 ? first : expf(sums[r] - top)) / total;
  }
};

// A read of that weight, and where its row lies now; both are kept.
__device__ Term find_term(const FwpkmCall& call, int owner, int64_t read, float weight) {
  const int slot = call.slots[read];
  const int place = call.places == nullptr ? -1 : call.places[slot];
  int source = -1;
  if (call.write) {
    const int chain = find_chain(call, owner, slot);
    source = chain < 0 ? -1 : call.writes[static_cast<int64_t>(chain) * 3 + 2];
    call.chain[read] = chain;
    call.share[read] = 0;
  }
  if (call.places != nullptr) {
    source = source >= 0 ? call.free[source] : -2 - place;
  } else {
    source = source >= 0 ? source : overlay_source(call, owner, slot);
  }
  call.weights[read] = weight;
  call.source[read] = source;
  return {weight, value_row(call, source, slot)};
}
// The same, found before.
__device__ Term kept_term(const FwpkmCall& call, int t, int r) {
  const int64_t read = static_cast<int64_t>(t) * call.reads + r;
  return {call.weights[read], value_row(call, call.source[read], call.slots[read])};
}

// The gradient of half the mean weighted squared error by the sub-scores of a writing token;
// `error` is in memory, each lane's own columns by its own hand.
template <int kRun, typename T>
__device__ void push_by_error(const FwpkmCall& call, const FwpkmSpan& span, int j, const T* error,
                              float* along, float* push) {
  const int lane = threadIdx.x % 32, t = span.token(j);
  const int64_t at = static_cast<int64_t>(t) * call.reads;
  for (int r = 0; r < call.reads; ++r) {
    const float* row = value_row(call, call.source[at + r], call.slots[at + r]);
    float sum = 0;
    for (int c = lane * kRun; c < call.dv; c += 32 * kRun) {
      float x[kRun], y[kRun];
      load_run(error + c, x);
      load_run(row + c, y);
      sum = dot_run(x, y, sum);
    }
    sum = warp_sum(sum);
    if (lane == r % 32) {
      along[r] = sum;
    }
  }
  __syncwarp();
  float mean = 0;
  for (int r = lane; r < call.reads; r += 32) {
    mean = fmaf(call.weights[at + r], along[r], mean);
  }
  mean = warp_sum(mean);
  const float scale = gate_of(call, t) / (static_cast<float>(call.batch * span.writers) * call.dv);
  for (int i = lane; i < call.books * call.k; i += 32) {
    const int book = i / call.k, rank = i % call.k;
    float sum = 0;
    for (int r = book / 2 * call.k; r < (book / 2 + 1) * call.k; ++r) {
      const int pick = call.picks[at + r];
      if ((book % 2 == 0 ? pick / call.k : pick % call.k) == rank) {
        sum += scale * call.weights[at + r] * (along[r] - mean);
      }
    }
    push[i] = sum;
  }
}

// Adds the rows that the first `some` lanes hold, times their weights, to `sum`; columns from c on.
// kAhead of them are on their way at a time.
template <typename Row, int kRun, int kAhead, bool kWhole>
__device__ void add_terms(const Term& mine, int some, int c, int width,
                          float (&sum)[kFwpkmGroups<kRun>][kRun]) {
  for (int begin = 0; begin < some; begin += kAhead) {
    RowPart<Row, kRun> x[kAhead][kFwpkmGroups<kRun>] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (begin + u < some) {
        const auto* row = global_pointer(reinterpret_cast<const float*>(
            __shfl_sync(kWholeWarp, reinterpret_cast<uintptr_t>(mine.row), begin + u)));
        for_runs_at<kRun, kWhole>(
            c, width, [&](int g, int column) { x[u][g].load(row, false, column, width); });
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (begin + u < some) {
        const float weight = __shfl_sync(kWholeWarp, mine.weight, begin + u);
        for_runs_at<kRun, kWhole>(c, width, [&](int g, int) {
          float row[kRun];
          x[u][g].get(false, row);
          add_run(weight, row, sum[g]);
        });
      }
    }
  }
}

// What token t reads, to `y` if given; less what it is to find, to `error` if given. -> the sum of
// the error's squares. term(r) is called for each read before kept_term may be, by its own lane.
// Columns are dealt out as lane * kRun + 32 * kRun * i everywhere: what a lane writes, it reads.
// kFull: as in with_full.
template <typename Row, typename T, int kRun, bool kFull, typename TermOf>
__device__ float read_rows(const FwpkmCall& call, int t, T* y, T* error, TermOf&& term) {
  float loss = 0;
  const int lane = threadIdx.x % 32, reads = reads_of<kFull>(call);
  for (int first = 0; first < call.dv; first += kFwpkmGroups<kRun> * 32 * kRun) {
    const int c = first + lane * kRun;
    float sum[kFwpkmGroups<kRun>][kRun] = {};
    for (int begin = 0; begin < reads; begin += 32) {
      const int r = begin + lane;
      Term mine;
      if (r < reads) {
        mine = first == 0 ? term(r) : kept_term(call, t, r);
      }
      // As many bytes of either type, or all.
      constexpr int kAhead = kFull ? kFwpkmFewReads : 8 / sizeof(Row);
      add_terms<Row, kRun, kAhead, kFull>(mine, min(32, reads - begin), c, call.dv, sum);
    }
    const T* target = target_of<T>(call, t);
    for_runs_at<kRun, kFull>(c, call.dv, [&](int g, int column) {
      if (y != nullptr) {
        store_once(y + column, sum[g]);
      }
      if (error != nullptr) {
        float x[kRun];
        load_run(target + column, x);
        add_run(-1.0f, x, sum[g]);
        loss = dot_run(sum[g], sum[g], loss);
        store_wide(error + column, sum[g]);
      }
    });
  }
  __syncwarp();
  return warp_sum(loss);
}

// How the error of token j, or null if it writes nothing, moves the keys.
template <int kRun, typename T>
__device__ void push_token(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found,
                           int j, const T* error) {
  float* push = found.push + static_cast<int64_t>(span.token(j)) * call.books * call.k;
  if (error != nullptr) {
    push_by_error<kRun>(call, span, j, error, found.along + static_cast<int64_t>(j) * call.reads,
                        push);
  } else {
    for (int i = threadIdx.x % 32; i < call.books * call.k; i += 32) {
      push[i] = 0;
    }
  }
}

template <typename Row, typename T, int kRun, bool kFull>
__device__ void read_token(const FwpkmCall& call, const SortedSpan& span, const FwpkmFound& found,
                           float step, int j) {
  const int lane = threadIdx.x % 32, t = span.token(j), reads = reads_of<kFull>(call);
  const bool writes = span.writes(j);
  const float gate = writes ? gate_of(call, t) : 0.0f;
  const int64_t at = static_cast<int64_t>(t) * reads;
  const JointSoftmax softmax(call.weights + at, reads);
  const int owner = call.shared ? 0 : span.row(j);
  float first = 0, squares = 0;  // first: the weight of this lane's first read
  T* error = writes ? row_of<T>(call, found.errors, j) : nullptr;
  const float loss = read_rows<Row, T, kRun, kFull>(
      call, t, static_cast<T*>(call.y) + static_cast<int64_t>(t) * call.dv, error, [&](int r) {
        const float weight = softmax(r);
        first = r < 32 ? weight : first;
        squares = fmaf(weight, weight, squares);
        return find_term(call, owner, at + r, weight);
      });
  if (lane == 0) {
    call.losses[t] = gate * loss / static_cast<float>(call.dv);
  }
  const float eta = call.rewrite ? 1.0f / warp_sum(squares) : step;
  for (int r = lane; r < reads && writes; r += 32) {
    found.coefficients[static_cast<int64_t>(j) * reads + r] =
        -eta * gate * (r < 32 ? first : call.weights[at + r]);
  }
  if (found.push != nullptr) {
    push_token<kRun>(call, span, found, j, error);
  }
}

// Row: what rows of values are read as; bf16 if they lie in halves, of which the upper are such.
template <typename Row, typename T, int kRun, bool kFull>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    read_kernel(FwpkmCall call, SortedSpan span, FwpkmFound found, float step) {
  const int j = warp_item();
  if (j < span.count) {
    read_token<Row, T, kRun, kFull>(call, span, found, step, j);
  }
}

template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    push_kernel(FwpkmCall call, FwpkmSpan span, FwpkmFound found) {
  const int j = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (j >= span.count) {
    return;
  }
  T* error = span.writes(j) ? row_of<T>(call, found.errors, j) : nullptr;
  if (error != nullptr) {
    const int t = span.token(j);
    read_rows<float, T, kRun, false>(call, t, static_cast<T*>(nullptr), error,
                                     [&](int r) { return kept_term(call, t, r); });
  }
  push_token<kRun>(call, span, found, j, error);
}

}  // namespace

void read_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found,
                 float step) {
  with_value_rows(call, [&]<typename T, typename Run, typename Halved>(T*, Run, Halved) {
    with_full<Run::value>(call, [&]<typename Full>(Full) {
      using Row = std::conditional_t<Halved::value, bf16, float>;
      launch(false, &read_kernel<Row, T, Run::value, Full::value>, fwpkm_blocks(span.count),
             kFwpkmThreads, 0, "fwpkm reading", call, SortedSpan(call, span), found, step);
    });
  });
}

void find_pushes(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found) {
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    push_kernel<T, Run::value>
        <<<fwpkm_blocks(span.count), kFwpkmThreads, 0, this_stream()>>>(call, span, found);
  });
  check_launch("fwpkm pushes");
}

}  // namespace fwpkm
