// Chunks from the last to the first; README.md derives what happens in each.
#include "ops/fast_mlp/cuda.cuh"
#include "tensor/cuda.h"

namespace fwpkm {
namespace {

constexpr int kThreads = FastGrid::kThreads;

template <typename Real>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const float* from, int64_t count, Real* to) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = from_float<Real>(from[i]);
  }
}

template <int kRun>
__device__ inline void load_sum(const float* first, const float* second, float (&to)[kRun]) {
  float more[kRun];
  load_run(first, to);
  load_run(second, more);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    to[i] += more[i];
  }
}

// Pointers into FastMlpBackwardBuffers.
template <typename Real>
struct SecondOrder {
  const float *biases, *d_biases;
  float *up_gate, *up_gate_dot;
  const float* da;
  Real *a, *a_dot, *dup_gate;
};

// a; the derivatives of a by up and gate, in their place; and everything that the gradient of the
// write adds elementwise.
template <typename Real>
__global__ void __launch_bounds__(kThreads)
    second_order_kernel(FastMlpWindow window, FastGrid grid, SecondOrder<Real> at, int64_t hidden) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t column) {
    const int64_t up = token * 2 * hidden + column, gate = up + hidden;
    const int64_t bias = window.bias_of(token) + column, single = token * hidden + column;
    float u[kRun], g[kRun], u_dot[kRun], g_dot[kRun], da[kRun];
    load_sum(at.up_gate + up, at.biases + bias, u);
    load_sum(at.up_gate + gate, at.biases + bias + hidden, g);
    load_sum(at.up_gate_dot + up, at.d_biases + bias, u_dot);
    load_sum(at.up_gate_dot + gate, at.d_biases + bias + hidden, g_dot);
    load_run(at.da + single, da);
    float a[kRun], a_dot[kRun], du[kRun], dg[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const FastSilu f = fast_silu<Real>(g[i]);
      const float u_slope = u[i] * f.slope, by_gate = f.slope * g_dot[i];
      a[i] = u[i] * f.value;
      a_dot[i] = u_dot[i] * f.value + u_slope * g_dot[i];
      du[i] = da[i] * f.value;
      dg[i] = da[i] * u_slope;
      const float bend = f.slope * u_dot[i] + u[i] * f.bend * g_dot[i];
      u[i] = f.value;
      g[i] = u_slope;
      u_dot[i] = da[i] * by_gate;
      g_dot[i] = da[i] * bend;
    }
    store_run(at.a + single, a);
    store_run(at.a_dot + single, a_dot);
    store_run(at.dup_gate + up, du);
    store_run(at.dup_gate + gate, dg);
    store_run(at.up_gate + up, u);
    store_run(at.up_gate + gate, g);
    store_run(at.up_gate_dot + up, u_dot);
    store_run(at.up_gate_dot + gate, g_dot);
  });
}

// ybar = dvhat + scale * y_dot for writing tokens, of others dvhat; and what of y_dot (without its
// bias) goes to the targets, whose gradient may be null. Without y_dot nothing was written.
template <typename T, typename Real>
__global__ void __launch_bounds__(kThreads)
    outputs_kernel(FastMlpWindow window, FastGrid grid, const T* dvhat, const float* y_dot,
                   const float* bias, float scale, float target_weight, int lookahead, bool mean,
                   int64_t dv, Real* ybar, T* d_targets) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t at) {
    const int64_t row = window.row(token);
    const int t = static_cast<int>(window.len.remainder(token));
    const int writers = static_cast<int>(window.writers);
    float more[kRun] = {}, value[kRun], sum[kRun];
    load_run(dvhat + row * dv + at, sum);
    if (y_dot != nullptr) {
      load_run(bias + window.bias_of(token) + at, more);
      if (t < writers) {
        load_run(y_dot + token * dv + at, value);
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          sum[i] += scale * (value[i] + more[i]);
        }
      }
    }
    store_run(ybar + token * dv + at, sum);
    // Writers whose target has v_t in it.
    const int first = max(0, t - lookahead), last = min(writers - 1, mean ? t : t - lookahead);
    if (y_dot == nullptr || d_targets == nullptr || first > last) {
      return;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      sum[i] = 0;
    }
    for (int w = first; w <= last; ++w) {
      load_run(y_dot + (token - t + w) * dv + at, value);
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        sum[i] -= target_weight * scale * (value[i] + more[i]);
      }
    }
    put_run(d_targets + row * dv + at, sum, true);
  });
}

template <typename T, typename Real>
__global__ void __launch_bounds__(kThreads)
    add_kernel(FastMlpWindow window, FastGrid grid, const float* from, int64_t width, T* all) {
  constexpr int kRun = kFastRun<Real>;
  for_fast_runs<kRun>(grid, [&](uint32_t token, uint32_t at) {
    float values[kRun];
    load_run(from + token * width + at, values);
    put_run(all + window.row(token) * width + at, values, true);
  });
}

template <typename Real>
void second_order(const FastMlpSizes& s, const FastMlpSpan& span,
                  const FastMlpBackwardBuffers<Real>& buffers) {
  const FastGrid grid(span.tokens(), s.hidden, kFastRun<Real>);
  const int64_t bias = span.set * FastMlpStack(s).bias;
  const SecondOrder<Real> at = {buffers.biases + bias,
                                buffers.d_bias_copy + bias,
                                buffers.up_gate,
                                buffers.up_gate_dot,
                                buffers.da,
                                buffers.a,
                                buffers.a_dot,
                                buffers.dup_gate};
  second_order_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(FastMlpWindow(s, span), grid,
                                                                     at, s.hidden);
  check_launch("fast_mlp second order");
}

template <typename T, typename Real>
void outputs(const OpArgs& args, const FastMlpSizes& s, const FastMlpSpan& span, bool through,
             float scale, const FastMlpBackwardBuffers<Real>& buffers) {
  const FastGrid grid(span.tokens(), s.dv, kFastRun<Real>);
  const float* bias = buffers.d_bias_copy + span.set * FastMlpStack(s).bias + 2 * s.hidden;
  outputs_kernel<<<grid.blocks(), kThreads, 0, this_stream()>>>(
      FastMlpWindow(s, span), grid, args.dout[0].ptr<T>(), through ? buffers.y_dot : nullptr, bias,
      scale, static_cast<float>(s.target_weight()), static_cast<int>(s.set.lookahead),
      s.set.mean_target, s.dv, buffers.ybar, args.din[1].ptr<T>());
  check_launch("fast_mlp outputs");
}

// What a chunk's gradient is made of.
struct Chunk {
  bool through;  // a gradient of the weights after its write arrived
  bool passes;   // somebody wants that of the weights before
  bool arrived;  // what passes is added to what is there
  float scale;   // of errors, with -lr
};

template <typename T, typename Real>
void backward_span(const OpArgs& args, const FastMlpSizes& s, const FastMlpBackwardBuffers<Real>& x,
                   const FastMlpSpan& span, const Chunk& chunk) {
  const FastMlpStack stack(s);
  const int64_t h = s.hidden, m = span.height();
  const auto w = stack.up_gate_of(x.matrices, span.set),
             w_down = stack.down_of(x.matrices, span.set);
  const auto behind = stack.up_gate_of(x.behind, span.set),
             behind_down = stack.down_of(x.behind, span.set);
  const auto d = stack.up_gate_of(x.d_copy, span.set), d_down = stack.down_of(x.d_copy, span.set);
  const auto q = span.matrices(x.q, s.dk), p = span.matrices(x.p, s.dv),
             ybar = span.matrices(x.ybar, s.dv), a = span.matrices(x.a, h),
             a_dot = span.matrices(x.a_dot, h), dup_gate = span.matrices(x.dup_gate, 2 * h);
  const auto product = [&](const FastProduct& how, const FastMatrices<Real>& left,
                           const FastMatrices<Real>& right, float* to, int64_t stride) {
    fast_product(span.sets, how, left, right, to, stride);
  };
  float* to = x.d_matrices + span.set * stack.matrix;
  bool add = chunk.arrived || span.follows();
  fast_mlp_gather(s, span, args.in[0].ptr<T>(), s.dk, x.q);
  product({.transpose_b = true}, q, w, x.up_gate, m * 2 * h);
  if (chunk.through) {
    fast_mlp_errors<T>(args, s, span, nullptr, x.biases, chunk.scale, x.p);
    product({}, p, w_down, x.da, m * h);
    product({.transpose_b = true}, q, d, x.up_gate_dot, m * 2 * h);
    second_order(s, span, x);
    product({.transpose_b = true}, a, d_down, x.y_dot, m * s.dv);
    product({.transpose_b = true, .add = true}, a_dot, behind_down, x.y_dot, m * s.dv);
  } else {
    fast_mlp_hidden(s, span, x.biases, true, x.up_gate, x.a);
  }
  outputs<T>(args, s, span, chunk.through, chunk.scale, x);
  if (chunk.through) {
    // The write's own gradients of up and gate and of a are used up here.
    product({}, dup_gate, d, x.dq, m * s.dk);
    product({}, p, d_down, x.da, m * h);
    if (chunk.passes) {
      product({.transpose_a = true, .add = add}, p, a_dot, to + stack.down, stack.matrix);
    }
  }
  product({.add = chunk.through}, ybar, behind_down, x.da, m * h);
  fast_mlp_through_hidden(s, span, x.da, x.up_gate, chunk.through ? x.up_gate_dot : nullptr,
                          x.dup_gate);
  if (chunk.passes) {
    product({.transpose_a = true, .add = add || chunk.through}, ybar, a, to + stack.down,
            stack.matrix);
    product({.transpose_a = true, .add = add}, dup_gate, q, to, stack.matrix);
    fast_mlp_column_sums(s, span, x.dup_gate, x.ybar, x.parts, add, x.d_biases);
  }
  if (args.din[0]) {
    product({.add = chunk.through}, dup_gate, behind, x.dq, m * s.dk);
    const FastGrid grid(span.tokens(), s.dk, kFastRun<Real>);
    add_kernel<T, Real><<<grid.blocks(), kThreads, 0, this_stream()>>>(
        FastMlpWindow(s, span), grid, x.dq, s.dk, args.din[0].ptr<T>());
    check_launch("fast_mlp dq");
  }
}

// The weights that chunk c read, and those that its gradient goes through.
template <typename Real>
void load_chunk(const OpArgs& args, const FastMlpSizes& s, int64_t c,
                const FastMlpBackwardBuffers<Real>& x) {
  const int64_t version = std::min(c, s.writes);
  const FastMlpMasters w = version == 0 ? FastMlpMasters::of(args.in.subspan(2), s)
                                        : FastMlpMasters::version(args, s, version - 1);
  fast_mlp_load(s, w, nullptr, nullptr, {}, x.matrices, x.biases);
  if (x.behind != x.matrices) {
    const bool late = c == 0 && s.set.write;
    fast_mlp_load(s, late ? FastMlpMasters::of(args.out.subspan(2), s) : w, nullptr, nullptr, {},
                  x.behind, nullptr);
  }
}

template <typename T, typename Real>
void backward(const OpArgs& args) {
  const FastMlpSizes s(args);
  const FastMlpStack stack(s);
  const FastMlpBackwardBuffers<Real> x(args, s);
  for (int i = 0; i < 2; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  bool arrived = false;
  for (int64_t c = s.chunks - 1; c >= 0; --c) {
    const bool writes = c < s.writes;
    const Chunk chunk = {arrived && writes, s.passes(c), arrived,
                         writes ? static_cast<float>(-s.set.lr * s.error_scale(c)) : 0.0f};
    load_chunk(args, s, c, x);
    if (chunk.through) {
      const int64_t count = s.sets * stack.matrix;
      copy_kernel<<<blocks_for(count, kThreads), kThreads, 0, this_stream()>>>(x.d_matrices, count,
                                                                               x.d_copy);
      check_launch("fast_mlp copy");
      cuda::copy(x.d_bias_copy, x.d_biases,
                 static_cast<size_t>(s.sets * stack.bias) * sizeof(float));
    }
    for_fast_mlp_spans(
        s, c, [&](const FastMlpSpan& span) { backward_span<T, Real>(args, s, x, span, chunk); });
    arrived = chunk.passes;
  }
}

}  // namespace

void fast_mlp_backward_cuda(const OpArgs& args) {
  with_fast_mlp_types(args, [&]<typename T, typename Real>(T*, Real*) { backward<T, Real>(args); });
}

}  // namespace fwpkm
