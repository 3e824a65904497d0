// The part of backward that goes from chunk to chunk: a block walks back along the sequence with a
// few columns of dS of one value head and leaves dS1 and dR of every chunk.
#include "ops/delta_rule/chunk.cuh"

namespace fwpkm {
namespace delta_cuda {
namespace {

struct WalkArgs {
  const float *qk, *dots;  // of Prepared
  Heads d_o;
  const float *g, *beta;
  float* ds;  // [B, Hv, chunks, dk, dv]: dS1
  float* dr;  // [B, T, Hv, dv]
  float* scratch;
};

// Floats that a block of the walk works in: Q and K, dS, dO, dR, P, A.
int64_t walk_size(const Sizes& n) {
  return 2 * kChunk * n.ldk + n.tile_rows() * kTile + 2 * kChunk * kTileLd + 2 * kChunk * kLd;
}

template <bool kShared>
__global__ void __launch_bounds__(kThreads, 2) walk_kernel(WalkArgs x, Sizes n, int64_t size) {
  extern __shared__ float4 shared_memory[];
  __shared__ Gates gates;
  float* qk = kShared ? reinterpret_cast<float*>(shared_memory) : x.scratch + blockIdx.x * size;
  float* s = qk + 2 * kChunk * n.ldk;         // dS [dk, kTile]
  float* d_o = s + n.tile_rows() * kTile;     // [C, kTile]
  float* dr = d_o + kChunk * kTileLd;         // [C, kTile]
  float* p = dr + kChunk * kTileLd;           // [C, C]
  float* a = p + kChunk * kLd;                // [C, C]
  const int64_t head = blockIdx.x / n.tiles;  // of all rows of the batch
  const int64_t b = head / n.value_heads, h = head % n.value_heads, hk = h / n.group;
  const int column = static_cast<int>(threadIdx.x) % kTile;
  const int row = static_cast<int>(threadIdx.x) / kTile;  // 0 .. 15
  const int64_t c = blockIdx.x % n.tiles * kTile + column;
  const bool inside = c < n.dv;
  for (int64_t d = row; d < n.tile_rows(); d += kThreads / kTile) {
    s[d * kTile + column] = 0;
  }
  for (int64_t chunk = n.chunks - 1; chunk >= 0; --chunk) {
    const int64_t t0 = chunk * kChunk, item = n.key_item(b, hk, chunk);
    const int count = n.tokens_in(chunk);
    __syncthreads();  // the chunk behind is done, dS complete
    if (threadIdx.x < 32) {
      load_gates(n, x.g, x.beta, b, t0, h, count, &gates);
    }
    for (int64_t i = 4 * threadIdx.x; i < 2 * kChunk * n.ldk; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(qk + i) = load4(x.qk + item * 2 * kChunk * n.ldk + i);
    }
    for (int64_t d = row; d < n.dk && inside; d += kThreads / kTile) {
      x.ds[n.saved(b, h, chunk) + d * n.dv + c] = s[d * kTile + column];
    }
    for (int i = row; i < kChunk; i += kThreads / kTile) {
      d_o[i * kTileLd + column] = i < count && inside ? x.d_o(b, t0 + i, h)[c] : 0.0f;
    }
    __syncthreads();
    decay_dots(gates, x.dots + item * 2 * kChunk * kChunk, p, a, nullptr);
    // Rows `row` and `row + 16` of K dS1.
    float y[2] = {};
    for (int64_t d = 0; d < n.tile_rows(); d += 4) {
      const float* from = s + d * kTile + column;
      const float4 sd = {from[0], from[kTile], from[2 * kTile], from[3 * kTile]};
      for (int k = 0; k < 2; ++k) {
        y[k] = dot4(load4(qk + (kChunk + row + 16 * k) * n.ldk + d), sd, y[k]);
      }
    }
    __syncthreads();  // P is there
    for (int k = 0; k < 2; ++k) {
      const int i = row + 16 * k;
      float sum = gates.f[i] * y[k];
      for (int j = 0; j < kChunk; ++j) {
        sum = fmaf(p[j * kLd + i], d_o[j * kTileLd + column], sum);
      }
      dr[i * kTileLd + column] = sum;
    }
    __syncthreads();
    solve<kTile / kWarps, true>(a, dr, kTileLd, kTile);
    __syncthreads();
    for (int i = row; i < count && inside; i += kThreads / kTile) {
      x.dr[n.token(b, t0 + i, h) * n.dv + c] = dr[i * kTileLd + column];
    }
    // dS0 = E dS1 + [e Q; -beta e K]^T [dO; dR]
    const float whole = gates.e[kChunk - 1];
    for (int64_t d = 4 * row; d < n.tile_rows(); d += 4 * (kThreads / kTile)) {
      float4 sum = {};
      for (int j = 0; j < kChunk; ++j) {
        const float of_q = gates.e[j] * d_o[j * kTileLd + column];
        const float of_k = -(gates.beta[j] * gates.e[j]) * dr[j * kTileLd + column];
        const float4 query = load4(qk + j * n.ldk + d), key = load4(qk + (kChunk + j) * n.ldk + d);
        sum.x = fmaf(key.x, of_k, fmaf(query.x, of_q, sum.x));
        sum.y = fmaf(key.y, of_k, fmaf(query.y, of_q, sum.y));
        sum.z = fmaf(key.z, of_k, fmaf(query.z, of_q, sum.z));
        sum.w = fmaf(key.w, of_k, fmaf(query.w, of_q, sum.w));
      }
      float* to = s + d * kTile + column;
      to[0] = fmaf(whole, to[0], sum.x);
      to[kTile] = fmaf(whole, to[kTile], sum.y);
      to[2 * kTile] = fmaf(whole, to[2 * kTile], sum.z);
      to[3 * kTile] = fmaf(whole, to[3 * kTile], sum.w);
    }
  }
}

bool walk_is_shared(const Sizes& n) {
  return allow_shared(reinterpret_cast<const void*>(&walk_kernel<true>),
                      static_cast<size_t>(walk_size(n)) * sizeof(float));
}

}  // namespace

int64_t walk_back_scratch(const Sizes& n) {
  return walk_is_shared(n) ? 0 : n.batch * n.value_heads * n.tiles * walk_size(n);
}

void walk_back(const OpArgs& args, const Sizes& n, const Prepared& prepared, float* ds, float* dr,
               float* scratch) {
  const WalkArgs x = {prepared.qk,
                      prepared.dots,
                      Heads(args.dout[0]),
                      args.in[3].ptr<float>(),
                      args.in[4].ptr<float>(),
                      ds,
                      dr,
                      scratch};
  const auto blocks = static_cast<unsigned>(n.batch * n.value_heads * n.tiles);
  const int64_t size = walk_size(n);
  if (walk_is_shared(n)) {
    walk_kernel<true>
        <<<blocks, kThreads, static_cast<size_t>(size) * sizeof(float), this_stream()>>>(x, n,
                                                                                         size);
  } else {
    walk_kernel<false><<<blocks, kThreads, 0, this_stream()>>>(x, n, size);
  }
  check_launch("delta_rule backward");
}

}  // namespace delta_cuda
}  // namespace fwpkm
