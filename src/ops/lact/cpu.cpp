// Forward and backward as matrix products over blocks of tokens. Chunks follow each other, so the
// items of work are the heads of the sequences: B * H of them.
#include <cstring>

#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/lact/lact.h"
#include "ops/lact/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lact/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace lact_cpu {

// Rows of k, v, lr and momentum of one head, wherever they stand.
struct Tokens {
  const float *k, *v, *lr, *momentum;
  int64_t ldk, ldv, ldlr, ldm;

  Tokens from(int64_t row) const {
    return {
        k + row * ldk, v + row * ldv, lr + row * ldlr, momentum + row * ldm, ldk, ldv, ldlr, ldm};
  }
};

Tokens input_tokens(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h) {
  return {lact_row<float>(args.in[1], n, b, t, h),
          lact_row<float>(args.in[2], n, b, t, h),
          args.in[3].ptr<float>() + 3 * n.at(b, t, h),
          args.in[4].ptr<float>() + n.at(b, t, h),
          args.in[1].strides[1],
          args.in[2].strides[1],
          3 * n.heads,
          n.heads};
}

float mean_momentum(const Tokens& tokens, int64_t count) {
  double sum = 0;
  for (int64_t t = 0; t < count; ++t) {
    sum += static_cast<double>(tokens.momentum[t * tokens.ldm]);
  }
  return static_cast<float>(sum / static_cast<double>(count));
}

// silu(x), its slope and the slope of that.
struct Silu {
  V32 value, slope, bend;
};

HWY_INLINE Silu silu(F32 d, V32 x) {
  const V32 one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const V32 s = sigmoid(d, x), rest = hn::Sub(one, s);
  Silu result;
  result.value = hn::Mul(x, s);
  result.slope = hn::Mul(s, hn::MulAdd(x, rest, one));
  result.bend = hn::Mul(hn::Mul(s, rest), hn::MulAdd(x, hn::Sub(rest, s), two));
  return result;
}

// C [rows, D] (= or +=) A W^T or A W, and W (= or +=) A^T B over the rows.
void times_transposed(const float* a, int64_t lda, const float* w, int64_t rows, int64_t width,
                      float* c, int64_t ldc, bool add = false) {
  gemm(false, true, rows, width, width, 1.0f, a, lda, w, width, add ? 1.0f : 0.0f, c, ldc);
}
void times(const float* a, int64_t lda, const float* w, int64_t rows, int64_t width, float* c,
           int64_t ldc, bool add = false) {
  gemm(false, false, rows, width, width, 1.0f, a, lda, w, width, add ? 1.0f : 0.0f, c, ldc);
}
void add_outer(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t rows,
               int64_t width, float* w) {
  gemm(true, false, width, width, rows, 1.0f, a, lda, b, ldb, 1.0f, w, width);
}

// Calls fn(first, count) for blocks of tokens.
template <typename Fn>
void for_blocks(int64_t count, Fn&& fn) {
  for (int64_t at = 0; at < count; at += kLactRows) {
    fn(at, HWY_MIN(kLactRows, count - at));
  }
}

void first_norms(const float* w, const LactSizes& n, float* norms) {
  const F32 d;
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    const float* row = w + r * n.width;
    norms[r] = static_cast<float>(std::sqrt(static_cast<double>(dot(d, row, row, n.width))));
  }
}

// to = from + M with its rows at their first norms; from may be to.
void apply(const float* from, const float* m, const float* norms, const LactSizes& n, float* to) {
  const F32 d;
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    const int64_t at = r * n.width;
    for_vectors(d, n.width, [&](int64_t i, size_t c) {
      store_part(d, hn::Add(load_part(d, from + at + i, c), load_part(d, m + at + i, c)),
                 to + at + i, c);
    });
    const V32 scale = hn::Set(
        d, static_cast<float>(norms[r] * inverse_norm(to + at, n.width, 1.0, kLactNormEps)));
    for_vectors(d, n.width, [&](int64_t i, size_t c) {
      store_part(d, hn::Mul(scale, load_part(d, to + at + i, c)), to + at + i, c);
    });
  }
}

void load_start(const OpArgs& args, const LactSizes& n, int64_t h, float* w) {
  const auto bytes = static_cast<size_t>(n.matrix()) * sizeof(float);
  for (int i = 0; i < 3; ++i) {
    std::memcpy(w + i * n.matrix(), args.in[5 + i].ptr<float>() + h * n.matrix(), bytes);
  }
}

// o of `count` tokens from t on.
void read(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h, int64_t count,
          const float* w, float* const* tiles) {
  const F32 d;
  const int64_t width = n.width, ldq = args.in[0].strides[1], ldo = args.out[0].strides[1];
  for_blocks(count, [&](int64_t at, int64_t rows) {
    const float* q = lact_row<float>(args.in[0], n, b, t + at, h);
    times_transposed(q, ldq, w, rows, width, tiles[0], width);
    times_transposed(q, ldq, w + 2 * n.matrix(), rows, width, tiles[1], width);
    for_vectors(d, rows * width, [&](int64_t i, size_t c) {
      const V32 a = silu(d, load_part(d, tiles[0] + i, c)).value;
      store_part(d, hn::Mul(a, load_part(d, tiles[1] + i, c)), tiles[0] + i, c);
    });
    times_transposed(tiles[0], width, w + n.matrix(), rows, width,
                     lact_row<float>(args.out[0], n, b, t + at, h), ldo);
  });
}

// M = mean(momentum) before + the steps of a chunk; no `before`: zero. M may be `before`.
void step(const Tokens& tokens, const LactSizes& n, const float* w, const float* before, float* m,
          float* const* tiles) {
  const F32 d;
  const int64_t width = n.width, size = n.matrix();
  if (before == nullptr) {
    std::memset(m, 0, static_cast<size_t>(n.matrices()) * sizeof(float));
  } else {
    const V32 mean = hn::Set(d, mean_momentum(tokens, n.chunk));
    for_vectors(d, n.matrices(), [&](int64_t i, size_t c) {
      store_part(d, hn::Mul(mean, load_part(d, before + i, c)), m + i, c);
    });
  }
  float *g = tiles[0], *u = tiles[1], *p = tiles[2];
  for_blocks(n.chunk, [&](int64_t at, int64_t rows) {
    const Tokens t = tokens.from(at);
    times_transposed(t.k, t.ldk, w, rows, width, g, width);
    times_transposed(t.k, t.ldk, w + 2 * size, rows, width, u, width);
    times(t.v, t.ldv, w + size, rows, width, p, width);
    for (int64_t r = 0; r < rows; ++r) {
      const float* lr = t.lr + r * t.ldlr;
      const V32 lr0 = hn::Set(d, lr[0]), lr1 = hn::Set(d, lr[1]), lr2 = hn::Set(d, lr[2]);
      for_vectors(d, width, [&](int64_t i, size_t c) {
        const int64_t x = r * width + i;
        const Silu a = silu(d, load_part(d, g + x, c));
        const V32 ui = load_part(d, u + x, c), pi = load_part(d, p + x, c);
        store_part(d, hn::Mul(lr0, hn::Mul(hn::Mul(pi, ui), a.slope)), g + x, c);
        store_part(d, hn::Mul(lr2, hn::Mul(pi, a.value)), u + x, c);
        store_part(d, hn::Mul(lr1, hn::Mul(ui, a.value)), p + x, c);
      });
    }
    add_outer(g, width, t.k, t.ldk, rows, width, m);
    add_outer(t.v, t.ldv, p, width, rows, width, m + size);
    add_outer(u, width, t.k, t.ldk, rows, width, m + 2 * size);
  });
}

// Appends `count` tokens from t on to the incomplete chunk.
void append(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h, int64_t count,
            float* pending) {
  const Tokens tokens = input_tokens(args, n, b, t, h);
  const auto bytes = static_cast<size_t>(n.width) * sizeof(float);
  for (int64_t i = 0; i < count; ++i) {
    const Tokens one = tokens.from(i);
    float* to = pending + i * n.pending_width();
    std::memcpy(to, one.k, bytes);
    std::memcpy(to + n.width, one.v, bytes);
    std::memcpy(to + 2 * n.width, one.lr, 3 * sizeof(float));
    to[2 * n.width + 3] = *one.momentum;
  }
}

void forward_item(const OpArgs& args, const LactSizes& n, int64_t b, int64_t h, float* scratch) {
  const LactForwardScratch s(n, scratch);
  const int64_t item = n.item(b, h), pending_width = n.pending_width();
  const auto own = [&](int i, int64_t size, float* other) {
    return n.keeps ? args.state[i].ptr<float>() + item * size : other;
  };
  float* w = own(0, n.matrices(), s.weights);
  float* m = own(1, n.matrices(), s.momentum);
  float* norms = own(2, 3 * n.width, s.norms);
  float* pending = own(3, n.chunk * pending_width, nullptr);
  const float* before = m;
  if (args.attr<LactSettings>().begins) {
    load_start(args, n, h, w);
    first_norms(w, n, norms);
    before = nullptr;
    if (n.keeps) {
      std::memset(m, 0, static_cast<size_t>(n.matrices()) * sizeof(float));
    }
  }
  int64_t filled = n.pending, update = 0;
  for (int64_t t = 0; t < n.length;) {
    const int64_t count = HWY_MIN(n.chunk - filled, n.length - t);
    read(args, n, b, t, h, count, w, s.tiles);
    if (n.keeps) {
      append(args, n, b, t, h, count, pending + filled * pending_width);
    }
    t += count;
    filled += count;
    if (filled < n.chunk || update == n.updates) {
      continue;
    }
    Tokens tokens;
    if (n.keeps) {
      tokens = {pending,       pending + n.width, pending + 2 * n.width, pending + 2 * n.width + 3,
                pending_width, pending_width,     pending_width,         pending_width};
    } else {
      tokens = input_tokens(args, n, b, t - n.chunk, h);
    }
    if (args.saved[0]) {
      m = args.saved[0].ptr<float>() + n.saved_at(b, h, update);
    }
    step(tokens, n, w, before, m, s.tiles);
    apply(w, m, norms, n, w);
    before = m;
    filled = 0;
    ++update;
  }
}

// dq of `count` tokens from t on, and what reading adds to dW.
void backward_read(const OpArgs& args, const LactSizes& n, int64_t b, int64_t t, int64_t h,
                   int64_t count, const float* w, float* dw, float* const* tiles) {
  const F32 d;
  const int64_t width = n.width, size = n.matrix();
  const int64_t ldq = args.in[0].strides[1], ldo = args.dout[0].strides[1];
  float *a = tiles[0], *x = tiles[1], *ds = tiles[2];
  for_blocks(count, [&](int64_t at, int64_t rows) {
    const float* q = lact_row<float>(args.in[0], n, b, t + at, h);
    const float* d_o = lact_row<float>(args.dout[0], n, b, t + at, h);
    times_transposed(q, ldq, w, rows, width, a, width);
    times_transposed(q, ldq, w + 2 * size, rows, width, x, width);
    times(d_o, ldo, w + size, rows, width, ds, width);
    // a, x, ds become da, dx, s.
    for_vectors(d, rows * width, [&](int64_t i, size_t c) {
      const Silu f = silu(d, load_part(d, a + i, c));
      const V32 xi = load_part(d, x + i, c), dsi = load_part(d, ds + i, c);
      store_part(d, hn::Mul(hn::Mul(dsi, xi), f.slope), a + i, c);
      store_part(d, hn::Mul(dsi, f.value), x + i, c);
      store_part(d, hn::Mul(f.value, xi), ds + i, c);
    });
    add_outer(a, width, q, ldq, rows, width, dw);
    add_outer(d_o, ldo, ds, width, rows, width, dw + size);
    add_outer(x, width, q, ldq, rows, width, dw + 2 * size);
    if (args.din[0]) {
      float* dq = lact_row<float>(args.din[0], n, b, t + at, h);
      const int64_t ld = args.din[0].strides[1];
      times(a, width, w, rows, width, dq, ld, args.accumulate[0]);
      times(x, width, w + 2 * size, rows, width, dq, ld, true);
    }
  });
}

// dk, dv and dlr of a chunk whose G has the gradient `dstep`, and what they add to dW.
void backward_step(const OpArgs& args, const LactSizes& n, int64_t b, int64_t begin, int64_t h,
                   const float* w, const float* dstep, float* dw, float* const* tiles) {
  const F32 d;
  const int64_t width = n.width, size = n.matrix();
  float *g = tiles[0], *u = tiles[1], *p = tiles[2];
  float *z0 = tiles[3], *z1 = tiles[4], *z2 = tiles[5];
  for_blocks(n.chunk, [&](int64_t at, int64_t rows) {
    const Tokens t = input_tokens(args, n, b, begin + at, h);
    times_transposed(t.k, t.ldk, w, rows, width, g, width);
    times_transposed(t.k, t.ldk, w + 2 * size, rows, width, u, width);
    times(t.v, t.ldv, w + size, rows, width, p, width);
    times_transposed(t.k, t.ldk, dstep, rows, width, z0, width);
    times(t.v, t.ldv, dstep + size, rows, width, z1, width);
    times_transposed(t.k, t.ldk, dstep + 2 * size, rows, width, z2, width);
    // g, u, p become their gradients; z0, z1, z2 become lr0 e0, lr1 h, lr2 e2.
    for (int64_t r = 0; r < rows; ++r) {
      const float* lr = t.lr + r * t.ldlr;
      const V32 lr0 = hn::Set(d, lr[0]), lr1 = hn::Set(d, lr[1]), lr2 = hn::Set(d, lr[2]);
      V32 sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d);
      for_vectors(d, width, [&](int64_t i, size_t c) {
        const int64_t x = r * width + i;
        const Silu a = silu(d, load_part(d, g + x, c));
        const V32 ui = load_part(d, u + x, c), pi = load_part(d, p + x, c);
        const V32 z0i = load_part(d, z0 + x, c), z1i = load_part(d, z1 + x, c),
                  z2i = load_part(d, z2 + x, c);
        const V32 hi = hn::Mul(a.value, ui), e2 = hn::Mul(a.value, pi);
        const V32 us = hn::Mul(ui, a.slope), e0 = hn::Mul(pi, us);
        sum0 = hn::MulAdd(z0i, e0, sum0);
        sum1 = hn::MulAdd(z1i, hi, sum1);
        sum2 = hn::MulAdd(z2i, e2, sum2);
        const V32 de0 = hn::Mul(lr0, z0i), dh = hn::Mul(lr1, z1i), de2 = hn::Mul(lr2, z2i);
        const V32 de0p = hn::Mul(de0, pi);
        const V32 bent = hn::Mul(hn::Mul(de0p, ui), a.bend);
        store_part(d, hn::MulAdd(dh, us, hn::MulAdd(hn::Mul(de2, pi), a.slope, bent)), g + x, c);
        store_part(d, hn::MulAdd(dh, a.value, hn::Mul(de0p, a.slope)), u + x, c);
        store_part(d, hn::MulAdd(de0, us, hn::Mul(de2, a.value)), p + x, c);
        store_part(d, hn::Mul(lr0, e0), z0 + x, c);
        store_part(d, hn::Mul(lr1, hi), z1 + x, c);
        store_part(d, hn::Mul(lr2, e2), z2 + x, c);
      });
      if (args.din[3]) {
        float* dlr = args.din[3].ptr<float>() + 3 * n.at(b, begin + at + r, h);
        const V32 sums[] = {sum0, sum1, sum2};
        for (int i = 0; i < 3; ++i) {
          const float sum = hn::GetLane(hn::SumOfLanes(d, sums[i]));
          dlr[i] = args.accumulate[3] ? dlr[i] + sum : sum;
        }
      }
    }
    add_outer(g, width, t.k, t.ldk, rows, width, dw);
    add_outer(t.v, t.ldv, p, width, rows, width, dw + size);
    add_outer(u, width, t.k, t.ldk, rows, width, dw + 2 * size);
    if (args.din[1]) {
      float* dk = lact_row<float>(args.din[1], n, b, begin + at, h);
      const int64_t ld = args.din[1].strides[1];
      times(z0, width, dstep, rows, width, dk, ld, args.accumulate[1]);
      times(z2, width, dstep + 2 * size, rows, width, dk, ld, true);
      times(g, width, w, rows, width, dk, ld, true);
      times(u, width, w + 2 * size, rows, width, dk, ld, true);
    }
    if (args.din[2]) {
      float* dv = lact_row<float>(args.din[2], n, b, begin + at, h);
      const int64_t ld = args.din[2].strides[1];
      times_transposed(z1, width, dstep + size, rows, width, dv, ld, args.accumulate[2]);
      times_transposed(p, width, w + size, rows, width, dv, ld, true);
    }
  });
}

// The tokens after the last update: nothing comes back to their k, v and lr.
void clear_steps(const OpArgs& args, const LactSizes& n, int64_t b, int64_t begin, int64_t h) {
  const auto bytes = static_cast<size_t>(n.width) * sizeof(float);
  for (int64_t t = begin; t < n.length; ++t) {
    for (int i = 1; i < 3; ++i) {
      if (args.din[i] && !args.accumulate[i]) {
        std::memset(lact_row<float>(args.din[i], n, b, t, h), 0, bytes);
      }
    }
    if (args.din[3] && !args.accumulate[3]) {
      std::memset(args.din[3].ptr<float>() + 3 * n.at(b, t, h), 0, 3 * sizeof(float));
    }
  }
}

// From the gradients of W' (in dw) and M' (in s.dm) to that of the chunk's G (in s.step), of W as
// far as the update itself goes (in dw), of M (in s.dm) and of the first norms. Returns that of the
// mean momentum.
float backward_update(const LactSizes& n, const float* w, const float* m, const float* before,
                      float mean, const LactBackwardScratch& s, float* dw) {
  const F32 d;
  double dmean = 0;
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    const int64_t at = r * n.width;
    for_vectors(d, n.width, [&](int64_t i, size_t c) {
      store_part(d, hn::Add(load_part(d, w + at + i, c), load_part(d, m + at + i, c)), s.row + i,
                 c);
    });
    const auto scale = static_cast<float>(inverse_norm(s.row, n.width, 1.0, kLactNormEps));
    const float along = scale * dot(d, s.row, dw + at, n.width);
    s.dnorms[r] += along;
    const V32 gain = hn::Set(d, s.norms[r] * scale), back = hn::Set(d, scale * along);
    const V32 keep = hn::Set(d, mean);
    for_vectors(d, n.width, [&](int64_t i, size_t c) {
      const V32 x = load_part(d, s.row + i, c), e = load_part(d, dw + at + i, c);
      const V32 dx = hn::Mul(gain, hn::NegMulAdd(x, back, e));
      const V32 total = hn::Add(dx, load_part(d, s.dm + at + i, c));
      store_part(d, dx, dw + at + i, c);
      store_part(d, total, s.step + at + i, c);
      store_part(d, hn::Mul(keep, total), s.dm + at + i, c);
    });
    if (before != nullptr) {
      dmean += static_cast<double>(dot(d, s.step + at, before + at, n.width));
    }
  }
  return static_cast<float>(dmean);
}

void backward_item(const OpArgs& args, const LactSizes& n, int64_t b, int64_t h, float* scratch,
                   float* dw) {
  const F32 d;
  const LactBackwardScratch s(n, scratch);
  const int64_t size = n.matrices();
  const auto bytes = static_cast<size_t>(size) * sizeof(float);
  load_start(args, n, h, s.chain);
  first_norms(s.chain, n, s.norms);
  const float* m = args.saved[0] ? args.saved[0].ptr<float>() + n.saved_at(b, h, 0) : nullptr;
  for (int64_t c = 0; c < n.updates; ++c) {
    apply(s.chain + c * size, m + c * size, s.norms, n, s.chain + (c + 1) * size);
  }
  std::memset(dw, 0, bytes);
  std::memset(s.dm, 0, bytes);
  std::memset(s.dnorms, 0, static_cast<size_t>(3 * n.width) * sizeof(float));
  for (int64_t c = n.updates; c >= 0; --c) {
    const float* w = s.chain + c * size;
    const int64_t begin = c * n.chunk, count = HWY_MIN(n.chunk, n.length - begin);
    float dmomentum = 0;  // of each of the chunk's tokens
    if (c < n.updates) {
      const float mean = mean_momentum(input_tokens(args, n, b, begin, h), n.chunk);
      const float* before = c == 0 ? nullptr : m + (c - 1) * size;
      dmomentum =
          backward_update(n, w, m + c * size, before, mean, s, dw) / static_cast<float>(n.chunk);
      backward_step(args, n, b, begin, h, w, s.step, dw, s.tiles);
    } else {
      clear_steps(args, n, b, begin, h);
    }
    for (int64_t t = begin; t < begin + count && args.din[4]; ++t) {
      float& to = args.din[4].ptr<float>()[n.at(b, t, h)];
      to = args.accumulate[4] ? to + dmomentum : dmomentum;
    }
    backward_read(args, n, b, begin, h, count, w, dw, s.tiles);
  }
  // The first norms are norms of the first weights.
  for (int64_t r = 0; r < 3 * n.width; ++r) {
    if (s.norms[r] > 0) {
      const V32 along = hn::Set(d, s.dnorms[r] / s.norms[r]);
      for_vectors(d, n.width, [&](int64_t i, size_t c) {
        const V32 first = load_part(d, s.chain + r * n.width + i, c);
        put(d, hn::Mul(along, first), dw + r * n.width + i, c, true);
      });
    }
  }
}

}  // namespace lact_cpu

void lact_forward_items(const OpArgs& args) {
  const LactSizes n(args);
  const int64_t size = LactForwardScratch(n, nullptr).size;
  parallel_items(n.batch * n.heads, [&](int64_t item) {
    float* scratch = static_cast<float*>(args.workspace) + thread_index() * size;
    lact_cpu::forward_item(args, n, item / n.heads, item % n.heads, scratch);
  });
}

void lact_backward_items(const OpArgs& args) {
  const LactSizes n(args);
  const int64_t size = LactBackwardScratch(n, nullptr).size;
  auto* dw = static_cast<float*>(args.workspace);  // [B, H, 3, D, D]
  float* scratch = dw + n.batch * n.heads * n.matrices();
  parallel_items(n.batch * n.heads, [&](int64_t item) {
    lact_cpu::backward_item(args, n, item / n.heads, item % n.heads,
                            scratch + thread_index() * size, dw + item * n.matrices());
  });
  // The start is shared by all sequences: their gradients are added in order.
  parallel_items(3 * n.heads, [&](int64_t item) {
    const F32 d;
    const int64_t h = item / 3, i = item % 3;
    const View& din = args.din[static_cast<size_t>(5 + i)];
    if (!din) {
      return;
    }
    float* to = din.ptr<float>() + h * n.matrix();
    for_vectors(d, n.matrix(), [&](int64_t x, size_t c) {
      V32 sum = args.accumulate[static_cast<size_t>(5 + i)] ? load_part(d, to + x, c) : hn::Zero(d);
      for (int64_t b = 0; b < n.batch; ++b) {
        sum = hn::Add(sum, load_part(d, dw + n.item(b, h) * n.matrices() + i * n.matrix() + x, c));
      }
      store_part(d, sum, to + x, c);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(lact_forward_items);
HWY_EXPORT(lact_backward_items);

void lact_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(lact_forward_items)(args);
}

void lact_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(lact_backward_items)(args);
}

size_t lact_workspace_cpu(const OpArgs& args, bool backward) {
  const LactSizes n(args);
  const int64_t size =
      backward ? n.batch * n.heads * n.matrices() + threads() * LactBackwardScratch(n, nullptr).size
               : threads() * LactForwardScratch(n, nullptr).size;
  return static_cast<size_t>(size) * sizeof(float);
}

}  // namespace fwpkm
#endif
