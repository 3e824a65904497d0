// Batches of products by cuBLAS, with kernels between them. Weights are kept in float; products
// take copies, which in bf16 mode are rounded.
#include "ops/lact/cuda.cuh"

namespace fwpkm {
namespace {

constexpr int kThreads = FastGrid::kThreads;

// silu(W0 q) * (W2 q).
template <typename Real>
__global__ void __launch_bounds__(kThreads)
    read_kernel(FastGrid grid, const float* hidden, int64_t width, Real* h) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t row, uint32_t at) {
    float a[kRun], b[kRun];
    load_run(hidden + row * 2 * width + at, a);
    load_run(hidden + row * 2 * width + width + at, b);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      a[i] = fast_silu<Real>(a[i]).value * b[i];
    }
    store_run(h + row * width + at, a);
  });
}

// e0, e2 and h of each token, times their rates.
template <typename Real>
__global__ void __launch_bounds__(kThreads)
    step_kernel(LactWindow window, FastGrid grid, const float* hidden, const float* p,
                LactRows<const float> lr, int64_t width, Real* e, Real* h) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t row, uint32_t at) {
    const int64_t first = row * 2 * width + at, second = first + width;
    const float* rates = window.place(row).in(lr);
    const float lr0 = rates[0], lr1 = rates[1], lr2 = rates[2];
    float g[kRun], u[kRun], back[kRun];
    load_run(hidden + first, g);
    load_run(hidden + second, u);
    load_run(p + row * width + at, back);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const FastSilu f = fast_silu<Real>(g[i]);
      g[i] = lr0 * (back[i] * u[i] * f.slope);
      const float h_i = lr1 * (u[i] * f.value);
      u[i] = lr2 * (back[i] * f.value);
      back[i] = h_i;
    }
    store_run(e + first, g);
    store_run(e + second, u);
    store_run(h + row * width + at, back);
  });
}

// Tokens into the rows that wait.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    append_kernel(LactWindow window, FastGrid grid, LactTokens<T> tokens, LactRows<float> to,
                  uint32_t width) {
  for_fast_runs<1>(grid, [&](uint32_t row, uint32_t at) {
    const LactPlace place = window.place(row);
    float value;
    if (at < width) {
      value = to_float(place.in(tokens.k)[at]);
    } else if (at < 2 * width) {
      value = to_float(place.in(tokens.v)[at - width]);
    } else if (at < 2 * width + 3) {
      value = place.in(tokens.lr)[at - 2 * width];
    } else {
      value = *place.in(tokens.momentum);
    }
    place.in(to)[at] = value;
  });
}

// o of `rows` tokens from t on.
template <typename T, typename Real>
void read(const OpArgs& args, const LactSizes& n, int64_t t, int64_t rows,
          const LactForwardBuffers<Real>& x) {
  const LactStack stack(n);
  const FastGrid grid(stack.items * rows, n.width, kFastRun<Real>);
  lact_gather(n, rows, LactRows<const T>::of(args.in[0], n).from(t), x.x);
  fast_product(stack.items, {.transpose_b = true}, stack.tokens(x.x, rows, n.width),
               stack.both(x.stack), x.hidden, rows * 2 * n.width);
  read_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(grid, x.hidden, n.width, x.h);
  check_launch("lact read");
  fast_product(stack.items, {.transpose_b = true}, stack.tokens(x.h, rows, n.width),
               stack.out(x.stack), x.out, rows * n.width);
  lact_scatter<T, Real>(n, rows, n.width, x.out, LactRows<T>::of(args.out[0], n).from(t), false);
}

// The steps and the mean momentum of a chunk.
template <typename From, typename Real>
void step(const LactSizes& n, const LactTokens<From>& tokens, const LactForwardBuffers<Real>& x) {
  const LactStack stack(n);
  const int64_t rows = n.chunk, width = n.width;
  const FastGrid grid(stack.items * rows, width, kFastRun<Real>);
  const auto k = stack.tokens(x.x, rows, width), v = stack.tokens(x.v, rows, width);
  lact_gather(n, rows, tokens.k, x.x, tokens.v, x.v);
  fast_product(stack.items, {.transpose_b = true}, k, stack.both(x.stack), x.hidden,
               rows * 2 * width);
  fast_product(stack.items, {}, v, stack.out(x.stack), x.out, rows * width);
  step_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(LactWindow(n, rows), grid, x.hidden,
                                                             x.out, tokens.lr, width, x.e, x.h);
  check_launch("lact step");
  fast_product(stack.items, {.transpose_a = true}, stack.tokens(x.e, rows, 2 * width), k, x.steps,
               stack.size());
  fast_product(stack.items, {.transpose_a = true}, v, stack.tokens(x.h, rows, width),
               x.steps + 2 * stack.matrix, stack.size());
  lact_mean_momentum(n, tokens.momentum, x.means);
}

template <typename T>
void append(const OpArgs& args, const LactSizes& n, int64_t t, int64_t rows, int64_t filled) {
  const FastGrid grid(n.batch * n.heads * rows, n.pending_width(), 1);
  append_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(
      LactWindow(n, rows), grid, LactTokens<T>::input(args, n, t),
      LactRows<float>::pending(args.state[3], n, 0).from(filled), static_cast<uint32_t>(n.width));
  check_launch("lact append");
}

template <typename T, typename Real>
void forward(const OpArgs& args) {
  const LactSizes n(args);
  const LactForwardBuffers<Real> x(args, n);
  const LactStack stack(n);
  const auto own = [&](int i, float* other) {
    return n.keeps ? args.state[i].ptr<float>() : other;
  };
  const LactBlocks weights = {own(0, x.weights), stack.size()};
  const LactBlocks momentum = {own(1, x.momentum), stack.size()};
  float* norms = own(2, x.norms);
  LactUpdate update;
  update.w = update.to = weights;
  update.m = momentum;
  update.steps = x.steps;
  update.means = x.means;
  update.norms = norms;
  if (args.attr<LactSettings>().begins) {
    lact_start(args, n, weights, norms, n.keeps ? momentum : LactBlocks(), x.stack);
  } else {
    lact_load(n, weights, x.stack);
  }
  if (n.keeps) {
    update.before = momentum;
  }
  int64_t filled = n.pending, done = 0;
  for (int64_t t = 0; t < n.length;) {
    const int64_t count = std::min(n.chunk - filled, n.length - t);
    read<T>(args, n, t, count, x);
    if (n.keeps) {
      append<T>(args, n, t, count, filled);
    }
    t += count;
    filled += count;
    if (filled < n.chunk || done == n.updates) {
      continue;
    }
    if (n.keeps) {
      step(n, lact_pending(args.state[3], n), x);
    } else {
      step(n, LactTokens<T>::input(args, n, t - n.chunk), x);
    }
    if (args.saved[0]) {
      update.m = {args.saved[0].ptr<float>() + n.saved_at(0, 0, done), n.updates * stack.size()};
    }
    lact_update(n, update, x.stack);
    update.before = update.m;
    filled = 0;
    ++done;
  }
}

}  // namespace

void lact_forward_cuda(const OpArgs& args) {
  with_lact_types(args, [&]<typename T, typename Real>(T*, Real*) { forward<T, Real>(args); });
}

size_t lact_workspace_cuda(const OpArgs& args, bool backward) {
  const LactSizes n(args);
  OpArgs counted = args;
  counted.workspace = nullptr;
  size_t bytes = 0;
  with_lact_types(args, [&]<typename T, typename Real>(T*, Real*) {
    bytes = backward ? LactBackwardBuffers<Real>(counted, n).bytes
                     : LactForwardBuffers<Real>(counted, n).bytes;
  });
  return bytes;
}

}  // namespace fwpkm
