// Forward: the scores of a block of tokens as products, the best sub-keys and slots a warp for
// each, then the rows. Queries in bf16 are multiplied on tensor cores: with keys that are sums of
// three bf16 nothing is rounded but the sums, which are floats, so that the same slots are chosen
// as with floats.
#include "ops/pkm_read/parts.cuh"
#include "ops/pkm_read/select.cuh"

namespace fwpkm {
namespace {

constexpr int kColumnThreads = 128;

// A warp's list of k keys; `item` is its row in `lists`.
__device__ uint64_t* list_of(uint64_t* shared, uint64_t* lists, int64_t item, int64_t k) {
  return k <= kPkmSharedKeys ? shared + threadIdx.x / 32 * kPkmSharedKeys : lists + item * k;
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

// Halves of queries, once for each term of the keys: to [rows, terms, padded], zeros behind each. A
// thread takes 8 numbers; `in_runs` says that they can be read at once.
__global__ void repeat_kernel(const bf16* q, bf16* to, uint32_t items, int half,
                              FastDivisor runs_in_row, bool in_runs) {
  const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= items) {
    return;
  }
  const uint32_t row = runs_in_row.quotient(item);
  const int first = static_cast<int>(item - row * runs_in_row.divisor) * 8;
  q += int64_t{row} * half + first;
  float held[8];
  if (in_runs) {
    load_run(q, held);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      held[i] = first + i < half ? to_float(q[i]) : 0;
    }
  }
  const int64_t padded = int64_t{runs_in_row.divisor} * 8;
#pragma unroll
  for (int term = 0; term < kPkmKeyTerms; ++term) {
    store_run(to + (int64_t{row} * kPkmKeyTerms + term) * padded + first, held);
  }
}

// y of a token: a thread for each kRun features.
template <typename T, int kRun>
__global__ void __launch_bounds__(kColumnThreads)
    read_kernel(const float* values, const int32_t* slots, const float* weights, T* y,
                int64_t reads, int64_t dv) {
  constexpr int kBatch = 8;  // rows that are loaded together
  const int64_t token = blockIdx.x;
  const int64_t column = (blockIdx.y * int64_t{kColumnThreads} + threadIdx.x) * kRun;
  if (column >= dv) {
    return;
  }
  slots += token * reads;
  weights += token * reads;
  float sum[kRun] = {};
  const auto add = [&](float weight, const float(&value)[kRun]) {
#pragma unroll
    for (int c = 0; c < kRun; ++c) {
      sum[c] += weight * value[c];
    }
  };
  int64_t r = 0;
  for (; r + kBatch <= reads; r += kBatch) {
    float value[kBatch][kRun];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      load_run(values + slots[r + i] * dv + column, value[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      add(weights[r + i], value[i]);
    }
  }
  for (; r < reads; ++r) {
    float value[kRun];
    load_run(values + slots[r] * dv + column, value);
    add(weights[r], value);
  }
  store_wide(y + token * dv + column, sum);
}

void launch_sub_keys(const PkmSizes& s, const PkmForwardParts& parts, int64_t tokens) {
  const int64_t rows = tokens * pkm_books(s);
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(rows), 32 * kPkmWarps, 0, this_stream()>>>(
        parts.scores, rows, s.n, pkm_pitch(s), s.k, parts.best, parts.ids, parts.lists);
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

void launch_slots(const PkmSizes& s, const PkmForwardParts& parts, int64_t tokens, int32_t* slots,
                  float* weights) {
  const int64_t items = tokens * s.heads;
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(items), 32 * kPkmWarps, 0, this_stream()>>>(
        parts.best, parts.ids, items, s.n, s.k, slots, weights, parts.lists);
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

// The scores of `count` tokens from q on.
GpuGemm score_product(const PkmSizes& s, int64_t count) {
  return {.transpose_b = true,
          .m = count,
          .n = s.n,
          .k = s.half,
          .lda = s.row,
          .ldb = s.half,
          .ldc = pkm_books(s) * pkm_pitch(s),
          .batch = pkm_books(s),
          .stride_a = s.half,
          .stride_b = s.n * s.half,
          .stride_c = pkm_pitch(s)};
}

void make_scores(const OpArgs& args, const PkmSizes& s, const PkmForwardParts& parts,
                 const float* q, int64_t count) {
  gpu_gemm(score_product(s, count), q, args.in[1].ptr<float>(), parts.scores);
}

void make_scores(const OpArgs& args, const PkmSizes& s, const PkmForwardParts& parts, const bf16* q,
                 int64_t count) {
  const int64_t padded = pkm_padded_half(s), items = count * pkm_books(s) * padded / 8;
  const bool in_runs =
      s.half % 8 == 0 && reinterpret_cast<uintptr_t>(args.in[0].data) % (8 * sizeof(bf16)) == 0;
  repeat_kernel<<<static_cast<unsigned>(ceil_div(items, 256)), 256, 0, this_stream()>>>(
      q, parts.queries, static_cast<uint32_t>(items), static_cast<int>(s.half),
      FastDivisor(padded / 8), in_runs);
  check_launch("pkm_read queries");
  GpuGemm product = score_product(s, count);
  product.k = product.ldb = product.stride_a = kPkmKeyTerms * padded;
  product.lda = pkm_books(s) * product.k;
  product.stride_b = s.n * product.k;
  gpu_gemm(product, parts.queries, parts.keys, parts.scores);
}

template <typename T>
void forward(const OpArgs& args, const PkmSizes& s) {
  const PkmForwardParts parts(s, args, args.workspace);
  const T* q = args.in[0].ptr<T>();
  const float* values = args.in[2].ptr<float>();
  T* y = args.out[0].ptr<T>();
  int32_t* slots = args.out[1].ptr<int32_t>();
  float* weights = args.out[2].ptr<float>();
  if constexpr (sizeof(T) == 2) {
    split_keys<kPkmKeyTerms>(s, args.in[1].ptr<float>(), parts.keys);
  }
  const int64_t step = pkm_tokens_at_once(s);
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first);
    make_scores(args, s, parts, q + first * s.row, count);
    launch_sub_keys(s, parts, count);
    launch_slots(s, parts, count, slots + first * s.reads, weights + first * s.reads);
  }
  const auto read = [&](auto kernel, int64_t run) {
    const dim3 grid(static_cast<unsigned>(s.tokens),
                    static_cast<unsigned>(ceil_div(s.dv, kColumnThreads * run)));
    kernel<<<grid, kColumnThreads, 0, this_stream()>>>(values, slots, weights, y, s.reads, s.dv);
    check_launch("pkm_read");
  };
  if (s.dv == 0) {
    return;
  }
  if (in_runs_of(4, {args.in[2], args.out[0]})) {
    read(&read_kernel<T, 4>, 4);
  } else {
    read(&read_kernel<T, 1>, 1);
  }
}

}  // namespace

void pkm_read_forward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  if (s.tokens > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { forward<T>(args, s); });
  }
}

size_t pkm_read_workspace_cuda(const OpArgs& args, bool backward) {
  const PkmSizes s(args);
  return backward ? PkmBackwardParts(s, args, nullptr).bytes
                  : PkmForwardParts(s, args, nullptr).bytes;
}

}  // namespace fwpkm
