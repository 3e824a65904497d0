// Backward in float. README.md derives the formulas; names follow it. Only dS goes from chunk to
// chunk (cuda_walk_back.cu); with dS1 and dR of every chunk at hand, all else is done for all
// chunks at once.
#include <algorithm>

#include "ops/delta_rule/chunk.cuh"

namespace fwpkm {
namespace delta_cuda {
namespace {

struct ChunkArgs {
  Prepared prepared;
  const float *s0, *ds, *dr;
  Heads v, d_o;
  const float *g, *beta;
  Heads dq, dk, dv;  // data is null where nobody wants them
  float *dg, *dbeta;
  bool add[5];
  float scale;  // of q
  float* scratch;
};

// What a block works in while it does a chunk of a key head. A warp has the same rows i (its number
// and every 8th from there) in all that is done row by row.
struct Tiles {
  float *qk, *dqk;                    // [2C, ldk]
  float *d_o, *dr, *u;                // [C, ldv]
  float *s0, *ds;                     // [32, ldv]: a few rows of S0 and dS1
  float *dots, *m, *dor_u;            // [2C, C]: products with k, M of README.md, [dO; dR] U^T
  float *p, *a, *decay;               // [C, C]
  float* columns;                     // [8, C]: of what flows into gamma_i - gamma_j, by warp
  float *dgamma, *through_f, *dbeta;  // [C]

  __host__ __device__ static int64_t size(const Sizes& n) {
    return 4 * kChunk * n.ldk + 5 * kChunk * n.ldv + 9 * kChunk * kLd + kWarps * kChunk +
           3 * kChunk;
  }
  __device__ Tiles(const Sizes& n, float* at) {
    const auto take = [&](int64_t count) {
      float* piece = at;
      at += count;
      return piece;
    };
    qk = take(2 * kChunk * n.ldk);
    dqk = take(2 * kChunk * n.ldk);
    d_o = take(kChunk * n.ldv);
    dr = take(kChunk * n.ldv);
    u = take(kChunk * n.ldv);
    s0 = take(kChunk * n.ldv);
    ds = take(kChunk * n.ldv);
    dots = take(2 * kChunk * kLd);
    m = take(2 * kChunk * kLd);
    dor_u = take(2 * kChunk * kLd);
    p = take(kChunk * kLd);
    a = take(kChunk * kLd);
    decay = take(kChunk * kLd);
    columns = take(kWarps * kChunk);
    dgamma = take(kChunk);
    through_f = take(kChunk);
    dbeta = take(kChunk);
  }
};

// Where a block is.
struct Place {
  int64_t b, t0, hk, h, chunk;
  int count, lane, warp;
};

// Rows `first` and on of a [dk, dv] matrix.
__device__ void load_rows(const Sizes& n, const float* from, int64_t first, const Place& at,
                          float* to) {
  for (int i = at.warp; i < kChunk; i += kWarps) {
    for (int64_t c = at.lane; c < n.ldv; c += 32) {
      to[i * n.ldv + c] = first + i < n.dk && c < n.dv ? from[(first + i) * n.dv + c] : 0.0f;
    }
  }
}

// dO, dR, U = (I + A)^-1 diag(beta) W with W = V - e K S0; dv, and dbeta's <dR_i, W_i>.
__device__ void redo_forward(const Sizes& n, const ChunkArgs& x, const Place& at, const Tiles& t,
                             const Gates& gates, const float* s0) {
  for (int i = at.warp; i < kChunk; i += kWarps) {
    const bool row = i < at.count;
    const float* d_o = row ? x.d_o(at.b, at.t0 + i, at.h) : nullptr;
    const float* dr = x.dr + n.token(at.b, at.t0 + i, at.h) * n.dv;
    for (int64_t c = at.lane; c < n.ldv; c += 32) {
      t.d_o[i * n.ldv + c] = row && c < n.dv ? d_o[c] : 0.0f;
      t.dr[i * n.ldv + c] = row && c < n.dv ? dr[c] : 0.0f;
    }
  }
  constexpr int kRows = kChunk / kWarps;
  float dbeta[kRows] = {};
  for (int64_t c = at.lane; c < n.ldv; c += 32) {
    float y[kRows] = {};
    if (c < n.dv) {
      for (int64_t d = 0; d < n.tile_rows(); d += 4) {
        float sd[4];
        for (int k = 0; k < 4; ++k) {
          sd[k] = d + k < n.dk ? s0[(d + k) * n.dv + c] : 0.0f;
        }
        const float4 s4 = {sd[0], sd[1], sd[2], sd[3]};
        for (int k = 0; k < kRows; ++k) {
          y[k] = dot4(load4(t.qk + (kChunk + at.warp + k * kWarps) * n.ldk + d), s4, y[k]);
        }
      }
    }
    for (int k = 0; k < kRows; ++k) {
      const int i = at.warp + k * kWarps;
      float w = 0;
      if (i < at.count && c < n.dv) {
        w = x.v(at.b, at.t0 + i, at.h)[c] - gates.e[i] * y[k];
        const float dr = t.dr[i * n.ldv + c];
        dbeta[k] = fmaf(dr, w, dbeta[k]);
        if (x.dv.data != nullptr) {
          put(x.dv(at.b, at.t0 + i, at.h) + c, gates.beta[i] * dr, x.add[2]);
        }
      }
      t.u[i * n.ldv + c] = gates.beta[i] * w;
    }
  }
  for (int k = 0; k < kRows; ++k) {
    const float sum = warp_sum(dbeta[k]);
    if (at.lane == 0) {
      t.dbeta[at.warp + k * kWarps] = sum;
    }
  }
  __syncthreads();
  solve<4, false>(t.a, t.u, n.ldv, n.dv);
  __syncthreads();
}

// What flows through the products <q_i, k_j> and <k_i, k_j>: M, and the parts of dgamma and dbeta.
// The diagonal of P does not depend on gamma; left out, it need not cancel.
__device__ void through_dots(const Sizes& n, const Place& at, const Tiles& t, const Gates& gates,
                             bool first) {
  const int j = at.lane;
  float products[2 * kChunk / kWarps] = {};  // rows of [dO; dR] U^T
  for (int64_t c = 0; c < n.ldv; c += 4) {
    const float4 u = load4(t.u + j * n.ldv + c);
    for (int k = 0; k < kChunk / kWarps; ++k) {
      const int64_t row = (at.warp + k * kWarps) * n.ldv + c;
      products[2 * k] = dot4(load4(t.d_o + row), u, products[2 * k]);
      products[2 * k + 1] = dot4(load4(t.dr + row), u, products[2 * k + 1]);
    }
  }
  float column = 0;
  for (int k = 0; k < kChunk / kWarps; ++k) {
    const int i = at.warp + k * kWarps, upper = i * kLd + j, lower = (kChunk + i) * kLd + j;
    const float decay = t.decay[upper];  // 0 above the diagonal
    const float of_q = j <= i ? products[2 * k] * decay : 0.0f;
    const float of_a = j < i ? -products[2 * k + 1] * decay : 0.0f;
    const float of_beta = of_a * t.dots[lower];
    const float of_gamma =
        j < i ? fmaf(gates.beta[i], of_beta, products[2 * k] * t.p[upper]) : 0.0f;
    column += of_gamma;
    t.m[upper] = first ? of_q : t.m[upper] + of_q;
    t.m[lower] = first ? gates.beta[i] * of_a : t.m[lower] + gates.beta[i] * of_a;
    const float gamma = warp_sum(of_gamma), beta = warp_sum(of_beta);
    if (j == 0) {
      t.dgamma[i] = gamma;
      t.dbeta[i] += beta;
    }
  }
  t.columns[at.warp * kChunk + j] = column;
}

// What flows through e, f and the products with S0 and dS1: into dqk and dgamma. Returns this
// thread's part of <S0, dS1>.
__device__ float through_states(const Sizes& n, const Place& at, const Tiles& t, const Gates& gates,
                                const float* s0, const float* ds, bool first) {
  constexpr int kRows = kChunk / kWarps;
  float de[kRows] = {}, dy[kRows] = {}, df[kRows] = {}, inner = 0;
  for (int64_t d0 = 0; d0 < n.dk; d0 += kChunk) {
    __syncthreads();  // the rows before are done with
    load_rows(n, s0, d0, at, t.s0);
    load_rows(n, ds, d0, at, t.ds);
    __syncthreads();
    float x[kRows] = {}, y[kRows] = {}, z[kRows] = {};  // of dO S0^T, dR S0^T, U dS1^T
    for (int64_t c = 0; c < n.ldv; c += 4) {
      const float4 s = load4(t.s0 + at.lane * n.ldv + c), g = load4(t.ds + at.lane * n.ldv + c);
      for (int k = 0; k < kRows; ++k) {
        const int64_t row = (at.warp + k * kWarps) * n.ldv + c;
        x[k] = dot4(load4(t.d_o + row), s, x[k]);
        y[k] = dot4(load4(t.dr + row), s, y[k]);
        z[k] = dot4(load4(t.u + row), g, z[k]);
      }
      // Each warp takes its share of the columns.
      inner += c / 4 % kWarps == at.warp ? dot4(s, g, 0.0f) : 0.0f;
    }
    const int64_t d = d0 + at.lane;
    if (d < n.dk) {
      for (int k = 0; k < kRows; ++k) {
        const int i = at.warp + k * kWarps;
        const int64_t of_q = i * n.ldk + d, of_k = (kChunk + i) * n.ldk + d;
        de[k] = fmaf(t.qk[of_q], x[k], de[k]);
        dy[k] = fmaf(t.qk[of_k], y[k], dy[k]);
        df[k] = fmaf(t.qk[of_k], z[k], df[k]);
        put(t.dqk + of_q, gates.e[i] * x[k], !first);
        put(t.dqk + of_k, gates.f[i] * z[k] - gates.beta[i] * gates.e[i] * y[k], !first);
      }
    }
  }
  for (int k = 0; k < kRows; ++k) {
    const int i = at.warp + k * kWarps;
    const float e = warp_sum(de[k]), y = warp_sum(dy[k]), f = warp_sum(df[k]);
    if (at.lane == 0) {
      t.dgamma[i] += gates.e[i] * e - gates.beta[i] * gates.e[i] * y;
      // The last f is 1 whatever gamma is.
      t.through_f[i] = i + 1 < at.count ? gates.f[i] * f : 0.0f;
    }
  }
  return inner;
}

// For the first warp: dg and dbeta of a value head.
__device__ void store_gates(const Sizes& n, const ChunkArgs& x, const Place& at, const Tiles& t,
                            const Gates& gates, float inner) {
  const int i = at.lane;
  float column = 0;
  for (int w = 0; w < kWarps; ++w) {
    column += t.columns[w * kChunk + i];
  }
  const float of_last = warp_sum(t.through_f[i]);
  float dgamma = t.dgamma[i] - column - t.through_f[i];
  if (i == at.count - 1) {
    dgamma += gates.e[i] * inner + of_last;
  }
  // gamma_s holds every g_t with t <= s.
  double sum = i < at.count ? static_cast<double>(dgamma) : 0.0;
  for (int step = 1; step < kChunk; step *= 2) {
    const double behind = __shfl_down_sync(0xffffffffu, sum, step);
    sum += i + step < kChunk ? behind : 0.0;
  }
  if (i < at.count) {
    const int64_t to = n.token(at.b, at.t0 + i, at.h);
    if (x.dg != nullptr) {
      put(x.dg + to, static_cast<float>(sum), x.add[3]);
    }
    if (x.dbeta != nullptr) {
      put(x.dbeta + to, t.dbeta[i], x.add[4]);
    }
  }
}

// [dQ; dK] += M K and dK += M^T [Q; K], then dx = scale r (dy - y/scale <y/scale, dy>).
__device__ void through_keys(const Sizes& n, const ChunkArgs& x, const Place& at, const Tiles& t,
                             const float* norms) {
  for (int i = at.warp; i < at.count; i += kWarps) {
    float* dq = t.dqk + i * n.ldk;
    float* dk = t.dqk + (kChunk + i) * n.ldk;
    const float* q = t.qk + i * n.ldk;
    const float* k = t.qk + (kChunk + i) * n.ldk;
    float along_q = 0, along_k = 0;
    for (int64_t d = at.lane; d < n.dk; d += 32) {
      float of_q = 0, of_k = 0;
      for (int j = 0; j < kChunk; ++j) {
        const float query = t.qk[j * n.ldk + d], key = t.qk[(kChunk + j) * n.ldk + d];
        of_q = fmaf(t.m[i * kLd + j], key, of_q);
        of_k = fmaf(t.m[(kChunk + i) * kLd + j], key, of_k);
        of_k = fmaf(t.m[j * kLd + i], query, of_k);
        of_k = fmaf(t.m[(kChunk + j) * kLd + i], key, of_k);
      }
      dq[d] += of_q;
      dk[d] += of_k;
      along_q = fmaf(q[d], dq[d], along_q);
      along_k = fmaf(k[d], dk[d], along_k);
    }
    along_q = warp_sum(along_q) / (x.scale * x.scale);
    along_k = warp_sum(along_k);
    const float of_q = x.scale * norms[i], of_k = norms[kChunk + i];
    for (int64_t d = at.lane; d < n.dk; d += 32) {
      if (x.dq.data != nullptr) {
        put(x.dq(at.b, at.t0 + i, at.hk) + d, of_q * (dq[d] - q[d] * along_q), x.add[0]);
      }
      if (x.dk.data != nullptr) {
        put(x.dk(at.b, at.t0 + i, at.hk) + d, of_k * (dk[d] - k[d] * along_k), x.add[1]);
      }
    }
  }
}

// A block for each chunk of each key head; its value heads follow each other.
template <bool kShared>
__global__ void __launch_bounds__(kThreads) chunk_kernel(ChunkArgs x, Sizes n) {
  extern __shared__ float4 shared_memory[];
  __shared__ Gates gates;
  const Tiles t(n, kShared ? reinterpret_cast<float*>(shared_memory)
                           : x.scratch + blockIdx.x * Tiles::size(n));
  const int64_t items = n.batch * n.key_heads * n.chunks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    Place at;
    at.chunk = item % n.chunks;
    at.hk = item / n.chunks % n.key_heads;
    at.b = item / n.chunks / n.key_heads;
    at.t0 = at.chunk * kChunk;
    at.count = n.tokens_in(at.chunk);
    at.lane = static_cast<int>(threadIdx.x % 32);
    at.warp = static_cast<int>(threadIdx.x / 32);
    const float* dots = x.prepared.dots + item * 2 * kChunk * kChunk;
    __syncthreads();  // the chunk before is done
    for (int64_t i = 4 * threadIdx.x; i < 2 * kChunk * n.ldk; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(t.qk + i) = load4(x.prepared.qk + item * 2 * kChunk * n.ldk + i);
    }
    for (int i = at.warp; i < 2 * kChunk; i += kWarps) {
      t.dots[i * kLd + at.lane] = dots[i * kChunk + at.lane];
    }
    for (int64_t r = 0; r < n.group; ++r) {
      at.h = at.hk * n.group + r;
      const int64_t matrix = n.saved(at.b, at.h, at.chunk);
      __syncthreads();  // the value head before is done
      if (at.warp == 0) {
        load_gates(n, x.g, x.beta, at.b, at.t0, at.h, at.count, &gates);
      }
      __syncthreads();
      decay_dots(gates, dots, t.p, t.a, t.decay);
      redo_forward(n, x, at, t, gates, x.s0 + matrix);
      through_dots(n, at, t, gates, r == 0);
      const float inner = block_sum<kThreads>(
          through_states(n, at, t, gates, x.s0 + matrix, x.ds + matrix, r == 0));
      __syncthreads();
      if (at.warp == 0) {
        store_gates(n, x, at, t, gates, inner);
      }
    }
    __syncthreads();  // M is complete
    through_keys(n, x, at, t, x.prepared.norms + item * 2 * kChunk);
  }
}

struct Plan {
  bool shared;  // whether chunks fit into shared memory
  unsigned blocks;
  Prepared prepared{};
  float *ds, *dr, *walk_scratch, *scratch;
  size_t bytes;

  Plan(const Sizes& n, void* base) {
    shared = allow_shared(reinterpret_cast<const void*>(&chunk_kernel<true>),
                          static_cast<size_t>(Tiles::size(n)) * sizeof(float));
    blocks = static_cast<unsigned>(
        std::min<int64_t>(n.key_items(), shared ? int64_t{1} << 30 : 132 * 2));
    Parts parts{static_cast<char*>(base)};
    prepared = prepared_parts(n, &parts);
    ds = parts.take(n.batch * n.value_heads * n.chunks * n.matrix());
    dr = parts.take(n.batch * n.value_heads * n.length * n.dv);
    walk_scratch = parts.take(walk_back_scratch(n));
    scratch = parts.take(shared ? 0 : blocks * Tiles::size(n));
    bytes = parts.used;
  }
};

}  // namespace

size_t backward_bytes(const Sizes& n) {
  return Plan(n, nullptr).bytes;
}

}  // namespace delta_cuda

void delta_rule_backward_cuda(const OpArgs& args) {
  using namespace delta_cuda;
  if (args.in[0].dtype == DType::kBF16) {
    return delta_rule_backward_bf16(args);
  }
  const Sizes n(args);
  if (n.empty()) {
    return;
  }
  const Plan plan(n, args.workspace);
  prepare(args, n, plan.prepared);
  const float* g = args.in[3].ptr<float>();
  const float* beta = args.in[4].ptr<float>();
  walk_back(args, n, plan.prepared, plan.ds, plan.dr, plan.walk_scratch);
  ChunkArgs x = {plan.prepared,
                 args.saved[0].ptr<float>(),
                 plan.ds,
                 plan.dr,
                 Heads(args.in[2]),
                 Heads(args.dout[0]),
                 g,
                 beta,
                 Heads(args.din[0]),
                 Heads(args.din[1]),
                 Heads(args.din[2]),
                 args.din[3].ptr<float>(),
                 args.din[4].ptr<float>(),
                 {},
                 static_cast<float>(query_scale(n)),
                 plan.scratch};
  for (int i = 0; i < 5; ++i) {
    x.add[i] = args.accumulate[i];
  }
  if (plan.shared) {
    chunk_kernel<true><<<plan.blocks, kThreads, static_cast<size_t>(Tiles::size(n)) * sizeof(float),
                         this_stream()>>>(x, n);
  } else {
    chunk_kernel<false><<<plan.blocks, kThreads, 0, this_stream()>>>(x, n);
  }
  check_launch("delta_rule chunks");
}

}  // namespace fwpkm
