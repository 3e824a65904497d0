// Backward. The score gradients of a block of tokens become a dense matrix, mostly zero, and are
// multiplied: dq and dkeys are then products as large as those of forward, with nothing to sort.
// Only dvalues needs reads in the order of slots; a slot's row is then loaded once for all tokens
// that read it, which gives the gradients of their weights too.
#include "ops/pkm_read/parts.cuh"
#include "tensor/cuda.h"

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

  __device__ Read(int32_t slot, float weight, float dw, float mean, FastDivisor n) {
    ids[0] = n.quotient(static_cast<uint32_t>(slot));
    ids[1] = static_cast<uint32_t>(slot) - ids[0] * n.divisor;
    ds = weight * (dw - mean);
  }
};

// For each sub-key of k <= 32 reads, a lane each, the sum of all reads that share it. The lane of
// the first of them gets it, others nothing: `leads` says whether this one does.
__device__ void sum_shared(const Read& own, int k, bool (&leads)[2], float (&sums)[2]) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  unsigned left[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    left[m] = __match_any_sync(kAll, lane < k ? own.ids[m] : kAll);
    leads[m] = lane < k && (left[m] & ((1u << lane) - 1)) == 0;
    left[m] = leads[m] ? left[m] : 0;
  }
  while (__ballot_sync(kAll, (left[0] | left[1]) != 0) != 0) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int from = left[m] != 0 ? __ffs(static_cast<int>(left[m])) - 1 : 0;
      const float other = __shfl_sync(kAll, own.ds, from);
      sums[m] += left[m] != 0 ? other : 0;
      left[m] &= left[m] - 1;
    }
  }
}

// Where the sums of the one pass are finished while their dots are used.
constexpr Side kFinishing = Side::kLong;

// Gradients of the weights of reads.
struct ReadGradients {
  const float* all;
  const int32_t* at;  // where each read's is; null: in the order of reads

  __host__ __device__ ReadGradients from(int64_t read) const {
    return at == nullptr ? ReadGradients{all + read, nullptr} : ReadGradients{all, at + read};
  }
  __device__ float operator[](int read) const { return all[at == nullptr ? read : at[read]]; }
};

// Through the softmax and to the sub-keys: dscores [.., H, 2, pitch] gets for each sub-key the sum
// of the slots that share it, and zeros for all others. An item is a head of a token; the lane of a
// sub-key's first slot adds up all of them. kFew: k <= 32.
template <typename T, bool kFew>
__global__ void score_gradient_kernel(const int32_t* slots, const float* weights, ReadGradients dw,
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
  dw = dw.from(item * k);
  dscores += item * 2 * pitch;
  // The first 32 reads, if few all.
  const int own_read = min(lane, k - 1);
  const int32_t slot = slots[own_read];
  const float weight = weights[own_read], gradient = dw[own_read];
  auto* zeros = reinterpret_cast<uint4*>(dscores);
  const auto quads = static_cast<int>(2 * pitch * sizeof(T) / sizeof(uint4));
  for (int i = lane; i < quads; i += 32) {
    zeros[i] = {0, 0, 0, 0};
  }
  float mean = lane < k ? weight * gradient : 0;
  for (int r = lane + 32; !kFew && r < k; r += 32) {
    mean += weights[r] * dw[r];
  }
  mean = warp_sum(mean);
  __syncwarp();  // the zeros of all lanes come before what is written below
  const auto put_sums = [&](const Read& own, const bool(&leads)[2], const float(&sums)[2]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (leads[m]) {
        dscores[m * pitch + own.ids[m]] = from_float<T>(sums[m]);
      }
    }
  };
  if constexpr (kFew) {
    const Read own(slot, weight, gradient, mean, n);
    bool leads[2];
    float sums[2] = {};
    sum_shared(own, k, leads, sums);
    put_sums(own, leads, sums);
  } else {
    const auto read_at = [&](int r) {
      r = min(r, k - 1);
      return Read(slots[r], weights[r], dw[r], mean, n);
    };
    for (int first = 0; first < k; first += 32) {
      const int r = first + lane;
      const Read own = read_at(r);
      bool leads[2] = {r < k, r < k};
      float sums[2] = {};
      for (int other = 0; other < k; other += 32) {
        const Read held = read_at(other + lane);
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
      put_sums(own, leads, sums);
    }
  }
}

template <typename T, typename Sum>
void value_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardParts& parts) {
  const View& dy = args.dout[0];
  const RowSumTerms<T, Sum> terms = {.rows = dy.ptr<T>(),
                                     .row_at = FastRows(dy),
                                     .sharing = FastDivisor(s.reads),
                                     .weights = parts.sums.list_weights(),
                                     .to = args.din[2].ptr<Sum>(),
                                     .limit = s.n * s.n,
                                     .add = args.accumulate[2],
                                     .values = args.in[2].ptr<T>(),
                                     .dots = parts.sums.list_dots(),
                                     .squares = args.attr<PkmSettings>().squares};
  if (pkm_one_pass(args, s)) {
    add_shared_rows<PkmRowShape<T>, true>(parts.sums, terms, "pkm_read values", kFinishing);
  } else if (in_runs_of(4, {dy, args.din[2]})) {
    add_shared_rows<RowSumOfFour, false>(parts.sums, terms, "pkm_read values");
  } else {
    add_shared_rows<RowSumOfOne, false>(parts.sums, terms, "pkm_read values");
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

// dq and dkeys.
template <typename T>
void score_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardParts& parts) {
  const T *q = args.in[0].ptr<T>(), *keys = args.in[1].ptr<T>();
  T *dq = args.din[0].ptr<T>(), *dscores = static_cast<T*>(parts.dscores);
  float* dkeys = args.din[1].ptr<float>();
  const int64_t step = pkm_gradient_tokens(s, args.in[0].dtype), pitch = pkm_pitch(s);
  const ReadGradients dw = pkm_one_pass(args, s)
                               ? ReadGradients{parts.sums.list_dots(), parts.sums.in_list()}
                               : ReadGradients{parts.dw, nullptr};
  for (int64_t first = 0; first < s.tokens; first += step) {
    const int64_t count = std::min(step, s.tokens - first), items = count * s.heads;
    const int64_t at = first * s.reads;
    const auto kernel =
        s.k <= 32 ? &score_gradient_kernel<T, true> : &score_gradient_kernel<T, false>;
    kernel<<<pkm_warp_blocks(items), 32 * kPkmWarps, 0, this_stream()>>>(
        args.out[1].ptr<int32_t>() + at, args.out[2].ptr<float>() + at, dw.from(at), items,
        FastDivisor(s.n), pitch, static_cast<int>(s.k), dscores);
    check_launch("pkm_read scores");
    if (dq != nullptr) {
      gpu_gemm({.m = count,
                .n = s.half,
                .k = s.n,
                .lda = pkm_books(s) * pitch,
                .ldb = s.half,
                .ldc = s.row,
                .batch = pkm_books(s),
                .stride_a = pitch,
                .stride_b = s.n * s.half,
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
    if (std::is_same_v<T, bf16> && args.din[2].dtype == DType::kBF16) {
      value_gradients<T, T>(args, s, parts);
    } else {
      value_gradients<T, float>(args, s, parts);
    }
  }
  if (!args.din[0] && !args.din[1]) {
    return;
  }
  const bool one_pass = pkm_one_pass(args, s);
  if (!one_pass) {
    weight_gradients<T>(args, s, parts.dw);
  }
  score_gradients<T>(args, s, parts);
  if (one_pass) {
    SideStream::join(kFinishing);
  }
}

}  // namespace

void pkm_read_backward_cuda(const OpArgs& args) {
  const PkmSizes s(args);
  if (double* squares = args.attr<PkmSettings>().squares; squares != nullptr && args.din[2]) {
    cuda::fill(squares, 0, sizeof(double));  // there are none, unless they are left below
  }
  if (s.tokens > 0) {
    with_real(args.in[0], [&]<typename T>(T*) { backward<T>(args, s); });
    return;
  }
  for (const int i : {1, 2}) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
}

}  // namespace fwpkm
