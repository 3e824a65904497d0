// What does not depend on S, for all chunks at once: W, T V, and the operands of the walks.
#include "ops/delta_rule/tensor.cuh"

namespace fwpkm {
namespace delta_tensor {
namespace {

struct PrepareArgs {
  Rows q, k, v;
  const float *g, *beta;
  float scale;  // of q
  Tiles to;
};

// The lower triangle of L, then of tau, in float: [C, kLdc].
constexpr int kTriangle = kChunk * kLdc;

// L_ij = D_ij <k_i, k_j> of a warp's rows, and P.
template <int kDk, bool kBackward>
__device__ void inner_products(const bf16* q, const bf16* k, const Gates& gates, const Lane& at,
                               float* l, uint32_t (&scores)[kChunk / 8][2]) {
  constexpr int kLdk = row_length(kDk);
  const Token rows[2] = {Token(gates, at.row(0)), Token(gates, at.row(1))};
#pragma unroll
  for (int block = 0; block < kStrips; ++block) {
    if (block > at.warp) {
      continue;
    }
    float of_q[2][4] = {}, of_k[2][4] = {};
#pragma unroll
    for (int d = 0; d < kDk; d += 16) {
      uint32_t a[4], b[4];
      load_b_of_transpose(b, k + 16 * block * kLdk + d, kLdk);
      load_a(a, q + 16 * at.warp * kLdk + d, kLdk);
      mma(of_q[0], a, b[0], b[1]);
      mma(of_q[1], a, b[2], b[3]);
      load_a(a, k + 16 * at.warp * kLdk + d, kLdk);
      mma(of_k[0], a, b[0], b[1]);
      mma(of_k[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int first = 16 * block + 8 * t + at.pair;
      const Token columns[2] = {Token(gates, first), Token(gates, first + 1)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Token& row = rows[half];
        const int i = at.row(half);
        float p[2], a[2];
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const Token& column = columns[u];
          const float decay = first + u <= i ? row.decay_since(column) * column.rk : 0.0f;
          p[u] = decay * row.rq * of_q[t][2 * half + u] * (kBackward ? 1.0f : column.beta);
          a[u] = first + u < i ? decay * row.rk * of_k[t][2 * half + u] : 0.0f;
        }
        *reinterpret_cast<float2*>(l + i * kLdc + first) = {a[0], a[1]};
        scores[2 * block + t][half] = pack_two(p[0], p[1]);
      }
    }
  }
}

// tau = -(I + L diag(beta))^-1 L of a 32 x 32 block on the diagonal, in place, by substitution: a
// lane for each column.
__device__ void invert_block(float* l, const float* beta, int lane) {
  float x[32], y[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    float sums[4] = {l[i * kLdc + lane], 0, 0, 0};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      float of_row[4];
      load_run(l + i * kLdc + m, of_row);
#pragma unroll
      for (int u = 0; u < 4 && m + u < i; ++u) {
        sums[u] = fmaf(of_row[u], y[m + u], sums[u]);
      }
    }
    x[i] = lane < i ? -((sums[0] + sums[1]) + (sums[2] + sums[3])) : 0.0f;
    y[i] = beta[i] * x[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    l[i * kLdc + lane] = x[i];
  }
}

// A float as a sum of two bf16, for products that must not round.
struct Split {
  uint32_t high, low;
  __device__ Split(float first, float second) : high(pack_two(first, second)) {
    const float2 rounded = unpack_two(high);
    low = pack_two(first - rounded.x, second - rounded.y);
  }
};

// d [16, 16] += A diag(factor) B for 32 columns of A, to 16 bits or more. `a` and `b` point to
// floats with rows of kLdc.
__device__ void add_exact(float (&d)[2][4], const float* a, const float* factor, const float* b,
                          const Lane& at) {
#pragma unroll
  for (int k = 0; k < 32; k += 16) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = k + at.pair + i / 2 * 8;
      const float2 two = two_of(a + (at.line + i % 2 * 8) * kLdc + column);
      const float2 of = two_of(factor + column);
      const Split split(two.x * of.x, two.y * of.y);
      high[i] = split.high;
      low[i] = split.low;
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float* from = b + (k + at.pair) * kLdc + 8 * t + at.line;
      const Split above(from[0], from[kLdc]), below(from[8 * kLdc], from[9 * kLdc]);
      mma(d[t], low, above.high, below.high);
      mma(d[t], high, above.low, below.low);
      mma(d[t], high, above.high, below.high);
    }
  }
}

// The block of tau below two inverted ones: with X = L21 (I + diag(beta) tau11) it is
// -(I + tau22 diag(beta)) X. X lies above the diagonal meanwhile, where nobody looks. Each of four
// warps has a quarter.
__device__ void merge_blocks(float* l, const float* beta, const Lane& at) {
  const int row = at.warp / 2 * 16, column = at.warp % 2 * 16;
  float* lower = l + 32 * kLdc;
  float* upper = l + 32;
  float x[2][4];
  const auto each_two = [&](auto&& fn) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fn((row + at.line + 8 * half) * kLdc + column + 8 * t + at.pair, x[t][2 * half],
           x[t][2 * half + 1]);
      }
    }
  };
  each_two([&](int place, float& first, float& second) {
    const float2 two = two_of(lower + place);
    first = two.x;
    second = two.y;
  });
  add_exact(x, lower + row * kLdc, beta, l + column, at);
  each_two([&](int place, float& first, float& second) {
    *reinterpret_cast<float2*>(upper + place) = {first, second};
  });
  __syncthreads();
  add_exact(x, lower + row * kLdc + 32, beta + 32, upper + column, at);
  each_two([&](int place, float& first, float& second) {
    *reinterpret_cast<float2*>(lower + place) = {-first, -second};
  });
  __syncthreads();
}

// d = (diag(own) + tau diag(factor)) X for a warp's rows and kBlock columns.
template <typename Own, typename Factor>
__device__ void correct(const float* tau, const bf16* x, int ld, const Lane& at, Own&& own,
                        Factor&& factor, float (&d)[kBlockTiles][4]) {
#pragma unroll
  for (int t = 0; t < kBlockTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 two = two_of(x + at.row(half) * ld + 8 * t + at.pair);
      d[t][2 * half] = own(at.row(half)) * two.x;
      d[t][2 * half + 1] = own(at.row(half)) * two.y;
    }
  }
  for (int block = 0; block <= at.warp; ++block) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 16 * block + at.pair + i / 2 * 8;
      const float2 two = two_of(tau + at.row(i % 2) * kLdc + column);
      a[i] = pack_two(two.x * factor(column), two.y * factor(column + 1));
    }
    add_product(d, a, x + 16 * block * ld, ld);
  }
}

// A warp's 16 rows go out by way of shared memory, so that they are written in long runs: the
// first `columns` of them.
template <int kTiles>
__device__ void store_strip(const uint32_t (&packed)[kTiles][2], int columns, bf16* stage, int ld,
                            const Lane& at, bf16* to, int64_t stride) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(stage + (at.line + 8 * half) * ld + 8 * t + at.pair) =
          packed[t][half];
    }
  }
  __syncwarp();
  using Of = Runs<16, 8 * kTiles, 32>;
  const Of runs(at.lane);
#pragma unroll
  for (int step = 0; step < Of::kSteps; ++step) {
    if (runs.column < columns) {
      const int row = runs.row_at(step);
      *reinterpret_cast<uint4*>(to + row * stride + runs.column) =
          *reinterpret_cast<const uint4*>(stage + row * ld + runs.column);
    }
  }
  __syncwarp();  // the stage may be filled again
}

// A warp's rows of a tile, times a factor each.
template <int kDk, typename Factor>
__device__ void store_scaled(const bf16* tile, const Lane& at, Factor&& factor, bf16* to) {
  using Of = Runs<16, kDk, 32>;
  const Of runs(at.lane);
#pragma unroll
  for (int step = 0; step < Of::kSteps; ++step) {
    const int row = 16 * at.warp + runs.row_at(step);
    const float by = factor(row);
    float x[8];
    load_run(tile + row * row_length(kDk) + runs.column, x);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[k] *= by;
    }
    store_run(to + row * kDk + runs.column, x);
  }
}

// tau of a warp's rows, rounded.
__device__ void store_tau(const float* tau, const Lane& at, bf16* to) {
  using Of = Runs<16, kChunk, 32>;
  const Of runs(at.lane);
#pragma unroll
  for (int step = 0; step < Of::kSteps; ++step) {
    if (runs.column < 16 * (at.warp + 1)) {
      const int row = 16 * at.warp + runs.row_at(step);
      float x[8];
      load_run(tau + row * kLdc + runs.column, x);
      store_run(to + row * kChunk + runs.column, x);
    }
  }
}

template <int kDk>
int shared_bytes(const Sizes& n, bool backward) {
  const int64_t values = backward ? 0 : n.dvp / kBlock * kChunk * row_length(kBlock);
  return static_cast<int>((2 * kChunk * row_length(kDk) + values) * sizeof(bf16) +
                          kTriangle * sizeof(float));
}

// A block for every chunk of every value head; heads lie side by side in memory.
template <int kDk, bool kBackward>
__global__ void __launch_bounds__(kThreads, 4) prepare_kernel(PrepareArgs x, Sizes n) {
  extern __shared__ uint4 shared_memory[];
  __shared__ Gates gates;
  constexpr int kLdk = row_length(kDk), kLdb = row_length(kBlock);
  float* l = reinterpret_cast<float*>(shared_memory);
  bf16* q = reinterpret_cast<bf16*>(l + kTriangle);
  bf16* k = q + kChunk * kLdk;
  bf16* v = k + kChunk * kLdk;  // blocks of columns, one behind the other
  const int64_t h = blockIdx.x % n.value_heads, hk = h / n.group;
  const int64_t chunk = blockIdx.x / n.value_heads % n.chunks;
  const int64_t b = blockIdx.x / n.value_heads / n.chunks;
  const int64_t t0 = chunk * kChunk, item = n.item(b, h, chunk);
  const int count = n.tokens_in(chunk);
  const Lane at;

  load_tokens<kDk, kThreads>(x.q, b, t0, hk, count, 0, q);
  load_tokens<kDk, kThreads>(x.k, b, t0, hk, count, 0, k);
  for (int c = 0; !kBackward && c < n.dvp; c += kBlock) {
    load_tokens<kBlock, kThreads>(x.v, b, t0, h, count, c, v + c / kBlock * kChunk * kLdb);
  }
  commit_copies();
  if (at.warp == 0) {
    load_gates(n, x.g, x.beta, b, t0, h, count, &gates);
  }
  wait_copies<0>();
  __syncthreads();
  load_norms<kDk>(q, k, x.scale, &gates);
  __syncthreads();
  uint32_t scores[kChunk / 8][2] = {};
  inner_products<kDk, kBackward>(q, k, gates, at, l, scores);
  __syncthreads();
  if (at.warp < kChunk / 32) {
    invert_block(l + 32 * at.warp * (kLdc + 1), gates.beta + 32 * at.warp, at.lane);
  }
  if (threadIdx.x == 0) {
    x.to.whole[item] = gates.whole();
  }
  store_scaled<kDk>(
      q, at, [&](int i) { return gates.e[i] * gates.rq[i]; }, x.to.queries + item * kChunk * kDk);
  store_scaled<kDk>(
      k, at, [&](int i) { return gates.f[i] * gates.rk[i] * (kBackward ? 1.0f : gates.beta[i]); },
      x.to.keys + item * kChunk * kDk);
  __syncwarp();
  // No other warp looks at a warp's queries: from here on they are its stage.
  bf16* stage = q + 16 * at.warp * kLdk;
  store_strip(scores, 16 * (at.warp + 1), stage, kLdk, at,
              x.to.scores + (item * kChunk + 16 * at.warp) * kChunk, kChunk);
  __syncthreads();
  if constexpr (kChunk == 64) {
    merge_blocks(l, gates.beta, at);
  }
  if constexpr (kBackward) {
    store_tau(l, at, x.to.tau + item * kChunk * kChunk);
  }
  float d[kBlockTiles][4];
  uint32_t packed[kBlockTiles][2];
#pragma unroll
  for (int c = 0; c < kDk; c += kBlock) {
    const auto own = [&](int i) { return gates.e[i] * gates.rk[i]; };
    correct(
        l, k + c, kLdk, at, own, [&](int j) { return gates.beta[j] * own(j); }, d);
#pragma unroll
    for (int t = 0; t < kBlockTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[t][i] *= kBackward ? -gates.beta[at.row(i / 2)] : -1.0f;
      }
    }
    pack_tiles(d, packed);
    store_strip(packed, kBlock, stage, kLdk, at,
                x.to.minus_w + (item * kChunk + 16 * at.warp) * kDk + c, kDk);
  }
  for (int c = 0; !kBackward && c < n.dvp; c += kBlock) {
    correct(
        l, v + c / kBlock * kChunk * kLdb, kLdb, at, [](int) { return 1.0f; },
        [&](int j) { return gates.beta[j]; }, d);
    pack_tiles(d, packed);
    store_strip(packed, kBlock, stage, kLdk, at,
                x.to.values + (item * kChunk + 16 * at.warp) * n.dvp + c, n.dvp);
  }
}

template <int kDk, bool kBackward>
void launch_prepare(const PrepareArgs& x, const Sizes& n) {
  launch("delta_rule keys", &prepare_kernel<kDk, kBackward>, n.items(), kThreads,
         shared_bytes<kDk>(n, kBackward), x, n);
}

}  // namespace

Tiles tiles_of(const Sizes& n, bool backward, Parts* parts) {
  const int64_t tokens = n.items() * kChunk;
  Tiles to{};
  to.minus_w = parts->take<bf16>(tokens * n.dkp);
  to.keys = parts->take<bf16>(tokens * n.dkp);
  to.queries = parts->take<bf16>(tokens * n.dkp);
  to.scores = parts->take<bf16>(tokens * kChunk);
  to.values = parts->take<bf16>(backward ? 0 : tokens * n.dvp);
  to.tau = parts->take<bf16>(backward ? tokens * kChunk : 0);
  to.whole = parts->take<float>(n.items());
  return to;
}

void prepare(const OpArgs& args, const Sizes& n, bool backward, const Tiles& to) {
  const PrepareArgs x = {Rows(args.in[0]),
                         Rows(args.in[1]),
                         Rows(args.in[2]),
                         args.in[3].ptr<float>(),
                         args.in[4].ptr<float>(),
                         static_cast<float>(delta_cuda::query_scale(n)),
                         to};
  if (n.dkp == kBlock) {
    backward ? launch_prepare<64, true>(x, n) : launch_prepare<64, false>(x, n);
  } else {
    backward ? launch_prepare<128, true>(x, n) : launch_prepare<128, false>(x, n);
  }
}

}  // namespace delta_tensor
}  // namespace fwpkm
