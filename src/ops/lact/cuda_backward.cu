// Chunks from the last to the first; README.md derives what happens in each.
#include <type_traits>

#include "ops/lact/cuda.cuh"
#include "tensor/cuda.h"

namespace fwpkm {
namespace {

constexpr int kThreads = FastGrid::kThreads;

// Pointers into LactBackwardBuffers and what forward saved.
template <typename Real>
struct UpdateBack {
  LactBlocks w, m, before;  // before: null for the first update
  const float *norms, *means;
  float *dnorms, *dw, *dm;
  Real* steps;
  double* dots;
};

// From the gradients of W' (in dw) and M' (in dm) to that of the chunk's G (in steps), of W as far
// as the update itself goes (in dw), of M (in dm), of the first norms, and <S, M>.
template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    update_back_kernel(LactMatrixRows matrices, UpdateBack<Real> back) {
  constexpr int kRun = kFastRun<Real>;
  const RowPlan& plan = matrices.plan;
  for_rows(plan, [&](uint32_t number, bool here) {
    const auto place = matrices.place(number);
    const auto row = [&](const LactBlocks& blocks) {
      return blocks.data + place.item * blocks.stride + place.in_block;
    };
    const float *w = row(back.w), *m = row(back.m), *before = row(back.before);
    float *dw = back.dw + place.in_stack, *dm = back.dm + place.in_stack;
    const auto moved = [&](uint32_t at, float(&x)[kRun]) {
      float momentum[kRun];
      load_run(w + at, x);
      load_run(m + at, momentum);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        x[i] += momentum[i];
      }
    };
    using Sum = std::conditional_t<sizeof(Real) == 2, float, double>;
    Sum squares = 0, along = 0;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      float x[kRun], e[kRun];
      moved(at, x);
      load_run(dw + at, e);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        squares += static_cast<Sum>(x[i]) * static_cast<Sum>(x[i]);
        along += static_cast<Sum>(x[i]) * static_cast<Sum>(e[i]);
      }
    });
    squares = lanes_sum(plan, squares);
    along = lanes_sum(plan, along);
    const Sum r = 1 / sqrt(squares + static_cast<Sum>(kLactNormEps));
    const float gain = static_cast<float>(back.norms[number] * r);
    const auto bend = static_cast<float>(r * r * along);
    const float mean = back.means[place.item];
    Sum dot = 0;
    if (here) {
      for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
        float x[kRun], e[kRun], total[kRun], old[kRun] = {};
        moved(at, x);
        load_run(dw + at, e);
        load_run(dm + at, total);
        if (back.before.data != nullptr) {
          load_run(before + at, old);
        }
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          e[i] = gain * (e[i] - x[i] * bend);
          total[i] += e[i];
          dot += static_cast<Sum>(total[i]) * static_cast<Sum>(old[i]);
          x[i] = mean * total[i];
        }
        store_run(dw + at, e);
        store_run(dm + at, x);
        store_run(back.steps + place.in_stack + at, total);
      });
    }
    dot = lanes_sum(plan, dot);
    if (here && plan.lane() == 0) {
      back.dnorms[number] += static_cast<float>(r * along);
      back.dots[number] = static_cast<double>(dot);
    }
  });
}

// The gradient of the mean momentum, shared out among the chunk's tokens. Without dots it is zero.
__global__ void __launch_bounds__(kThreads)
    momentum_kernel(const double* dots, int64_t rows, int64_t chunk, int64_t tokens, int64_t heads,
                    LactRows<float> to, bool accumulate) {
  const int64_t item = blockIdx.x;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows && dots != nullptr; i += kThreads) {
    sum += dots[item * rows + i];
  }
  const double dmean = lact_block_sum<kThreads>(sum);
  const auto each = static_cast<float>(dmean / static_cast<double>(chunk));
  float* first = to.data + item / heads * to.sequence + item % heads * to.head;
  for (int64_t t = threadIdx.x; t < tokens; t += kThreads) {
    put(first + t * to.token, each, accumulate);
  }
}

// Pointers into LactBackwardBuffers.
template <typename Real>
struct StepBack {
  const float *hidden, *p, *z_both, *z_out;
  Real *dhidden, *dp, *e, *h;
};

// Of each token: the gradients of g, u and p, its rates times e0, e2 and h, and the gradients of
// the rates.
template <typename Real>
__global__ void __launch_bounds__(kRowThreads)
    step_back_kernel(RowPlan plan, LactWindow window, StepBack<Real> back, LactRows<const float> lr,
                     LactRows<float> dlr, bool accumulate, int64_t width) {
  constexpr int kRun = kFastRun<Real>;
  for_rows(plan, [&](uint32_t row, bool here) {
    const LactPlace place = window.place(row);
    const float* rates = place.in(lr);
    const float lr0 = rates[0], lr1 = rates[1], lr2 = rates[2];
    float sum0 = 0, sum1 = 0, sum2 = 0;
    for_runs<kRun, 0>(plan, [&](int, uint32_t at) {
      const int64_t first = row * 2 * width + at, second = first + width, single = row * width + at;
      float g[kRun], u[kRun], p[kRun], z0[kRun], z1[kRun], z2[kRun];
      load_run(back.hidden + first, g);
      load_run(back.hidden + second, u);
      load_run(back.p + single, p);
      load_run(back.z_both + first, z0);
      load_run(back.z_both + second, z2);
      load_run(back.z_out + single, z1);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const FastSilu a = fast_silu<Real>(g[i]);
        const float h = a.value * u[i], e2 = a.value * p[i];
        const float us = u[i] * a.slope, e0 = p[i] * us;
        sum0 += z0[i] * e0;
        sum1 += z1[i] * h;
        sum2 += z2[i] * e2;
        const float de0 = lr0 * z0[i], dh = lr1 * z1[i], de2 = lr2 * z2[i], de0p = de0 * p[i];
        g[i] = dh * us + (de2 * p[i] * a.slope + de0p * u[i] * a.bend);
        u[i] = dh * a.value + de0p * a.slope;
        p[i] = de0 * us + de2 * a.value;
        z0[i] = lr0 * e0;
        z1[i] = lr1 * h;
        z2[i] = lr2 * e2;
      }
      if (here) {
        store_run(back.dhidden + first, g);
        store_run(back.dhidden + second, u);
        store_run(back.dp + single, p);
        store_run(back.e + first, z0);
        store_run(back.e + second, z2);
        store_run(back.h + single, z1);
      }
    });
    sum0 = lanes_sum(plan, sum0);
    sum1 = lanes_sum(plan, sum1);
    sum2 = lanes_sum(plan, sum2);
    if (here && dlr.data != nullptr && plan.lane() == 0) {
      float* to = place.in(dlr);
      put(to, sum0, accumulate);
      put(to + 1, sum1, accumulate);
      put(to + 2, sum2, accumulate);
    }
  });
}

// A, B and dy become dA, dB and y.
template <typename Real>
__global__ void __launch_bounds__(kThreads)
    read_back_kernel(FastGrid grid, const float* hidden, const float* dy, int64_t width,
                     Real* dhidden, Real* y) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t row, uint32_t at) {
    const int64_t first = row * 2 * width + at, second = first + width, single = row * width + at;
    float a[kRun], b[kRun], d[kRun];
    load_run(hidden + first, a);
    load_run(hidden + second, b);
    load_run(dy + single, d);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const FastSilu f = fast_silu<Real>(a[i]);
      const float y_i = f.value * b[i];
      a[i] = d[i] * b[i] * f.slope;
      b[i] = d[i] * f.value;
      d[i] = y_i;
    }
    store_run(dhidden + first, a);
    store_run(dhidden + second, b);
    store_run(y + single, d);
  });
}

// The gradient of the weights at the start: what came to each sequence's, and what came to the
// norms of their rows, in the order of sequences.
__global__ void __launch_bounds__(kThreads)
    start_back_kernel(const float* dw, const float* dnorms, const float* norms, const float* start,
                      int matrix, int64_t batch, int64_t heads, int64_t width, bool accumulate,
                      float* to) {
  const int64_t size = width * width;
  const int stacked = matrix == 0 ? 0 : 3 - matrix;  // W0, W2, W1
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < heads * size;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t head = i / size, within = i % size;
    const int64_t row = head * 3 * width + matrix * width + within / width;
    const float norm = norms[row], first = start[i];
    float sum = accumulate ? to[i] : 0;
    for (int64_t b = 0; b < batch; ++b) {
      float d = dw[((b * heads + head) * 3 + stacked) * size + within];
      if (norm > 0) {
        d += dnorms[b * heads * 3 * width + row] / norm * first;
      }
      sum += d;
    }
    to[i] = sum;
  }
}

// dk, dv and dlr of a chunk whose G has the gradient x.steps, and what they add to dW.
template <typename T, typename Real>
void backward_step(const OpArgs& args, const LactSizes& n, int64_t t,
                   const LactBackwardBuffers<Real>& x) {
  const LactStack stack(n);
  const int64_t rows = n.chunk, width = n.width, single = rows * width;
  const auto tokens = LactTokens<T>::input(args, n, t);
  const auto k = stack.tokens(x.x, rows, width), v = stack.tokens(x.v, rows, width);
  const auto dhidden = stack.tokens(x.dhidden, rows, 2 * width),
             e = stack.tokens(x.e, rows, 2 * width);
  const auto dp = stack.tokens(x.dout, rows, width), h = stack.tokens(x.h, rows, width);
  const auto w_both = stack.both(x.stack), s_both = stack.both(x.steps);
  const auto w_out = stack.out(x.stack), s_out = stack.out(x.steps);
  const auto product = [&](const FastProduct& how, const FastMatrices<Real>& a,
                           const FastMatrices<Real>& b, float* c,
                           int64_t stride) { fast_product(stack.items, how, a, b, c, stride); };
  lact_gather(n, rows, tokens.k, x.x, tokens.v, x.v);
  product({.transpose_b = true}, k, w_both, x.hidden, 2 * single);
  product({}, v, w_out, x.out, single);
  product({.transpose_b = true}, k, s_both, x.z_both, 2 * single);
  product({}, v, s_out, x.z_out, single);
  LactRows<float> dlr;
  if (args.din[3]) {
    dlr = LactRows<float>::packed(args.din[3], n, 3).from(t);
  }
  const RowPlan plan(stack.items * rows, width / kFastRun<Real>);
  const StepBack<Real> back = {x.hidden, x.out, x.z_both, x.z_out, x.dhidden, x.dout, x.e, x.h};
  step_back_kernel<<<plan.blocks(), kRowThreads, 0, this_stream()>>>(
      plan, LactWindow(n, rows), back, tokens.lr, dlr, args.accumulate[3], width);
  check_launch("lact step backward");
  product({.transpose_a = true, .add = true}, dhidden, k, x.dw, stack.size());
  product({.transpose_a = true, .add = true}, v, dp, x.dw + 2 * stack.matrix, stack.size());
  if (args.din[1]) {
    product({}, e, s_both, x.hidden, single);
    product({.add = true}, dhidden, w_both, x.hidden, single);
    lact_scatter<T, Real>(n, rows, width, x.hidden, LactRows<T>::of(args.din[1], n).from(t),
                          args.accumulate[1]);
  }
  if (args.din[2]) {
    product({.transpose_b = true}, h, s_out, x.out, single);
    product({.transpose_b = true, .add = true}, dp, w_out, x.out, single);
    lact_scatter<T, Real>(n, rows, width, x.out, LactRows<T>::of(args.din[2], n).from(t),
                          args.accumulate[2]);
  }
}

// The tokens after the last update: nothing comes back to their k, v and lr.
template <typename T, typename Real>
void clear_steps(const OpArgs& args, const LactSizes& n, int64_t t) {
  const int64_t rows = n.length - t;
  for (int i = 1; i < 3; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      lact_scatter<T, Real>(n, rows, n.width, nullptr, LactRows<T>::of(args.din[i], n).from(t),
                            false);
    }
  }
  if (args.din[3] && !args.accumulate[3]) {
    lact_scatter<float, float>(n, rows, 3, nullptr,
                               LactRows<float>::packed(args.din[3], n, 3).from(t), false);
  }
}

// dq of `rows` tokens from t on, and what reading adds to dW.
template <typename T, typename Real>
void backward_read(const OpArgs& args, const LactSizes& n, int64_t t, int64_t rows,
                   const LactBackwardBuffers<Real>& x) {
  const LactStack stack(n);
  const int64_t width = n.width;
  const auto q = stack.tokens(x.x, rows, width), d_o = stack.tokens(x.v, rows, width);
  const auto dhidden = stack.tokens(x.dhidden, rows, 2 * width);
  const auto both = stack.both(x.stack), out = stack.out(x.stack);
  lact_gather(n, rows, LactRows<const T>::of(args.in[0], n).from(t), x.x,
              LactRows<const T>::of(args.dout[0], n).from(t), x.v);
  fast_product(stack.items, {.transpose_b = true}, q, both, x.hidden, rows * 2 * width);
  fast_product(stack.items, {}, d_o, out, x.out, rows * width);
  const FastGrid grid(stack.items * rows, width, kFastRun<Real>);
  read_back_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(grid, x.hidden, x.out, width,
                                                                  x.dhidden, x.dout);
  check_launch("lact read backward");
  fast_product(stack.items, {.transpose_a = true, .add = true}, dhidden, q, x.dw, stack.size());
  fast_product(stack.items, {.transpose_a = true, .add = true}, d_o,
               stack.tokens(x.dout, rows, width), x.dw + 2 * stack.matrix, stack.size());
  if (args.din[0]) {
    fast_product(stack.items, {}, dhidden, both, x.hidden, rows * width);
    lact_scatter<T, Real>(n, rows, width, x.hidden, LactRows<T>::of(args.din[0], n).from(t),
                          args.accumulate[0]);
  }
}

// The update after chunk c.
template <typename Real>
void backward_update(const OpArgs& args, const LactSizes& n, int64_t c,
                     const LactBackwardBuffers<Real>& x) {
  const LactStack stack(n);
  const LactMatrixRows matrices(n, kFastRun<Real>);
  const auto saved = [&](int64_t update) {
    return LactBlocks{args.saved[0].ptr<float>() + n.saved_at(0, 0, update),
                      n.updates * stack.size()};
  };
  const UpdateBack<Real> back = {{x.chain + c * stack.total(), stack.size()},
                                 saved(c),
                                 c > 0 ? saved(c - 1) : LactBlocks(),
                                 x.norms,
                                 x.means,
                                 x.dnorms,
                                 x.dw,
                                 x.dm,
                                 x.steps,
                                 x.dots};
  lact_mean_momentum(n, LactRows<const float>::packed(args.in[4], n, 1).from(c * n.chunk), x.means);
  update_back_kernel<<<matrices.plan.blocks(), kRowThreads, 0, this_stream()>>>(matrices, back);
  check_launch("lact update backward");
}

void backward_momentum(const OpArgs& args, const LactSizes& n, int64_t t, int64_t rows,
                       const double* dots) {
  if (args.din[4]) {
    momentum_kernel<<<static_cast<unsigned>(n.batch * n.heads), kThreads, 0, this_stream()>>>(
        dots, 3 * n.width, n.chunk, rows, n.heads,
        LactRows<float>::packed(args.din[4], n, 1).from(t), args.accumulate[4]);
    check_launch("lact momentum backward");
  }
}

// The weights of every chunk again, from the saved M.
template <typename Real>
void make_chain(const OpArgs& args, const LactSizes& n, const LactBackwardBuffers<Real>& x) {
  const LactStack stack(n);
  Real* const none = nullptr;
  lact_start(args, n, {x.chain, stack.size()}, x.norms, {}, none);
  for (int64_t c = 0; c < n.updates; ++c) {
    LactUpdate update;
    update.w = {x.chain + c * stack.total(), stack.size()};
    update.to = {x.chain + (c + 1) * stack.total(), stack.size()};
    update.m = {args.saved[0].ptr<float>() + n.saved_at(0, 0, c), n.updates * stack.size()};
    update.norms = x.norms;
    lact_update(n, update, none);
  }
}

template <typename T, typename Real>
void backward(const OpArgs& args) {
  const LactSizes n(args);
  const LactStack stack(n);
  const LactBackwardBuffers<Real> x(args, n);
  const auto bytes = static_cast<size_t>(stack.total()) * sizeof(float);
  make_chain(args, n, x);
  cuda::fill(x.dw, 0, bytes);
  if (n.updates > 0) {
    cuda::fill(x.dm, 0, bytes);
  }
  cuda::fill(x.dnorms, 0, static_cast<size_t>(stack.items * 3 * n.width) * sizeof(float));
  for (int64_t c = n.updates; c >= 0; --c) {
    const int64_t begin = c * n.chunk, count = std::min(n.chunk, n.length - begin);
    lact_load(n, {x.chain + c * stack.total(), stack.size()}, x.stack);
    if (c < n.updates) {
      backward_update(args, n, c, x);
      backward_step<T>(args, n, begin, x);
    } else {
      clear_steps<T, Real>(args, n, begin);
    }
    backward_momentum(args, n, begin, count, c < n.updates ? x.dots : nullptr);
    backward_read<T>(args, n, begin, count, x);
  }
  for (int i = 0; i < 3; ++i) {
    if (const View& din = args.din[5 + i]) {
      start_back_kernel<<<blocks_for(n.heads * n.matrix(), kThreads), kThreads, 0, this_stream()>>>(
          x.dw, x.dnorms, x.norms, args.in[5 + i].ptr<float>(), i, n.batch, n.heads, n.width,
          args.accumulate[5 + i], din.ptr<float>());
      check_launch("lact start backward");
    }
  }
}

}  // namespace

void lact_backward_cuda(const OpArgs& args) {
  with_lact_types(args, [&]<typename T, typename Real>(T*, Real*) { backward<T, Real>(args); });
}

}  // namespace fwpkm
