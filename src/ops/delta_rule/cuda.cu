// Forward in float. Columns of S do not meet: a block walks along the sequence with a few columns
// of one value head, chunk by chunk. What does not depend on S is made before, for all chunks at
// once. Few tokens go one by one (cuda_tokens.cu).
#include <algorithm>
#include <cmath>

#include "ops/delta_rule/chunk.cuh"

namespace fwpkm {
namespace delta_cuda {
namespace {

// A warp for each row of qk, those past the end too.
__global__ void normalize_kernel(Heads q, Heads k, Sizes n, double scale, float* qk, float* norms) {
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= n.batch * n.key_heads * n.chunks * 2 * kChunk) {
    return;
  }
  const int64_t item = row / (2 * kChunk), inside = row % (2 * kChunk);
  const int64_t chunk = item % n.chunks, hk = item / n.chunks % n.key_heads;
  const int64_t b = item / n.chunks / n.key_heads, t = chunk * kChunk + inside % kChunk;
  const bool is_key = inside >= kChunk;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (t >= n.length) {
    for (int64_t i = lane; i < n.ldk; i += 32) {
      qk[row * n.ldk + i] = 0;
    }
    if (lane == 0) {
      norms[row] = 0;
    }
    return;
  }
  const float* x = is_key ? k(b, t, hk) : q(b, t, hk);
  const double r = inverse_norm(x, n.dk), factor = is_key ? r : r * scale;
  for (int64_t i = lane; i < n.ldk; i += 32) {
    qk[row * n.ldk + i] = i < n.dk ? static_cast<float>(static_cast<double>(x[i]) * factor) : 0.0f;
  }
  if (lane == 0) {
    norms[row] = static_cast<float>(r);
  }
}

struct ForwardArgs {
  const float *qk, *dots;  // of Prepared
  Heads v, o;
  const float *g, *beta;
  float *state, *saved;  // or null
  float* scratch;        // where shared memory does not suffice
};

// Floats that a block of the walk works in: Q and K, S, U, P, A.
int64_t walk_size(const Sizes& n) {
  return 2 * kChunk * n.ldk + n.tile_rows() * kTile + kChunk * kTileLd + 2 * kChunk * kLd;
}

template <bool kShared>
__global__ void __launch_bounds__(kThreads, 2) walk_kernel(ForwardArgs x, Sizes n, int64_t size) {
  extern __shared__ float4 shared_memory[];
  __shared__ Gates gates;
  float* qk = kShared ? reinterpret_cast<float*>(shared_memory) : x.scratch + blockIdx.x * size;
  float* s = qk + 2 * kChunk * n.ldk;         // [dk, kTile]
  float* u = s + n.tile_rows() * kTile;       // [C, kTile]
  float* p = u + kChunk * kTileLd;            // [C, C]
  float* a = p + kChunk * kLd;                // [C, C]
  const int64_t head = blockIdx.x / n.tiles;  // of all rows of the batch
  const int64_t b = head / n.value_heads, h = head % n.value_heads, hk = h / n.group;
  const int column = static_cast<int>(threadIdx.x) % kTile;
  const int row = static_cast<int>(threadIdx.x) / kTile;  // 0 .. 15
  const int64_t c = blockIdx.x % n.tiles * kTile + column;
  const bool inside = c < n.dv;
  for (int64_t d = row; d < n.tile_rows(); d += kThreads / kTile) {
    s[d * kTile + column] =
        x.state != nullptr && d < n.dk && inside ? x.state[(head * n.dk + d) * n.dv + c] : 0.0f;
  }
  for (int64_t chunk = 0; chunk < n.chunks; ++chunk) {
    const int64_t t0 = chunk * kChunk, item = n.key_item(b, hk, chunk);
    const int count = n.tokens_in(chunk);
    __syncthreads();  // the chunk before is done, S complete
    if (threadIdx.x < 32) {
      load_gates(n, x.g, x.beta, b, t0, h, count, &gates);
    }
    for (int64_t i = 4 * threadIdx.x; i < 2 * kChunk * n.ldk; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(qk + i) = load4(x.qk + item * 2 * kChunk * n.ldk + i);
    }
    if (x.saved != nullptr && inside) {
      for (int64_t d = row; d < n.dk; d += kThreads / kTile) {
        x.saved[n.saved(b, h, chunk) + d * n.dv + c] = s[d * kTile + column];
      }
    }
    float v[2];
    for (int k = 0; k < 2; ++k) {
      const int i = row + 16 * k;
      v[k] = i < count && inside ? x.v(b, t0 + i, h)[c] : 0.0f;
    }
    __syncthreads();
    decay_dots(gates, x.dots + item * 2 * kChunk * kChunk, p, a, nullptr);
    // Rows `row` and `row + 16` of Q S0 and of K S0.
    float y[4] = {};
    for (int64_t d = 0; d < n.tile_rows(); d += 4) {
      const float* from = s + d * kTile + column;
      const float4 sd = {from[0], from[kTile], from[2 * kTile], from[3 * kTile]};
      for (int k = 0; k < 4; ++k) {
        y[k] = dot4(load4(qk + (row + 16 * k) * n.ldk + d), sd, y[k]);
      }
    }
    for (int k = 0; k < 2; ++k) {
      const int i = row + 16 * k;
      u[i * kTileLd + column] = gates.beta[i] * (v[k] - gates.e[i] * y[2 + k]);
    }
    __syncthreads();
    solve<kTile / kWarps, false>(a, u, kTileLd, kTile);
    __syncthreads();
    for (int k = 0; k < 2; ++k) {
      const int i = row + 16 * k;
      float sum = gates.e[i] * y[k];
      for (int j = 0; j < kChunk; ++j) {
        sum = fmaf(p[i * kLd + j], u[j * kTileLd + column], sum);
      }
      if (i < count && inside) {
        x.o(b, t0 + i, h)[c] = sum;
      }
    }
    const float whole = gates.e[kChunk - 1];
    for (int64_t d = 4 * row; d < n.tile_rows(); d += 4 * (kThreads / kTile)) {
      float4 sum = {};
      for (int j = 0; j < kChunk; ++j) {
        const float fu = gates.f[j] * u[j * kTileLd + column];
        const float4 key = load4(qk + (kChunk + j) * n.ldk + d);
        sum.x = fmaf(key.x, fu, sum.x);
        sum.y = fmaf(key.y, fu, sum.y);
        sum.z = fmaf(key.z, fu, sum.z);
        sum.w = fmaf(key.w, fu, sum.w);
      }
      float* to = s + d * kTile + column;
      to[0] = fmaf(whole, to[0], sum.x);
      to[kTile] = fmaf(whole, to[kTile], sum.y);
      to[2 * kTile] = fmaf(whole, to[2 * kTile], sum.z);
      to[3 * kTile] = fmaf(whole, to[3 * kTile], sum.w);
    }
  }
  if (x.state != nullptr && inside) {
    __syncthreads();
    for (int64_t d = row; d < n.dk; d += kThreads / kTile) {
      x.state[(head * n.dk + d) * n.dv + c] = s[d * kTile + column];
    }
  }
}

// The parts of forward's workspace.
struct Plan {
  bool few;
  Prepared prepared{};
  float* scratch = nullptr;
  size_t bytes;

  // Scratch of the walk is there only for blocks that shared memory is too small for.
  Plan(const Sizes& n, const OpArgs& args, bool shared, void* base) : few(n.length < kFewTokens) {
    Parts parts{static_cast<char*>(base)};
    if (few) {
      scratch = parts.take(token_scratch(args));
    } else {
      prepared = prepared_parts(n, &parts);
      scratch = parts.take(shared ? 0 : n.batch * n.value_heads * n.tiles * walk_size(n));
    }
    bytes = parts.used;
  }
};

bool walk_is_shared(const Sizes& n) {
  return allow_shared(reinterpret_cast<const void*>(&walk_kernel<true>),
                      static_cast<size_t>(walk_size(n)) * sizeof(float));
}

}  // namespace

Prepared prepared_parts(const Sizes& n, Parts* parts) {
  const int64_t rows = n.key_items() * 2 * kChunk;
  Prepared to{};
  to.qk = parts->take(rows * n.ldk);
  to.dots = parts->take(rows * kChunk);
  to.norms = parts->take(rows);
  return to;
}

void prepare(const OpArgs& args, const Sizes& n, const Prepared& to) {
  const int64_t items = n.key_items();
  normalize_kernel<<<static_cast<unsigned>(ceil_div(items * 2 * kChunk, kWarps)), kThreads, 0,
                     this_stream()>>>(Heads(args.in[0]), Heads(args.in[1]), n, query_scale(n),
                                      to.qk, to.norms);
  check_launch("delta_rule keys");
  constexpr int64_t kMost = 32768;  // products in one call
  const int64_t stride = 2 * kChunk * n.ldk;
  for (int64_t first = 0; first < items; first += kMost) {
    const float* qk = to.qk + first * stride;
    gpu_gemm({.transpose_b = true,
              .m = 2 * kChunk,
              .n = kChunk,
              .k = n.dk,
              .lda = n.ldk,
              .ldb = n.ldk,
              .ldc = kChunk,
              .batch = std::min(kMost, items - first),
              .stride_a = stride,
              .stride_b = stride,
              .stride_c = 2 * kChunk * kChunk},
             qk, qk + kChunk * n.ldk, to.dots + first * 2 * kChunk * kChunk);
  }
}

double query_scale(const DeltaSizes& n) {
  return 1 / std::sqrt(static_cast<double>(n.dk));
}

bool allow_shared(const void* kernel, size_t bytes) {
  constexpr size_t kStatic = 4096;  // more than any of the kernels has beside it
  if (bytes + kStatic > most_shared_memory()) {
    return false;
  }
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "delta_rule");
  return true;
}

}  // namespace delta_cuda

void delta_rule_forward_cuda(const OpArgs& args) {
  using namespace delta_cuda;
  if (args.in[0].dtype == DType::kBF16) {
    return delta_rule_forward_bf16(args);
  }
  const Sizes n(args);
  if (n.empty()) {
    return;
  }
  const bool shared = walk_is_shared(n);
  const Plan plan(n, args, shared, args.workspace);
  if (plan.few) {
    forward_tokens(args, plan.scratch);
    return;
  }
  const ForwardArgs x = {
      plan.prepared.qk,           plan.prepared.dots,         Heads(args.in[2]),
      Heads(args.out[0]),         args.in[3].ptr<float>(),    args.in[4].ptr<float>(),
      args.state[0].ptr<float>(), args.saved[0].ptr<float>(), plan.scratch};
  const int64_t heads = n.batch * n.value_heads;
  prepare(args, n, plan.prepared);
  const auto blocks = static_cast<unsigned>(heads * n.tiles);
  const int64_t size = walk_size(n);
  if (shared) {
    walk_kernel<true>
        <<<blocks, kThreads, static_cast<size_t>(size) * sizeof(float), this_stream()>>>(x, n,
                                                                                         size);
  } else {
    walk_kernel<false><<<blocks, kThreads, 0, this_stream()>>>(x, n, size);
  }
  check_launch("delta_rule");
}

size_t delta_rule_workspace_cuda(const OpArgs& args, bool backward) {
  using namespace delta_cuda;
  if (args.in[0].dtype == DType::kBF16) {
    return delta_rule_workspace_bf16(args, backward);
  }
  const Sizes n(args);
  if (n.empty()) {
    return 0;
  }
  return backward ? backward_bytes(n) : Plan(n, args, walk_is_shared(n), nullptr).bytes;
}

}  // namespace fwpkm
