// Forward: the scores of a block of tokens as products, the best sub-keys and slots with a warp for
// each head of a token, then the rows. Queries and keys in bf16 are multiplied on tensor cores:
// nothing is rounded but the sums, which are floats, so that the same slots are chosen as with
// floats of the same value.
#include <optional>

#include "ops/pkm_read/parts.cuh"
#include "ops/pkm_read/select_quick.cuh"

namespace fwpkm {
namespace {

__device__ const Corner kCornerTable;
__device__ const QuickCorner kQuickTable;

// A warp's list of k keys; `item` is its row in `lists`.
__device__ uint64_t* list_of(uint64_t* shared, uint64_t* lists, int64_t item, int64_t k) {
  return k <= kPkmSharedKeys ? shared + threadIdx.x / 32 * kPkmSharedKeys : lists + item * k;
}

// The k <= 32 best slots of a token and head, and the softmax of their scores. An item is a head of
// a token.
template <int kHeld>
__global__ void __launch_bounds__(32 * kPkmWarps, kHeld > 16 ? 8 : 9)
    select_kernel(const float* scores, int64_t items, int n, int64_t pitch, int k, int32_t* slots,
                  float* weights) {
  __shared__ alignas(16) uint64_t shared[kPkmWarps][kFewList];
  const int64_t item = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
  if (item >= items) {
    return;
  }
  const int lane = threadIdx.x % 32;
  uint64_t* list = shared[threadIdx.x / 32];
  slots += item * k;
  weights += item * k;
  float best[2] = {}, score;
  int32_t ids[2] = {}, slot;
#pragma unroll 1
  for (int m = 0; m < 2; ++m) {
    const float* row = scores + (item * 2 + m) * pitch;
    best[0] = best[1];
    ids[0] = ids[1];
    if (!quick_top_k<kHeld>(row, n, k, reinterpret_cast<uint16_t*>(list), &best[1], &ids[1])) {
      const uint64_t key = sure_top_k<kHeld>(row, n, k, list);
      best[1] = score_of(order_of_key(key));
      ids[1] = id_of_key(key);
    }
  }
  if (!quick_product_top_k(kQuickTable, best[0], ids[0], best[1], ids[1], n, k, &score, &slot)) {
    const auto key = [&](int m) { return lane < k ? key_of(order_of(best[m]), ids[m]) : 0; };
    const uint64_t chosen =
        sure_product_top_k(kCornerTable.lanes[lane], key(0), key(1), n, k, list, weights, slots);
    score = score_of(order_of_key(chosen));
    slot = id_of_key(chosen);
  }
  const float power = expf(score - __shfl_sync(kWholeWarp, score, 0));
  const float total = warp_sum(lane < k ? power : 0);
  if (lane < k) {
    slots[lane] = slot;
    weights[lane] = power / total;
  }
}

// The k best of each row of n scores.
template <int kHeld>
__global__ void sub_keys_kernel(const float* scores, int64_t rows, int64_t n, int64_t pitch,
                                int64_t k, float* best, int32_t* ids, uint64_t* lists) {
  __shared__ uint64_t shared[kPkmWarps * kPkmSharedKeys];
  const int64_t row = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
  if (row < rows) {
    warp_top_k<kHeld>(scores + row * pitch, n, k, best + row * k, ids + row * k,
                      list_of(shared, lists, row, k));
  }
}

// The k best slots of a token and head, and the softmax of their scores. An item is a head of a
// token.
template <int kHeld>
__global__ void slots_kernel(const float* best, const int32_t* ids, int64_t items, int64_t n,
                             int64_t k, int32_t* slots, float* weights, uint64_t* lists) {
  __shared__ uint64_t shared[kPkmWarps * kPkmSharedKeys];
  const int64_t item = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
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

// y of a token. A warp has kLanes runs of kRun features, of several rows at a time where kLanes <
// 32; neighbouring blocks have the same features of other tokens, so that more of what they read is
// still in the cache.
template <typename T, int kRun, int kLanes>
__global__ void __launch_bounds__(32 * kPkmWarps)
    read_kernel(const T* values, const int32_t* slots, const float* weights, T* y, int64_t tokens,
                int64_t reads, int64_t dv) {
  constexpr int kRows = 32 / kLanes, kBatch = 8;  // rows that are loaded together
  const int64_t token = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
  if (token >= tokens) {
    return;
  }
  const int lane = threadIdx.x % 32;
  const int64_t column = (blockIdx.y * int64_t{kLanes} + lane % kLanes) * kRun;
  values += column < dv ? column : 0;
  slots += token * reads;
  weights += token * reads;
  float sum[kRun] = {};
  for (int64_t first = 0; first < reads; first += 32) {
    const int count = static_cast<int>(min(int64_t{32}, reads - first));
    // Not wanted again before long, so they should not take the place of values in the cache.
    const int32_t own_slot = __ldcs(slots + first + min(lane, count - 1));
    const float own_weight = lane < count ? __ldcs(weights + first + lane) : 0;
    for (int at = 0; at < count; at += kBatch * kRows) {
      RawRun<T, kRun> raw[kBatch];
      float weight[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int r = at + i * kRows + lane / kLanes;
        raw[i] = load_raw<kRun>(values + __shfl_sync(kWholeWarp, own_slot, r) * dv);
        weight[i] = __shfl_sync(kWholeWarp, own_weight, r);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float value[kRun];
        unpack_run<T>(raw[i], value);
#pragma unroll
        for (int c = 0; c < kRun; ++c) {
          sum[c] += weight[i] * value[c];
        }
      }
    }
  }
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
#pragma unroll
    for (int c = 0; c < kRun; ++c) {
      sum[c] += __shfl_xor_sync(kWholeWarp, sum[c], step);
    }
  }
  if (lane < kLanes && column < dv) {
    put_once(y + token * dv + column, sum, false);
  }
}

void launch_select(const PkmSizes& s, const PkmForwardParts& parts, int64_t tokens, int32_t* slots,
                   float* weights) {
  const int64_t items = tokens * s.heads;
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(items), 32 * kPkmWarps, 0, this_stream()>>>(
        parts.scores, items, static_cast<int>(s.n), pkm_pitch(s), static_cast<int>(s.k), slots,
        weights);
    check_launch("pkm_read selecting");
  };
  if (s.n <= 128) {
    launch(&select_kernel<4>);
  } else if (s.n <= 512) {
    launch(&select_kernel<16>);
  } else {
    launch(&select_kernel<32>);
  }
}

void launch_sub_keys(const PkmSizes& s, const PkmForwardParts& parts, int64_t tokens) {
  const int64_t rows = tokens * pkm_books(s);
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(rows), 32 * kPkmWarps, 0, this_stream()>>>(
        parts.scores, rows, s.n, pkm_pitch(s), s.k, parts.best, parts.ids, parts.lists);
    check_launch("pkm_read sub-keys");
  };
  if (s.n <= 512) {
    launch(&sub_keys_kernel<16>);
  } else {
    launch(&sub_keys_kernel<0>);
  }
}

void launch_slots(const PkmSizes& s, const PkmForwardParts& parts, int64_t tokens, int32_t* slots,
                  float* weights) {
  const int64_t items = tokens * s.heads;
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(items), 32 * kPkmWarps, 0, this_stream()>>>(
        parts.best, parts.ids, items, s.n, s.k, slots, weights, parts.lists);
    check_launch("pkm_read slots");
  };
  if (s.k <= 32) {
    launch(&slots_kernel<32>);
  } else {
    launch(&slots_kernel<0>);
  }
}

// The scores of `count` tokens from q on: floats, also if queries and keys have 16 bits.
template <typename T>
void make_scores(const PkmSizes& s, const T* q, const T* keys, int64_t count, float* scores) {
  gpu_gemm({.transpose_b = true,
            .m = count,
            .n = s.n,
            .k = s.half,
            .lda = s.row,
            .ldb = s.half,
            .ldc = pkm_books(s) * pkm_pitch(s),
            .batch = pkm_books(s),
            .stride_a = s.half,
            .stride_b = s.n * s.half,
            .stride_c = pkm_pitch(s)},
           q, keys, scores);
}

// For the gradients of values, which forward does not wait for.
void sort_reads(const OpArgs& args, const PkmSizes& s) {
  Carver none(nullptr);
  const RowSumPlan list = pkm_list(s, args, none);
  std::optional<SideStream> side;
  if (args.late) {
    SideStream::fork(Side::kLong);
    side.emplace(Side::kLong);
  }
  sort_places(list, args.out[1].ptr<int32_t>(), s.n * s.n, "pkm_read sort");
  put_weights_in_list(list, args.out[2].ptr<float>(), "pkm_read weights");
  if (args.late) {
    SideStream::leave();
  }
}

template <typename T>
void forward(const OpArgs& args, const PkmSizes& s) {
  const PkmForwardParts parts(s, args.workspace);
  const T* q = args.in[0].ptr<T>();
  const T* keys = args.in[1].ptr<T>();
  const T* values = args.in[2].ptr<T>();
  T* y = args.out[0].ptr<T>();
  int32_t* slots = args.out[1].ptr<int32_t>();
  float* weights = args.out[2].ptr<float>();
  const int64_t step = pkm_tokens_at_once(s);
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first);
    make_scores(s, q + first * s.row, keys, count, parts.scores);
    const int64_t at = first * s.reads;
    if (pkm_few(s)) {
      launch_select(s, parts, count, slots + at, weights + at);
    } else {
      launch_sub_keys(s, parts, count);
      launch_slots(s, parts, count, slots + at, weights + at);
    }
  }
  if (s.dv == 0) {
    return;
  }
  if (args.saved[0]) {
    sort_reads(args, s);
  }
  const auto read = [&](auto kernel, int64_t columns) {
    const dim3 grid(pkm_warp_blocks(s.tokens), static_cast<unsigned>(ceil_div(s.dv, columns)));
    kernel<<<grid, 32 * kPkmWarps, 0, this_stream()>>>(values, slots, weights, y, s.tokens, s.reads,
                                                       s.dv);
    check_launch("pkm_read");
  };
  // Of bf16, 64 features of the paper's table fit into the cache.
  constexpr int kRun = kPkmRun<T>, kLanes = sizeof(T) == 2 ? 8 : 32;
  if (in_runs_of(kRun, {args.in[2], args.out[0]})) {
    read(&read_kernel<T, kRun, kLanes>, kRun * kLanes);
  } else {
    read(&read_kernel<T, 1, 32>, 32);
  }
}

}  // namespace

void pkm_read_forward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  const DType q = args.in[0].dtype, keys = args.in[1].dtype, values = args.in[2].dtype;
  require(keys == q && values == q, "pkm_read", "queries are {}, but keys are {} and values {}",
          dtype_name(q), dtype_name(keys), dtype_name(values));
  if (s.tokens > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args, s); });
  }
}

size_t pkm_read_workspace_cuda(const OpArgs& args, bool backward) {
  const PkmSizes s(args);
  return backward ? PkmBackwardParts(s, args, nullptr).bytes : PkmForwardParts(s, nullptr).bytes;
}

}  // namespace fwpkm
