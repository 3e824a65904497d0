// The rows that tokens read: a warp for each token.
#include "ops/fwpkm/cuda_read.cuh"

namespace fwpkm {
namespace {

// The joint softmax over a token's reads, and where each of their rows lies now. -> the sum of the
// squares of the weights.
__device__ float find_rows(const FwpkmCall& call, int t) {
  const int lane = threadIdx.x % 32, owner = call.shared ? 0 : t / call.time;
  const int64_t at = static_cast<int64_t>(t) * call.reads;
  float top = -INFINITY, total = 0, squares = 0;
  for (int r = lane; r < call.reads; r += 32) {
    top = fmaxf(top, call.weights[at + r]);
  }
  top = warp_max(top);
  for (int r = lane; r < call.reads; r += 32) {
    total += expf(call.weights[at + r] - top);
  }
  total = warp_sum(total);
  for (int r = lane; r < call.reads; r += 32) {
    const float weight = expf(call.weights[at + r] - top) / total;
    call.weights[at + r] = weight;
    squares = fmaf(weight, weight, squares);
    const int slot = call.slots[at + r];
    int source = -1;
    if (call.write) {
      const int chain = find_chain(call, owner, slot);
      call.chain[at + r] = chain;
      call.share[at + r] = 0;
      source = chain < 0 ? -1 : call.writes[static_cast<int64_t>(chain) * 3 + 2];
    }
    call.source[at + r] = source >= 0 ? source : overlay_source(call, owner, slot);
  }
  __syncwarp();
  return warp_sum(squares);
}

// The gradient of half the mean weighted squared error by the sub-scores of a writing token;
// `error` is in memory, each lane's own columns by its own hand.
template <int kRun>
__device__ void push_by_error(const FwpkmCall& call, const FwpkmSpan& span, int j,
                              const float* error, float* along, float* push) {
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

// What token t reads, to `y` if given; less what it is to find, to `error` if given. -> the sum of
// the error's squares. Columns are dealt out as lane * kRun + 32 * kRun * i everywhere: what a lane
// writes, it reads.
template <typename T, int kRun>
__device__ float read_rows(const FwpkmCall& call, int t, T* y, float* error) {
  float loss = 0;
  for (int first = 0; first < call.dv; first += kFwpkmGroups * 32 * kRun) {
    float sum[kFwpkmGroups][kRun] = {};
    add_read_rows<kRun>(call, t, first, sum);
    for_groups<kRun, kFwpkmGroups>(first, call.dv, [&](int g, int c) {
      if (y != nullptr) {
        store_wide(y + c, sum[g]);
      }
      if (error != nullptr) {
        float x[kRun];
        load_run(target_of<T>(call, t) + c, x);
        add_run(-1.0f, x, sum[g]);
        loss = dot_run(sum[g], sum[g], loss);
        store_wide(error + c, sum[g]);
      }
    });
  }
  return warp_sum(loss);
}

// How the error of token j, or null if it writes nothing, moves the keys.
template <int kRun>
__device__ void push_token(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found,
                           int j, const float* error) {
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

template <typename T, int kRun>
__device__ void read_token(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found,
                           float step, int j) {
  const int lane = threadIdx.x % 32, t = span.token(j);
  const bool writes = span.writes(j);
  const float squares = find_rows(call, t), gate = writes ? gate_of(call, t) : 0.0f;
  float* error = writes ? found.errors + static_cast<int64_t>(j) * call.dv : nullptr;
  const float loss = read_rows<T, kRun>(
      call, t, static_cast<T*>(call.y) + static_cast<int64_t>(t) * call.dv, error);
  if (lane == 0) {
    call.losses[t] = gate * loss / static_cast<float>(call.dv);
  }
  const float eta = call.rewrite ? 1.0f / squares : step;
  const int64_t at = static_cast<int64_t>(t) * call.reads;
  for (int r = lane; r < call.reads && writes; r += 32) {
    found.coefficients[static_cast<int64_t>(j) * call.reads + r] =
        -eta * gate * call.weights[at + r];
  }
  if (found.push != nullptr) {
    push_token<kRun>(call, span, found, j, error);
  }
}

// The first blocks sort tiles, which nobody waits for here: they take long, but few of them.
template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads, 3)
    read_kernel(FwpkmCall call, FwpkmSpan span, FwpkmLists lists, FwpkmFound found, float step,
                int tiles) {
  const int block = blockIdx.x;
  if (block < tiles) {
    sort_tile(call, lists, span, block);
    return;
  }
  const int j = (block - tiles) * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (j < span.count) {
    read_token<T, kRun>(call, span, found, step, j);
  }
}

template <typename T, int kRun>
__global__ void __launch_bounds__(kFwpkmThreads)
    push_kernel(FwpkmCall call, FwpkmSpan span, FwpkmFound found) {
  const int j = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (j >= span.count) {
    return;
  }
  float* error = span.writes(j) ? found.errors + static_cast<int64_t>(j) * call.dv : nullptr;
  if (error != nullptr) {
    read_rows<T, kRun>(call, span.token(j), static_cast<T*>(nullptr), error);
  }
  push_token<kRun>(call, span, found, j, error);
}

}  // namespace

void read_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmLists& lists,
                 const FwpkmFound& found, float step) {
  const int tiles = lists.tiles(call);
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    read_kernel<T, Run::value>
        <<<tiles + fwpkm_blocks(span.count), kFwpkmThreads, 0, this_stream()>>>(call, span, lists,
                                                                                found, step, tiles);
  });
  check_launch("fwpkm reading");
}

void find_pushes(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmFound& found) {
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    push_kernel<T, Run::value>
        <<<fwpkm_blocks(span.count), kFwpkmThreads, 0, this_stream()>>>(call, span, found);
  });
  check_launch("fwpkm pushes");
}

}  // namespace fwpkm
