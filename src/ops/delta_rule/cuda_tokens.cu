// Forward of a few tokens, one by one: what decoding does.
#include <type_traits>

#include "ops/delta_rule/launch.cuh"

namespace fwpkm {
namespace delta_cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <typename T>
struct TokenArgs {
  HeadsOf<T> q, k, v, o;
  const float *g, *beta;
  float *state, *saved;  // or null
  float* scratch;
  double scale;  // of q
};

// A warp's lanes are columns of S, its 8 warps share the rows. kRows of them fit a thread's
// registers; with 0 they stay where they are (`state`, or scratch that starts at zero). With x the
// decay, o = S^T q of the corrected S is x (S^T q) + <q, k> u of the old one.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads)
    token_kernel(TokenArgs<T> x, DeltaSizes n, int64_t strips) {
  __shared__ float of_k[kWarps][32], of_q[kWarps][32];
  const int64_t head = blockIdx.x / strips;
  const int64_t b = head / n.value_heads, h = head % n.value_heads, hk = h / n.group;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t c = blockIdx.x % strips * 32 + lane;
  const bool inside = c < n.dv;
  const bool given = x.state != nullptr;
  float* s = (given ? x.state : x.scratch) + head * n.dk * n.dv + c;
  float held[kRows > 0 ? kRows : 1];
  // Calls fn with the thread's rows d and S there.
  const auto each_row = [&](auto&& fn) {
    if constexpr (kRows > 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (const int64_t d = warp + r * kWarps; d < n.dk && inside) {
          fn(d, held[r]);
        }
      }
    } else {
      for (int64_t d = warp; d < n.dk && inside; d += kWarps) {
        fn(d, s[d * n.dv]);
      }
    }
  };
  each_row([&](int64_t d, float& at) {
    at = given ? s[d * n.dv] : 0.0f;
    if (x.saved != nullptr) {
      x.saved[head * n.dk * n.dv + d * n.dv + c] = at;
    }
  });
  for (int64_t t = 0; t < n.length; ++t) {
    const int64_t token = (b * n.length + t) * n.value_heads + h;
    const float decay = expf(x.g[token]), beta = x.beta[token];
    const float value = inside ? to_float(x.v(b, t, h)[c]) : 0.0f;
    const T* query = x.q(b, t, hk);
    const T* key = x.k(b, t, hk);
    const auto rq = static_cast<float>(inverse_norm(query, n.dk) * x.scale);
    const auto rk = static_cast<float>(inverse_norm(key, n.dk));
    float qk = 0;
    for (int64_t d = lane; d < n.dk; d += 32) {
      qk += to_float(query[d]) * rq * (to_float(key[d]) * rk);
    }
    qk = warp_sum(qk);
    float sum_k = 0, sum_q = 0;
    each_row([&](int64_t d, float& at) {
      sum_k = fmaf(to_float(key[d]) * rk, at, sum_k);
      sum_q = fmaf(to_float(query[d]) * rq, at, sum_q);
    });
    __syncthreads();  // the sums of the token before may still be read
    of_k[warp][lane] = sum_k;
    of_q[warp][lane] = sum_q;
    __syncthreads();
    sum_k = sum_q = 0;
    for (int i = 0; i < kWarps; ++i) {
      sum_k += of_k[i][lane];
      sum_q += of_q[i][lane];
    }
    const float u = beta * (value - decay * sum_k);
    if (warp == 0 && inside) {
      x.o(b, t, h)[c] = from_float<T>(fmaf(qk, u, decay * sum_q));
    }
    each_row([&](int64_t d, float& at) { at = fmaf(to_float(key[d]) * rk, u, decay * at); });
  }
  if (kRows > 0 && given) {
    each_row([&](int64_t d, float& at) { s[d * n.dv] = at; });
  }
}

constexpr int64_t kMostRows = 16;  // that a thread holds of S

template <typename T>
void forward_tokens_of(const OpArgs& args, float* scratch) {
  const DeltaSizes n(args);
  // In bf16 a tape goes with chunks, which save what backward wants.
  float* saved = nullptr;
  if constexpr (std::is_same_v<T, float>) {
    saved = args.saved[0].ptr<float>();
  }
  const TokenArgs<T> x = {HeadsOf<T>(args.in[0]),
                          HeadsOf<T>(args.in[1]),
                          HeadsOf<T>(args.in[2]),
                          HeadsOf<T>(args.out[0]),
                          args.in[3].ptr<float>(),
                          args.in[4].ptr<float>(),
                          args.state[0].ptr<float>(),
                          saved,
                          scratch,
                          query_scale(n)};
  const int64_t strips = ceil_div(n.dv, 32), blocks = n.batch * n.value_heads * strips;
  const char* what = "delta_rule tokens";
  if (n.dk <= kMostRows / 2 * kWarps) {
    launch(what, &token_kernel<T, kMostRows / 2>, blocks, kThreads, 0, x, n, strips);
  } else if (n.dk <= kMostRows * kWarps) {
    launch(what, &token_kernel<T, kMostRows>, blocks, kThreads, 0, x, n, strips);
  } else if constexpr (std::is_same_v<T, float>) {
    launch(what, &token_kernel<T, 0>, blocks, kThreads, 0, x, n, strips);
  }
}

}  // namespace

int64_t token_scratch(const OpArgs& args) {
  const DeltaSizes n(args);
  const bool held = n.dk <= kMostRows * kWarps;
  return held || args.state[0] ? 0 : n.batch * n.value_heads * n.matrix();
}

void forward_tokens(const OpArgs& args, float* scratch) {
  with_real(args.in[0], [&]<typename T>(T*) { forward_tokens_of<T>(args, scratch); });
}

}  // namespace delta_cuda
}  // namespace fwpkm
