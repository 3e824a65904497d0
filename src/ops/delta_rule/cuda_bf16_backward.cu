// Backward of every chunk, once the walk back has left dU and dS1: with those at hand, chunks do
// not meet.
#include "ops/delta_rule/chunk_back.cuh"

namespace fwpkm {
namespace delta_tensor {
namespace {

// Adds <x_i, d_i> of a lane's two rows.
template <int kTiles>
__device__ void add_along(const float (&d)[kTiles][4], const bf16* tile, int ld, const Lane& at,
                          float (&sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float2 two = two_of(tile + at.row(half) * ld + 8 * t + at.pair);
      sums[half] = fmaf(two.x, d[t][2 * half], sums[half]);
      sums[half] = fmaf(two.y, d[t][2 * half + 1], sums[half]);
    }
  }
}

// What flows through S0 and dS1: dq = diag(e) dO S0^T,
// dk = diag(f beta) w dS1^T - diag(beta e) dR S0^T, and their parts of dgamma.
template <int kDk, int kDv>
__device__ void through_states(const Place& place, const bf16* tiles, const Gates& gates,
                               const Lane& at, Sums* sums, float (&dq)[kDk / 8][4],
                               float (&dk)[kDk / 8][4]) {
  using L = Layout<kDk, kDv>;
#pragma unroll
  for (int c = 0; c < kDv; c += 16) {
    uint32_t of_o[4], of_r[4];
    load_a(of_o, tiles + L::kDo + 16 * at.warp * L::kLdv + c, L::kLdv);
    load_a(of_r, tiles + L::kDr + 16 * at.warp * L::kLdv + c, L::kLdv);
#pragma unroll
    for (int t = 0; t < kDk / 8; t += 2) {
      uint32_t b[4];
      load_b(b, tiles + L::kS0 + c * L::kLdk + 8 * t, L::kLdk);
      mma(dq[t], of_o, b[0], b[1]);
      mma(dq[t + 1], of_o, b[2], b[3]);
      mma(dk[t], of_r, b[0], b[1]);
      mma(dk[t + 1], of_r, b[2], b[3]);
    }
  }
  float along_q[2] = {}, along_k[2] = {}, along_f[2] = {};
  add_along(dq, tiles + L::kQ, L::kLdk, at, along_q);
  add_along(dk, tiles + L::kK, L::kLdk, at, along_k);
#pragma unroll
  for (int t = 0; t < kDk / 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float e = gates.e[at.row(i / 2)];
      dq[t][i] *= e;
      dk[t][i] *= -gates.beta[at.row(i / 2)] * e;
    }
  }
  wait_copies<0>();
  __syncthreads();  // dS1 and w are there
#pragma unroll
  for (int block = 0; block < kDk / kBlock; ++block) {
    float d[kBlockTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kDv; c += 16) {
      uint32_t a[4];
      load_a(a, tiles + L::kW + 16 * at.warp * L::kLdv + c, L::kLdv);
      add_product(d, a, tiles + L::kDs + c * L::kLdk + block * kBlock, L::kLdk);
    }
    add_along(d, tiles + L::kK + block * kBlock, L::kLdk, at, along_f);
#pragma unroll
    for (int t = 0; t < kBlockTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = at.row(i / 2);
        float& to = dk[block * kBlockTiles + t][i];
        to = fmaf(gates.f[row] * gates.beta[row], d[t][i], to);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = at.row(half);
    const float q = row_sum(along_q[half]), k = row_sum(along_k[half]), f = row_sum(along_f[half]);
    if (at.pair == 0) {
      sums->rows[i] = gates.e[i] * (gates.rq[i] * q - gates.beta[i] * gates.rk[i] * k);
      // The last f is 1 whatever gamma is.
      sums->through_f[i] =
          i + 1 < place.count ? gates.f[i] * gates.beta[i] * gates.rk[i] * f : 0.0f;
    }
  }
}

// This thread's part of <S0, dS1>.
template <int kDk, int kDv>
__device__ float inner_of_states(const bf16* tiles) {
  using L = Layout<kDk, kDv>;
  using Of = Runs<kDv, kDk, kThreads>;
  const Of runs(static_cast<int>(threadIdx.x));
  float sum = 0;
  for (int step = 0; step < Of::kSteps; ++step) {
    const int place = runs.row_at(step) * L::kLdk + runs.column;
    float a[8], b[8];
    load_run(tiles + L::kS0 + place, a);
    load_run(tiles + L::kDs + place, b);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sum = fmaf(a[k], b[k], sum);
    }
  }
  return sum;
}

// d0 and d1 [16, 16] += A0 B and A1 B with the transpose of rows `of_block` of a tile as B.
template <int kWidth>
__device__ void add_two_products(const bf16* a0, const bf16* a1, const bf16* of_block,
                                 float (&d0)[2][4], float (&d1)[2][4]) {
  constexpr int kLd = row_length(kWidth);
#pragma unroll
  for (int c = 0; c < kWidth; c += 16) {
    uint32_t a[4], b[4];
    load_b_of_transpose(b, of_block + c, kLd);
    load_a(a, a0 + c, kLd);
    mma(d0[0], a, b[0], b[1]);
    mma(d0[1], a, b[2], b[3]);
    load_a(a, a1 + c, kLd);
    mma(d1[0], a, b[0], b[1]);
    mma(d1[1], a, b[2], b[3]);
  }
}

// H and G of a warp's tokens with those of one block: as A operands that a block's raw keys follow,
// in their tiles with the factors of rows, and what flows into gamma.
template <int kDk, int kDv>
__device__ void through_block(bf16* tiles, const Gates& gates, const Lane& at, int block,
                              uint32_t (&h)[4], uint32_t (&g)[4], float (&rows)[2], Sums* sums) {
  using L = Layout<kDk, kDv>;
  // <dO_i, w_j>, <dR_i, w_j>, <q_i, k_j>, <k_i, k_j>
  float of_o[2][4] = {}, of_r[2][4] = {}, of_q[2][4] = {}, of_k[2][4] = {};
  const int own = 16 * at.warp;
  add_two_products<kDv>(tiles + L::kDo + own * L::kLdv, tiles + L::kDr + own * L::kLdv,
                        tiles + L::kW + 16 * block * L::kLdv, of_o, of_r);
  add_two_products<kDk>(tiles + L::kQ + own * L::kLdk, tiles + L::kK + own * L::kLdk,
                        tiles + L::kK + 16 * block * L::kLdk, of_q, of_k);
  const Token own_tokens[2] = {Token(gates, at.row(0)), Token(gates, at.row(1))};
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int first = 16 * block + 8 * t + at.pair;
    const Token others[2] = {Token(gates, first), Token(gates, first + 1)};
    float columns[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row(half);
      const Token& row = own_tokens[half];
      float of_h[2], of_g[2];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int j = first + u, k = 2 * half + u;
        const Token& column = others[u];
        const float decay = j <= i ? row.decay_since(column) * column.beta : 0.0f;
        of_h[u] = decay * of_o[t][k];
        // The diagonal of P does not depend on gamma; left out, it need not cancel.
        const float below = j < i ? 1.0f : 0.0f;
        of_g[u] = -below * row.beta * decay * of_r[t][k];
        const float of_gamma =
            column.rk * (below * of_h[u] * row.rq * of_q[t][k] + of_g[u] * row.rk * of_k[t][k]);
        rows[half] += of_gamma;
        columns[u] += of_gamma;
      }
      const int to = i * kLdc + first;
      put_two(tiles + L::kS0 + to, row.rq * of_h[0], row.rq * of_h[1]);
      put_two(tiles + L::kDs + to, row.rk * of_g[0], row.rk * of_g[1]);
      h[2 * t + half] = pack_two(others[0].rk * of_h[0], others[1].rk * of_h[1]);
      g[2 * t + half] = pack_two(others[0].rk * of_g[0], others[1].rk * of_g[1]);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      for (int step = 4; step < 32; step *= 2) {
        columns[u] += __shfl_xor_sync(0xffffffffu, columns[u], step);
      }
      if (at.line == 0) {
        sums->columns[at.warp][first + u] = columns[u];
      }
    }
  }
}

// What flows through the products of q and k: dq += H K, dk += G K + H^T Q + G^T K.
template <int kDk, int kDv>
__device__ void through_keys(bf16* tiles, const Gates& gates, const Lane& at, Sums* sums,
                             float (&dq)[kDk / 8][4], float (&dk)[kDk / 8][4]) {
  using L = Layout<kDk, kDv>;
  const bf16* q = tiles + L::kQ;
  const bf16* k = tiles + L::kK;
  float rows[2] = {};
  for (int block = 0; block <= at.warp; ++block) {
    uint32_t h[4], g[4];
    through_block<kDk, kDv>(tiles, gates, at, block, h, g, rows, sums);
#pragma unroll
    for (int t = 0; t < kDk / 8; t += 2) {
      uint32_t b[4];
      load_b(b, k + 16 * block * L::kLdk + 8 * t, L::kLdk);
      mma(dq[t], h, b[0], b[1]);
      mma(dq[t + 1], h, b[2], b[3]);
      mma(dk[t], g, b[0], b[1]);
      mma(dk[t + 1], g, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = row_sum(rows[half]);
    if (at.pair == 0) {
      sums->rows[at.row(half)] += sum;
    }
  }
  __syncthreads();  // H and G are there, and all sums
  for (int block = at.warp; block < kStrips; ++block) {
    uint32_t h[4], g[4];
    load_a_of_transpose(h, tiles + L::kS0 + 16 * block * kLdc + 16 * at.warp, kLdc);
    load_a_of_transpose(g, tiles + L::kDs + 16 * block * kLdc + 16 * at.warp, kLdc);
    add_product(dk, h, q + 16 * block * L::kLdk, L::kLdk);
    add_product(dk, g, k + 16 * block * L::kLdk, L::kLdk);
  }
}

// For the first warp: dg of a value head.
__device__ void store_decays(const ChunkArgs& x, const Sizes& n, const Place& place,
                             const Gates& gates, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x);
  float of_last = 0, inner = 0;
  for (int i = lane; i < kChunk; i += 32) {
    of_last += sums.through_f[i];
  }
  of_last = warp_sum(of_last);
  for (int w = 0; w < kStrips; ++w) {
    inner += sums.inner[w];
  }
  double behind = 0;  // what later tokens have together
  for (int part = kChunk / 32 - 1; part >= 0; --part) {
    const int i = 32 * part + lane;
    float dgamma = sums.rows[i] - sums.through_f[i];
    for (int w = i / 16; w < kStrips; ++w) {
      dgamma -= sums.columns[w][i];
    }
    if (i == place.count - 1) {
      dgamma += gates.whole() * inner + of_last;
    }
    // gamma_s holds every g_t with t <= s.
    double sum = i < place.count ? static_cast<double>(dgamma) : 0.0;
    for (int step = 1; step < 32; step *= 2) {
      const double next = __shfl_down_sync(0xffffffffu, sum, step);
      sum += lane + step < 32 ? next : 0.0;
    }
    sum += behind;
    behind = __shfl_sync(0xffffffffu, sum, 0);
    if (i < place.count) {
      put(x.dg + n.token(place.b, place.t0 + i, place.h), static_cast<float>(sum), x.add[3]);
    }
  }
}

// Through the normalisation: dx = r (dy - x r^2 <x, dy>) for 8 columns of a lane, r without the
// scale. Rows of a warp's own tokens; as many lanes as a row has runs of 8 share it.
template <int kDk>
__device__ void store_row(const float* dy, const bf16* x, float r, float scale, int width, bf16* to,
                          bool runs, bool add) {
  constexpr int kSharing = kDk / 8;
  const int first = static_cast<int>(threadIdx.x) % kSharing * 8;
  float d[8], of_x[8], along = 0;
  load_run(dy + first, d);
  load_run(x + first, of_x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    along = fmaf(of_x[i], d[i], along);
  }
#pragma unroll
  for (int step = 1; step < kSharing; step *= 2) {
    along += __shfl_xor_sync(0xffffffffu, along, step);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    d[i] = scale * r * (d[i] - of_x[i] * r * r * along);
  }
  if (to == nullptr || first >= width) {
    return;
  }
  if (runs) {
    put_run(to + first, d, add);
  } else {
    for (int i = 0; i < 8 && first + i < width; ++i) {
      put(to + first + i, d[i], add);
    }
  }
}

// dq and dk of a warp's tokens, from what is parked.
template <int kDk, int kDv>
__device__ void store_keys(const ChunkArgs& x, const Place& place, int64_t hk, const bf16* tiles,
                           const float* parked, const Gates& gates, const Lane& at) {
  using L = Layout<kDk, kDv>;
  constexpr int kRowsAtOnce = 32 / (kDk / 8);
  for (int first = 0; first < 16; first += kRowsAtOnce) {
    const int i = 16 * at.warp + first + at.lane / (kDk / 8);
    const bool there = i < place.count;
    const int64_t t = place.t0 + i;
    bf16* dq = there && x.dq.data != nullptr ? x.dq(place.b, t, hk) : nullptr;
    bf16* dk = there && x.dk.data != nullptr ? x.dk(place.b, t, hk) : nullptr;
    store_row<kDk>(parked + i * L::kLdf, tiles + L::kQ + i * L::kLdk, gates.rq[i] / x.scale,
                   x.scale, x.q.width, dq, x.runs, x.add[0]);
    store_row<kDk>(parked + (kChunk + i) * L::kLdf, tiles + L::kK + i * L::kLdk, gates.rk[i], 1.0f,
                   x.k.width, dk, x.runs, x.add[1]);
  }
}

template <int kTiles>
__device__ void park(const float (&d)[kTiles][4], float* to, int ld, const Lane& at, bool add) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* place = to + at.row(half) * ld + 8 * t + at.pair;
      const float2 old = add ? two_of(place) : float2{0.0f, 0.0f};
      *reinterpret_cast<float2*>(place) = {old.x + d[t][2 * half], old.y + d[t][2 * half + 1]};
    }
  }
}

// A block for each chunk of each key head; its value heads follow each other.
template <int kDk, int kDv>
__global__ void __launch_bounds__(kThreads, kDk* kDv == 64 * 64 ? 3 : 1)
    chunk_back_kernel(ChunkArgs x, Sizes n) {
  extern __shared__ uint4 shared_memory[];
  __shared__ Gates gates;
  __shared__ Sums sums;
  using L = Layout<kDk, kDv>;
  bf16* tiles = reinterpret_cast<bf16*>(shared_memory);
  float* parked = L::parked(tiles, n.group);
  const Lane at;
  const int64_t hk = blockIdx.x % n.key_heads;
  const int64_t chunk = blockIdx.x / n.key_heads % n.chunks;
  Place place;
  place.b = blockIdx.x / n.key_heads / n.chunks;
  place.t0 = chunk * kChunk;
  place.count = n.tokens_in(chunk);
  const auto load = [&](const Rows& rows, auto width, int64_t h, int to) {
    load_tokens<width(), kThreads>(rows, place.b, place.t0, h, place.count, 0, tiles + to);
  };
  constexpr std::integral_constant<int, kDk> kOfKeys;
  constexpr std::integral_constant<int, kDv> kOfValues;
  load(x.q, kOfKeys, hk, L::kQ);
  load(x.k, kOfKeys, hk, L::kK);
  for (int64_t r = 0; r < n.group; ++r) {
    place.h = hk * n.group + r;
    place.item = n.item(place.b, place.h, chunk);
    __syncthreads();  // the value head before is done
    load(x.v, kOfValues, place.h, L::kW);
    load(x.d_o, kOfValues, place.h, L::kDo);
    load_tile<kChunk, kChunk, kThreads, true>(x.tau + place.item * kChunk * kChunk, kChunk,
                                              tiles + L::kDr);
    load_tile<kDv, kChunk, kThreads>(x.du + place.item * kDv * kChunk, kChunk, tiles + L::kDs);
    load_tile<kDv, kDk, kThreads>(x.s0 + place.item * kDv * kDk, kDk, tiles + L::kS0);
    commit_copies();
    if (at.warp == 0) {
      load_gates(n, x.g, x.beta, place.b, place.t0, place.h, place.count, &gates);
    }
    wait_copies<0>();
    __syncthreads();
    if (r == 0) {
      load_norms<kDk>(tiles + L::kQ, tiles + L::kK, x.scale, &gates);
      __syncthreads();
    }
    redo_forward<kDk, kDv>(x, n, place, tiles, gates, at);
    float dq[kDk / 8][4] = {}, dk[kDk / 8][4] = {};
    through_states<kDk, kDv>(place, tiles, gates, at, &sums, dq, dk);
    const float inner = warp_sum(inner_of_states<kDk, kDv>(tiles));
    if (at.lane == 0) {
      sums.inner[at.warp] = inner;
    }
    __syncthreads();  // S0 and dS1 are done with
    through_keys<kDk, kDv>(tiles, gates, at, &sums, dq, dk);
    if (at.warp == 0 && x.dg != nullptr) {
      store_decays(x, n, place, gates, sums);
    }
    __syncthreads();  // H and G are done with
    park(dq, parked, L::kLdf, at, r > 0);
    park(dk, parked + kChunk * L::kLdf, L::kLdf, at, r > 0);
  }
  __syncwarp();
  store_keys<kDk, kDv>(x, place, hk, tiles, parked, gates, at);
}

template <int kDk, int kDv>
void launch_chunks(const ChunkArgs& x, const Sizes& n) {
  launch("delta_rule chunks", &chunk_back_kernel<kDk, kDv>, n.batch * n.key_heads * n.chunks,
         kThreads, Layout<kDk, kDv>::bytes(n.group), x, n);
}

}  // namespace

void chunks_back(const OpArgs& args, const Sizes& n, const Tiles& tiles, const bf16* du,
                 const bf16* ds) {
  ChunkArgs x = {Rows(args.in[0]),
                 Rows(args.in[1]),
                 Rows(args.in[2]),
                 Rows(args.dout[0]),
                 args.in[3].ptr<float>(),
                 args.in[4].ptr<float>(),
                 tiles.tau,
                 du,
                 ds,
                 args.saved[0].ptr<bf16>(),
                 HeadsOf<bf16>(args.din[0]),
                 HeadsOf<bf16>(args.din[1]),
                 HeadsOf<bf16>(args.din[2]),
                 args.din[3].ptr<float>(),
                 args.din[4].ptr<float>(),
                 {},
                 in_runs_of(8, {args.din[0], args.din[1]}),
                 in_runs_of(2, {args.din[2]}),
                 static_cast<float>(delta_cuda::query_scale(n))};
  std::copy(args.accumulate.begin(), args.accumulate.end(), x.add);
  if (n.dkp == 64) {
    n.dvp == 64 ? launch_chunks<64, 64>(x, n) : launch_chunks<64, 128>(x, n);
  } else {
    n.dvp == 64 ? launch_chunks<128, 64>(x, n) : launch_chunks<128, 128>(x, n);
  }
}

}  // namespace delta_tensor
}  // namespace fwpkm
