// Backward. The score gradients of a block of tokens become a dense matrix, mostly zero, and are
// multiplied: dq and dkeys are then products as large as those of forward, with nothing to sort.
// Only dvalues needs reads in the order of slots; a slot's row is then loaded once for all tokens
// that read it, which gives the gradients of their weights too.
#include "ops/pkm_read/parts.cuh"

namespace fwpkm {
namespace {

// dw = <dy, value> of each read.
template <typename T, int kRun>
__global__ void weight_gradient_kernel(const T* values, const int32_t* slots, const T* dy,
                                       FastRows dy_rows, FastDivisor reads, float* dw,
                                       int64_t total, int64_t dv) {
  const int64_t read = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
  if (read >= total) {
    return;
  }
  const T* value = values + slots[read] * dv;
  const T* d = dy + dy_rows[reads.quotient(static_cast<uint32_t>(read))];
  float sum = 0;
  for (int64_t i = threadIdx.x % 32 * kRun; i < dv; i += 32 * kRun) {
    float a[kRun], b[kRun];
    load_run(d + i, a);
    load_run(value + i, b);
#pragma unroll
    for (int c = 0; c < kRun; ++c) {
      sum += a[c] * b[c];
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    dw[read] = sum;
  }
}

// A read as one lane holds it: the sub-keys of its slot and the gradient of its score.
struct Read {
  uint32_t ids[2];
  float ds;

  __device__ Read(const int32_t* slots, const float* weights, const float* dw, float mean,
                  FastDivisor n, int64_t r) {
    const auto slot = static_cast<uint32_t>(slots[r]);
    ids[0] = n.quotient(slot);
    ids[1] = slot - ids[0] * n.divisor;
    ds = weights[r] * (dw[r] - mean);
  }
};

// For each sub-key of k <= 32 reads, a lane each, the sum of all reads that share it. The lane of
// the first of them gets it, others nothing: returns whether this one does.
__device__ bool sum_shared(uint32_t id, float ds, int k, float* sum) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const unsigned same = __match_any_sync(kAll, lane < k ? id : kAll);
  const bool leads = lane < k && (same & ((1u << lane) - 1)) == 0;
  unsigned left = leads ? same : 0;
  while (__ballot_sync(kAll, left != 0) != 0) {
    const float other = __shfl_sync(kAll, ds, left != 0 ? __ffs(static_cast<int>(left)) - 1 : 0);
    *sum += left != 0 ? other : 0;
    left &= left - 1;
  }
  return leads;
}

// Through the softmax and to the sub-keys: dscores [.., H, 2, pitch] gets for each sub-key the sum
// of the slots that share it, and zeros for all others. An item is a head of a token; the lane of a
// sub-key's first slot adds up all of them.
template <typename T>
__global__ void score_gradient_kernel(const int32_t* slots, const float* weights, const float* dw,
                                      int64_t items, FastDivisor n, int64_t pitch, int k,
                                      T* dscores) {
  constexpr unsigned kAll = 0xffffffffu;
  const int64_t item = blockIdx.x * int64_t{kPkmWarps} + threadIdx.x / 32;
  if (item >= items) {
    return;
  }
  const int lane = threadIdx.x % 32;
  slots += item * k;
  weights += item * k;
  dw += item * k;
  dscores += item * 2 * pitch;
  auto* zeros = reinterpret_cast<uint4*>(dscores);
  const auto quads = static_cast<int>(2 * pitch * sizeof(T) / sizeof(uint4));
  for (int i = lane; i < quads; i += 32) {
    zeros[i] = {0, 0, 0, 0};
  }
  float mean = 0;
  for (int r = lane; r < k; r += 32) {
    mean += weights[r] * dw[r];
  }
  mean = warp_sum(mean);
  __syncwarp();  // the zeros of all lanes come before what is written below
  for (int first = 0; first < k; first += 32) {
    const int r = first + lane;
    const Read own(slots, weights, dw, mean, n, min(r, k - 1));
    bool leads[2] = {r < k, r < k};
    float sums[2] = {};
    if (k <= 32) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        leads[m] = sum_shared(own.ids[m], own.ds, k, &sums[m]);
      }
    } else {
      for (int other = 0; other < k; other += 32) {
        const Read held(slots, weights, dw, mean, n, min(other + lane, k - 1));
        const int count = min(32, k - other);
        for (int j = 0; j < count; ++j) {
          const float ds = __shfl_sync(kAll, held.ds, j);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const bool same = __shfl_sync(kAll, held.ids[m], j) == own.ids[m];
            leads[m] = leads[m] && !(same && other + j < r);
            sums[m] += same ? ds : 0;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (leads[m]) {
        dscores[m * pitch + own.ids[m]] = from_float<T>(sums[m]);
      }
    }
  }
}

// Whether one pass over the slots gives dvalues and the gradients of weights.
template <typename T>
bool in_one_pass(const OpArgs& args, const PkmSizes& s) {
  return args.din[2] && (args.din[0] || args.din[1]) && s.dv <= 512 &&
         in_runs_of(kPkmRun<T>, {args.in[2], args.dout[0], args.din[2]});
}

template <typename T>
void value_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardParts& parts) {
  const View& dy = args.dout[0];
  const RowSumTerms<T> terms = {.rows = dy.ptr<T>(),
                                .row_at = FastRows(dy),
                                .sharing = FastDivisor(s.reads),
                                .weights = args.out[2].ptr<float>(),
                                .to = args.din[2].ptr<float>(),
                                .values = args.in[2].ptr<T>(),
                                .dots = parts.dw};
  sort_places(parts.sums, args.out[1].ptr<int32_t>(), s.n * s.n, "pkm_read sort");
  if (in_one_pass<T>(args, s)) {
    add_shared_rows<kPkmRun<T>, 16 / kPkmRun<T>, true>(parts.sums, terms, "pkm_read values");
  } else if (in_runs_of(4, {dy, args.din[2]})) {
    add_shared_rows<4, 2, false>(parts.sums, terms, "pkm_read values");
  } else {
    add_shared_rows<1, 2, false>(parts.sums, terms, "pkm_read values");
  }
}

template <typename T>
void weight_gradients(const OpArgs& args, const PkmSizes& s, float* dw) {
  const View& dy = args.dout[0];
  const int64_t total = s.tokens * s.reads;
  const auto launch = [&](auto kernel) {
    kernel<<<pkm_warp_blocks(total), 32 * kPkmWarps, 0, this_stream()>>>(
        args.in[2].ptr<T>(), args.out[1].ptr<int32_t>(), dy.ptr<T>(), FastRows(dy),
        FastDivisor(s.reads), dw, total, s.dv);
    check_launch("pkm_read weights");
  };
  if (in_runs_of(4, {args.in[2], dy})) {
    launch(&weight_gradient_kernel<T, 4>);
  } else {
    launch(&weight_gradient_kernel<T, 1>);
  }
}

// dq and dkeys. `keys` are of q's type, rows of ld numbers.
template <typename T>
void score_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardParts& parts,
                     const T* keys, int64_t ld) {
  const T* q = args.in[0].ptr<T>();
  T *dq = args.din[0].ptr<T>(), *dscores = static_cast<T*>(parts.dscores);
  float* dkeys = args.din[1].ptr<float>();
  const int64_t step = pkm_gradient_tokens(s, args.in[0].dtype), pitch = pkm_pitch(s);
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first), items = count * s.heads;
    const int64_t at = first * s.reads;
    score_gradient_kernel<T><<<pkm_warp_blocks(items), 32 * kPkmWarps, 0, this_stream()>>>(
        args.out[1].ptr<int32_t>() + at, args.out[2].ptr<float>() + at, parts.dw + at, items,
        FastDivisor(s.n), pitch, static_cast<int>(s.k), dscores);
    check_launch("pkm_read scores");
    if (dq != nullptr) {
      gpu_gemm({.m = count,
                .n = s.half,
                .k = s.n,
                .lda = pkm_books(s) * pitch,
                .ldb = ld,
                .ldc = s.row,
                .batch = pkm_books(s),
                .stride_a = pitch,
                .stride_b = s.n * ld,
                .stride_c = s.half,
                .beta = args.accumulate[0] ? 1.0f : 0.0f},
               dscores, keys, dq + first * s.row);
    }
    if (dkeys != nullptr) {
      gpu_gemm({.transpose_a = true,
                .m = s.n,
                .n = s.half,
                .k = count,
                .lda = pkm_books(s) * pitch,
                .ldb = s.row,
                .ldc = s.half,
                .batch = pkm_books(s),
                .stride_a = pitch,
                .stride_b = s.half,
                .stride_c = s.n * s.half,
                .beta = args.accumulate[1] || first > 0 ? 1.0f : 0.0f},
               dscores, q + first * s.row, dkeys);
    }
  }
}

template <typename T>
void backward(const OpArgs& args, const PkmSizes& s) {
  const PkmBackwardParts parts(s, args, args.workspace);
  if (args.din[2] && s.dv > 0) {
    value_gradients<T>(args, s, parts);
  }
  if (!args.din[0] && !args.din[1]) {
    return;
  }
  if (!in_one_pass<T>(args, s) || s.dv == 0) {
    weight_gradients<T>(args, s, parts.dw);
  }
  const float* keys = args.in[1].ptr<float>();
  if constexpr (sizeof(T) == 2) {
    if (args.din[0]) {
      split_keys<1>(s, keys, parts.keys);
    }
    score_gradients<T>(args, s, parts, parts.keys, pkm_padded_half(s));
  } else {
    score_gradients<T>(args, s, parts, keys, s.half);
  }
}

}  // namespace

void pkm_read_backward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  if (args.din[2] && !args.accumulate[2]) {
    fill_zero(args.din[2]);
  }
  if (s.tokens > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args, s); });
  } else if (args.din[1] && !args.accumulate[1]) {
    fill_zero(args.din[1]);
  }
}

}  // namespace fwpkm
