// Tokens go in blocks, so that the scores of all sub-keys are few enough to be kept. Backward makes
// the score gradients of a block a dense matrix, mostly zero, and multiplies: dq and dkeys are then
// products as large as those of forward, with nothing to sort. Only dvalues needs reads in the
// order of slots.
#include <cub/device/device_radix_sort.cuh>

#include "ops/common/device.cuh"
#include "ops/pkm_read/pkm_read.h"
#include "ops/pkm_read/select.cuh"

namespace fwpkm {
namespace {

constexpr int kWarps = 4;        // to a block, in kernels with a warp for each item
constexpr int kColumns = 128;    // to a block, in kernels with a thread for each column
constexpr int kSharedKeys = 64;  // lists of up to this many keys lie in shared memory
constexpr int64_t kScores = int64_t{1} << 24;  // about how many are kept at a time

int64_t books(const PkmSizes& s) {
  return s.heads * 2;
}

int64_t tokens_at_once(const PkmSizes& s) {
  return std::min(s.tokens, std::max<int64_t>(64, kScores / (books(s) * s.n)));
}

// Hands out parts of a workspace, 256 bytes aligned; with a null workspace it only counts.
class Parts {
 public:
  explicit Parts(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  T* take(int64_t count) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

struct ForwardParts {
  float* scores;    // [block, H, 2, n]
  float* best;      // [block, H, 2, k], the best sub-scores
  int32_t* ids;     // [block, H, 2, k], and their sub-keys
  uint64_t* lists;  // [block, H, 2, k], where k is too large for shared memory
  size_t bytes;

  ForwardParts(const PkmSizes& s, void* workspace) {
    const int64_t rows = tokens_at_once(s) * books(s);
    Parts parts(workspace);
    scores = parts.take<float>(rows * s.n);
    best = parts.take<float>(rows * s.k);
    ids = parts.take<int32_t>(rows * s.k);
    lists = parts.take<uint64_t>(s.k > kSharedKeys ? rows * s.k : 0);
    bytes = parts.used();
  }
};

int slot_bits(const PkmSizes& s) {
  int bits = 1;
  while (bits < 31 && int64_t{1} << bits < s.n * s.n) {
    ++bits;
  }
  return bits;
}

struct BackwardParts {
  float* ds = nullptr;       // [M, H, k], gradients of weights, then of scores
  float* dscores = nullptr;  // [block, H, 2, n]
  int32_t* places = nullptr;
  int32_t* sorted_slots = nullptr;  // [M * H * k], as the two others
  int32_t* sorted_places = nullptr;
  std::byte* sort = nullptr;
  size_t sort_bytes = 0;
  size_t bytes = 0;

  BackwardParts(const PkmSizes& s, const OpArgs& args, void* workspace) {
    const int64_t reads = s.tokens * s.reads;
    Parts parts(workspace);
    if (reads == 0) {
      return;
    }
    if (args.din[0] || args.din[1]) {
      ds = parts.take<float>(reads);
      dscores = parts.take<float>(tokens_at_once(s) * books(s) * s.n);
    }
    if (args.din[2]) {
      places = parts.take<int32_t>(reads);
      sorted_slots = parts.take<int32_t>(reads);
      sorted_places = parts.take<int32_t>(reads);
      check_cuda(cub::DeviceRadixSort::SortPairs(
                     nullptr, sort_bytes, static_cast<const int32_t*>(nullptr),
                     static_cast<int32_t*>(nullptr), static_cast<const int32_t*>(nullptr),
                     static_cast<int32_t*>(nullptr), static_cast<int>(reads), 0, slot_bits(s)),
                 "pkm_read");
      sort = parts.take<std::byte>(static_cast<int64_t>(sort_bytes));
    }
    bytes = parts.used();
  }
};

// A warp's list of k keys; `item` is its row in `lists`.
__device__ uint64_t* list_of(uint64_t* shared, uint64_t* lists, int64_t item, int64_t k) {
  return k <= kSharedKeys ? shared + threadIdx.x / 32 * kSharedKeys : lists + item * k;
}

// The k best of each row of n scores.
template <int kHeld>
__global__ void sub_keys_kernel(const float* scores, int64_t rows, int64_t n, int64_t k,
                                float* best, int32_t* ids, uint64_t* lists) {
  __shared__ uint64_t shared[kWarps * kSharedKeys];
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row < rows) {
    warp_top_k<kHeld>(scores + row * n, n, k, best + row * k, ids + row * k,
                      list_of(shared, lists, row, k));
  }
}

// The k best slots of a token and head, and the softmax of their scores. An item is a head of a
// token.
template <int kHeld>
__global__ void slots_kernel(const float* best, const int32_t* ids, int64_t items, int64_t n,
                             int64_t k, int32_t* slots, float* weights, uint64_t* lists) {
  __shared__ uint64_t shared[kWarps * kSharedKeys];
  const int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (item >= items) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const int64_t a = item * 2 * k, b = a + k;
  float* weight = weights + item * k;
  warp_product_top_k<kHeld>(best + a, ids + a, best + b, ids + b, k, n, weight, slots + item * k,
                            list_of(shared, lists, item, k));
  const float top = weight[0];
  __syncwarp();
  float total = 0;
  for (int64_t r = lane; r < k; r += 32) {
    weight[r] = expf(weight[r] - top);
    total += weight[r];
  }
  total = warp_sum(total);
  for (int64_t r = lane; r < k; r += 32) {
    weight[r] /= total;
  }
}

// y of a token: a thread for each feature.
__global__ void read_kernel(const float* values, const int32_t* slots, const float* weights,
                            float* y, int64_t reads, int64_t dv) {
  const int64_t token = blockIdx.x, column = blockIdx.y * int64_t{kColumns} + threadIdx.x;
  if (column >= dv) {
    return;
  }
  const int32_t* slot = slots + token * reads;
  const float* weight = weights + token * reads;
  float sum = 0;
#pragma unroll 8
  for (int64_t r = 0; r < reads; ++r) {
    sum += weight[r] * values[slot[r] * dv + column];
  }
  y[token * dv + column] = sum;
}

// dw = <dy, value> of each read.
__global__ void weight_gradient_kernel(const float* values, const int32_t* slots, const float* dy,
                                       DeviceRows dy_rows, float* dw, int64_t total, int64_t reads,
                                       int64_t dv) {
  const int64_t read = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (read >= total) {
    return;
  }
  const float* value = values + slots[read] * dv;
  const float* d = dy + dy_rows[read / reads];
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < dv; i += 32) {
    sum += d[i] * value[i];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    dw[read] = sum;
  }
}

// Through the softmax, dw becoming ds in place, and to the sub-keys: dscores [.., H, 2, n], all
// zero before, gets for each sub-key the sum of the slots that share it. An item is a head of a
// token; the lane of a sub-key's first slot adds up all of them.
__global__ void score_gradient_kernel(const int32_t* slots, const float* weights, float* ds,
                                      int64_t items, int64_t n, int64_t k, float* dscores) {
  const int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (item >= items) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const float* weight = weights + item * k;
  float* d = ds + item * k;
  float mean = 0;
  for (int64_t r = lane; r < k; r += 32) {
    mean += weight[r] * d[r];
  }
  mean = warp_sum(mean);
  for (int64_t r = lane; r < k; r += 32) {
    d[r] = weight[r] * (d[r] - mean);
  }
  __syncwarp();
  const int32_t* slot = slots + item * k;
  for (int m = 0; m < 2; ++m) {
    const auto sub_key = [&](int64_t r) {
      const auto at = static_cast<uint32_t>(slot[r]), by = static_cast<uint32_t>(n);
      return m == 0 ? at / by : at % by;
    };
    float* row = dscores + (item * 2 + m) * n;
    for (int64_t r = lane; r < k; r += 32) {
      const uint32_t id = sub_key(r);
      bool first = true;
      for (int64_t j = 0; j < r && first; ++j) {
        first = sub_key(j) != id;
      }
      if (!first) {
        continue;
      }
      float sum = 0;
      for (int64_t j = r; j < k; ++j) {
        sum += sub_key(j) == id ? d[j] : 0;
      }
      row[id] = sum;
    }
  }
}

__global__ void number_kernel(int32_t* places, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    places[i] = static_cast<int32_t>(i);
  }
}

// A block for each place in the sorted list; those that begin a slot add up its reads, tokens in
// order.
__global__ void value_gradient_kernel(const int32_t* slots, const int32_t* places,
                                      const float* weights, const float* dy, DeviceRows dy_rows,
                                      float* dvalues, int64_t count, int64_t reads, int64_t dv) {
  const int64_t begin = blockIdx.x;
  const int32_t slot = slots[begin];
  if (begin > 0 && slots[begin - 1] == slot) {
    return;
  }
  // Most slots are read a few times: steps that double, then halve.
  int64_t end = begin + 1, step = 1;
  while (end + step - 1 < count && slots[end + step - 1] == slot) {
    end += step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    if (end + step - 1 < count && slots[end + step - 1] == slot) {
      end += step;
    }
  }
  for (int64_t i = threadIdx.x; i < dv; i += blockDim.x) {
    float sum = 0;
#pragma unroll 4
    for (int64_t j = begin; j < end; ++j) {
      const int32_t place = places[j];
      sum += weights[place] * dy[dy_rows[place / static_cast<int32_t>(reads)] + i];
    }
    dvalues[slot * dv + i] += sum;
  }
}

unsigned warp_blocks(int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kWarps));
}

void launch_sub_keys(const PkmSizes& s, const ForwardParts& parts, int64_t tokens) {
  const int64_t rows = tokens * books(s);
  const auto launch = [&](auto kernel) {
    kernel<<<warp_blocks(rows), 32 * kWarps, 0, this_stream()>>>(
        parts.scores, rows, s.n, s.k, parts.best, parts.ids, parts.lists);
    check_launch("pkm_read sub-keys");
  };
  if (s.n <= 128) {
    launch(&sub_keys_kernel<4>);
  } else if (s.n <= 512) {
    launch(&sub_keys_kernel<16>);
  } else if (s.n <= 1024) {
    launch(&sub_keys_kernel<32>);
  } else {
    launch(&sub_keys_kernel<0>);
  }
}

void launch_slots(const PkmSizes& s, const ForwardParts& parts, int64_t tokens, int32_t* slots,
                  float* weights) {
  const int64_t items = tokens * s.heads;
  const auto launch = [&](auto kernel) {
    kernel<<<warp_blocks(items), 32 * kWarps, 0, this_stream()>>>(parts.best, parts.ids, items, s.n,
                                                                  s.k, slots, weights, parts.lists);
    check_launch("pkm_read slots");
  };
  if (s.k <= 8) {
    launch(&slots_kernel<8>);
  } else if (s.k <= 32) {
    launch(&slots_kernel<32>);
  } else {
    launch(&slots_kernel<0>);
  }
}

void value_gradients(const OpArgs& args, const PkmSizes& s, const BackwardParts& parts) {
  const int64_t count = s.tokens * s.reads;
  number_kernel<<<blocks_for(count, 256), 256, 0, this_stream()>>>(parts.places, count);
  check_launch("pkm_read places");
  size_t bytes = parts.sort_bytes;
  check_cuda(cub::DeviceRadixSort::SortPairs(
                 parts.sort, bytes, args.out[1].ptr<int32_t>(), parts.sorted_slots, parts.places,
                 parts.sorted_places, static_cast<int>(count), 0, slot_bits(s), this_stream()),
             "pkm_read sort");
  const auto threads = static_cast<unsigned>(std::min<int64_t>(512, ceil_div(s.dv, 32) * 32));
  value_gradient_kernel<<<static_cast<unsigned>(count), threads, 0, this_stream()>>>(
      parts.sorted_slots, parts.sorted_places, args.out[2].ptr<float>(), args.dout[0].ptr<float>(),
      DeviceRows(args.dout[0]), args.din[2].ptr<float>(), count, s.reads, s.dv);
  check_launch("pkm_read values");
}

// dq and dkeys.
void score_gradients(const OpArgs& args, const PkmSizes& s, const BackwardParts& parts) {
  const float *q = args.in[0].ptr<float>(), *keys = args.in[1].ptr<float>();
  const int32_t* slots = args.out[1].ptr<int32_t>();
  const float* weights = args.out[2].ptr<float>();
  float *dq = args.din[0].ptr<float>(), *dkeys = args.din[1].ptr<float>();
  const int64_t total = s.tokens * s.reads, step = tokens_at_once(s), row = books(s) * s.n;
  weight_gradient_kernel<<<warp_blocks(total), 32 * kWarps, 0, this_stream()>>>(
      args.in[2].ptr<float>(), slots, args.dout[0].ptr<float>(), DeviceRows(args.dout[0]), parts.ds,
      total, s.reads, s.dv);
  check_launch("pkm_read weights");
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first), items = count * s.heads;
    const int64_t at = first * s.reads;
    check_cuda(cudaMemsetAsync(parts.dscores, 0, static_cast<size_t>(count * row) * sizeof(float),
                               this_stream()),
               "pkm_read");
    score_gradient_kernel<<<warp_blocks(items), 32 * kWarps, 0, this_stream()>>>(
        slots + at, weights + at, parts.ds + at, items, s.n, s.k, parts.dscores);
    check_launch("pkm_read scores");
    if (dq != nullptr) {
      gpu_gemm({.m = count,
                .n = s.half,
                .k = s.n,
                .lda = row,
                .ldb = s.half,
                .ldc = s.row,
                .batch = books(s),
                .stride_a = s.n,
                .stride_b = s.n * s.half,
                .stride_c = s.half,
                .beta = args.accumulate[0] ? 1.0f : 0.0f},
               parts.dscores, keys, dq + first * s.row);
    }
    if (dkeys != nullptr) {
      gpu_gemm({.transpose_a = true,
                .m = s.n,
                .n = s.half,
                .k = count,
                .lda = row,
                .ldb = s.row,
                .ldc = s.half,
                .batch = books(s),
                .stride_a = s.n,
                .stride_b = s.half,
                .stride_c = s.n * s.half,
                .beta = args.accumulate[1] || first > 0 ? 1.0f : 0.0f},
               parts.dscores, q + first * s.row, dkeys);
    }
  }
}

}  // namespace

void pkm_read_forward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  if (s.tokens == 0) {
    return;
  }
  const ForwardParts parts(s, args.workspace);
  int32_t* slots = args.out[1].ptr<int32_t>();
  float* weights = args.out[2].ptr<float>();
  const int64_t step = tokens_at_once(s);
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first);
    gpu_gemm({.transpose_b = true,
              .m = count,
              .n = s.n,
              .k = s.half,
              .lda = s.row,
              .ldb = s.half,
              .ldc = books(s) * s.n,
              .batch = books(s),
              .stride_a = s.half,
              .stride_b = s.n * s.half,
              .stride_c = s.n},
             args.in[0].ptr<float>() + first * s.row, args.in[1].ptr<float>(), parts.scores);
    launch_sub_keys(s, parts, count);
    launch_slots(s, parts, count, slots + first * s.reads, weights + first * s.reads);
  }
  if (s.dv > 0) {
    const dim3 grid(static_cast<unsigned>(s.tokens),
                    static_cast<unsigned>(ceil_div(s.dv, kColumns)));
    read_kernel<<<grid, kColumns, 0, this_stream()>>>(args.in[2].ptr<float>(), slots, weights,
                                                      args.out[0].ptr<float>(), s.reads, s.dv);
    check_launch("pkm_read");
  }
}

void pkm_read_backward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  if (args.din[2] && !args.accumulate[2]) {
    fill_zero(args.din[2]);
  }
  if (s.tokens == 0) {
    if (args.din[1] && !args.accumulate[1]) {
      fill_zero(args.din[1]);
    }
    return;
  }
  const BackwardParts parts(s, args, args.workspace);
  if (args.din[0] || args.din[1]) {
    score_gradients(args, s, parts);
  }
  if (args.din[2] && s.dv > 0) {
    value_gradients(args, s, parts);
  }
}

size_t pkm_read_workspace_cuda(const OpArgs& args, bool backward) {
  const PkmSizes s(args);
  return backward ? BackwardParts(s, args, nullptr).bytes : ForwardParts(s, nullptr).bytes;
}

}  // namespace fwpkm
