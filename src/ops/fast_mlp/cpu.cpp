// Products over blocks of tokens, by the kernels of the op `linear`, with vector code between them.
#include <cstring>

#include "base/parallel.h"
#include "ops/common/gemm.h"
#include "ops/fast_mlp/plan.h"
#include "ops/linear/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fast_mlp/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {  // other ops have functions of the same names

constexpr int64_t kGrain = 4096;

// Calls fn(token of the block, batch row, time) for all tokens of a block, in parallel.
template <typename Fn>
void for_tokens(const FastMlpBlock& block, Fn&& fn) {
  parallel_ranges(block.tokens(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      fn(i, block.b + i / block.len, block.t + i % block.len);
    }
  });
}

// a = up * silu(gate).
void read_hidden(const float* up, const float* gate, int64_t count, float* a) {
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t j, size_t n) {
      const int64_t i = begin + j;
      const V32 g = load_part(d, gate + i, n);
      const V32 s = hn::Mul(g, sigmoid(d, g));
      store_part(d, hn::Mul(load_part(d, up + i, n), s), a + i, n);
    });
  });
}

// The same; up and gate become the derivatives of a by them.
void hidden_slopes(float* up, float* gate, int64_t count, float* a) {
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f);
    for_vectors(d, end - begin, [&](int64_t j, size_t n) {
      const int64_t i = begin + j;
      const V32 u = load_part(d, up + i, n), g = load_part(d, gate + i, n), x = sigmoid(d, g);
      const V32 s = hn::Mul(g, x);
      const V32 slope = hn::Mul(x, hn::MulAdd(g, hn::Sub(one, x), one));
      store_part(d, hn::Mul(u, s), a + i, n);
      store_part(d, s, up + i, n);
      store_part(d, hn::Mul(u, slope), gate + i, n);
    });
  });
}

// The same, and everything that the write's gradient adds elementwise.
void hidden_second_order(const FastMlpBackwardPlan& plan, int64_t count) {
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    const V32 one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
    for_vectors(d, end - begin, [&](int64_t j, size_t n) {
      const int64_t i = begin + j;
      const V32 u = load_part(d, plan.up + i, n), g = load_part(d, plan.gate + i, n);
      const V32 x = sigmoid(d, g), rest = hn::Sub(one, x);
      const V32 s = hn::Mul(g, x);
      const V32 slope = hn::Mul(x, hn::MulAdd(g, rest, one));
      const V32 curve = hn::Mul(hn::Mul(x, rest), hn::MulAdd(g, hn::Sub(rest, x), two));
      const V32 u_slope = hn::Mul(u, slope);
      const V32 da = load_part(d, plan.da + i, n);
      const V32 u_dot = load_part(d, plan.u_dot + i, n), g_dot = load_part(d, plan.g_dot + i, n);
      store_part(d, hn::Mul(u, s), plan.a + i, n);
      store_part(d, s, plan.up + i, n);
      store_part(d, u_slope, plan.gate + i, n);
      store_part(d, hn::MulAdd(u_dot, s, hn::Mul(u_slope, g_dot)), plan.a_dot + i, n);
      store_part(d, hn::Mul(hn::Mul(da, slope), g_dot), plan.u_dot + i, n);
      const V32 bend = hn::MulAdd(slope, u_dot, hn::Mul(hn::Mul(u, curve), g_dot));
      store_part(d, hn::Mul(da, bend), plan.g_dot + i, n);
      store_part(d, hn::Mul(da, s), plan.da + i, n);
      store_part(d, hn::Mul(da, u_slope), plan.dgate + i, n);
    });
  });
}

// dup (+)= da * up_slope, dgate (+)= da * gate_slope.
void through_hidden(const float* da, const float* up_slope, const float* gate_slope, int64_t count,
                    bool add, float* dup, float* dgate) {
  parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
    const F32 d;
    for_vectors(d, end - begin, [&](int64_t j, size_t n) {
      const int64_t i = begin + j;
      const V32 x = load_part(d, da + i, n);
      put(d, hn::Mul(x, load_part(d, up_slope + i, n)), dup + i, n, add);
      put(d, hn::Mul(x, load_part(d, gate_slope + i, n)), dgate + i, n, add);
    });
  });
}

// p = scale * error for the writing tokens of a block and 0 for the others; losses where asked.
void errors(const OpArgs& args, const FastMlpSizes& s, int64_t c, const FastMlpBlock& block,
            float scale, float* p, float* losses) {
  const float* v = args.in[1].ptr<float>();
  const float* y = args.out[0].ptr<float>();
  const int64_t writers_end = s.begin(c) + s.pairs(c);
  for_tokens(block, [&](int64_t i, int64_t b, int64_t t) {
    const F32 d;
    const int64_t row = b * s.length;
    const V32 weight = hn::Set(d, static_cast<float>(s.target_weight()));
    V32 squares = hn::Zero(d);
    for_vectors(d, s.dv, [&](int64_t j, size_t n) {
      V32 error = hn::Zero(d);
      if (t < writers_end) {
        error = load_part(d, y + (row + t) * s.dv + j, n);
        for (int64_t from = s.target_first(t); from <= t + s.set.lookahead; ++from) {
          error = hn::NegMulAdd(weight, load_part(d, v + (row + from) * s.dv + j, n), error);
        }
      }
      squares = hn::MulAdd(error, error, squares);
      store_part(d, hn::Mul(hn::Set(d, scale), error), p + i * s.dv + j, n);
    });
    if (losses != nullptr) {
      losses[row + t] = hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(s.dv);
    }
  });
}

// Turns y_dot into the whole gradient of vhat: dvhat + scale * y_dot for writing tokens, of others
// dvhat. Without a scale (0) y_dot is not read.
void output_gradients(const OpArgs& args, const FastMlpSizes& s, int64_t c,
                      const FastMlpBlock& block, float scale, float* y_dot) {
  const float* dy = args.dout[0].ptr<float>();
  const int64_t writers_end = s.begin(c) + s.pairs(c);
  for_tokens(block, [&](int64_t i, int64_t b, int64_t t) {
    const F32 d;
    for_vectors(d, s.dv, [&](int64_t j, size_t n) {
      V32 sum = load_part(d, dy + (b * s.length + t) * s.dv + j, n);
      float* to = y_dot + i * s.dv + j;
      if (scale != 0.0f && t < writers_end) {
        sum = hn::MulAdd(hn::Set(d, scale), load_part(d, to, n), sum);
      }
      store_part(d, sum, to, n);
    });
  });
}

// dv of the targets of a block's writing tokens. Each token of v gathers its own sum.
void target_gradients(const OpArgs& args, const FastMlpSizes& s, int64_t c,
                      const FastMlpBlock& block, float scale, const float* y_dot) {
  float* dv = args.din[1].ptr<float>();
  const int64_t writers_end = HWY_MIN(block.t + block.len, s.begin(c) + s.pairs(c));
  const int64_t lookahead = s.set.lookahead;
  const FastMlpBlock reached = {block.b, block.rows, block.t, writers_end - block.t + lookahead};
  if (writers_end <= block.t) {
    return;
  }
  for_tokens(reached, [&](int64_t, int64_t b, int64_t t) {
    const F32 d;
    const V32 weight = hn::Set(d, -scale * static_cast<float>(s.target_weight()));
    // Writers whose target has v_t in it.
    const int64_t first = HWY_MAX(block.t, t - lookahead);
    const int64_t last = HWY_MIN(writers_end - 1, s.set.mean_target ? t : t - lookahead);
    const float* from = y_dot + ((b - block.b) * block.len - block.t) * s.dv;
    float* to = dv + (b * s.length + t) * s.dv;
    for_vectors(d, s.dv, [&](int64_t j, size_t n) {
      V32 sum = load_part(d, to + j, n);
      for (int64_t w = first; w <= last; ++w) {
        sum = hn::MulAdd(weight, load_part(d, from + w * s.dv + j, n), sum);
      }
      store_part(d, sum, to + j, n);
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(read_hidden);
HWY_EXPORT(hidden_slopes);
HWY_EXPORT(hidden_second_order);
HWY_EXPORT(through_hidden);
HWY_EXPORT(errors);
HWY_EXPORT(output_gradients);
HWY_EXPORT(target_gradients);

namespace {

using Weights = FastMlpWeights<float>;

View matrix(const float* data, const Shape& shape) {
  return View("", const_cast<float*>(data), DType::kF32, DeviceKind::kCpu, shape);
}

// y [m, outs] = x [m, ins] w^T + b.
void affine(const float* x, const float* w, const float* b, int64_t m, int64_t ins, int64_t outs,
            float* y) {
  const View in[] = {matrix(x, {m, ins}), matrix(w, {outs, ins}), matrix(b, {outs}), View()};
  const View out[] = {matrix(y, {m, outs})};
  OpArgs args;
  args.in = in;
  args.out = out;
  linear_forward_cpu(args);
}

// Where the gradients of y = x w^T + b go; a null pointer: not wanted.
struct AffineGradients {
  float* dx = nullptr;
  bool add_dx = false;
  float *dw = nullptr, *db = nullptr;
  bool add_dw = true;
};

void affine_backward(const float* x, const float* w, const float* dy, int64_t m, int64_t ins,
                     int64_t outs, const AffineGradients& to) {
  const View in[] = {matrix(x, {m, ins}), matrix(w, {outs, ins}), View(), View()};
  const View dout[] = {matrix(dy, {m, outs})};
  const View din[] = {matrix(to.dx, {m, ins}), matrix(to.dw, {outs, ins}), matrix(to.db, {outs}),
                      View()};
  const bool accumulate[] = {to.add_dx, to.add_dw, to.add_dw, false};
  OpArgs args;
  args.in = in;
  args.dout = dout;
  args.din = din;
  args.accumulate = accumulate;
  linear_backward_cpu(args);
}

void copy_weights(const FastMlpSizes& s, const Weights& from, const Weights& to) {
  for (int i = 0; i < 6; ++i) {
    const float* source = from.all()[i];
    float* target = to.all()[i];
    parallel_ranges(s.parts[i], 16384, [&](int64_t begin, int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin) * sizeof(float));
    });
  }
}

// The rows of a block in a tensor [B, T, width]: themselves, or for several rows copies.
float* gather(const FastMlpSizes& s, const FastMlpBlock& block, float* all, int64_t width,
              float* copies) {
  float* first = all + (block.b * s.length + block.t) * width;
  if (block.rows == 1) {
    return first;
  }
  for (int64_t i = 0; i < block.rows; ++i) {
    std::memcpy(copies + i * block.len * width, first + i * s.length * width,
                static_cast<size_t>(block.len * width) * sizeof(float));
  }
  return copies;
}

void scatter(const FastMlpSizes& s, const FastMlpBlock& block, const float* copies, int64_t width,
             float* all) {
  float* first = all + (block.b * s.length + block.t) * width;
  for (int64_t i = 0; i < block.rows && block.rows > 1; ++i) {
    std::memcpy(first + i * s.length * width, copies + i * block.len * width,
                static_cast<size_t>(block.len * width) * sizeof(float));
  }
}

void forward_block(const OpArgs& args, const FastMlpSizes& s, const FastMlpForwardPlan& plan,
                   int64_t c, const FastMlpBlock& block, const Weights& w, const Weights& to) {
  const int64_t m = block.tokens(), h = s.hidden;
  const bool writes = c < s.writes;
  float* vhat = args.out[0].ptr<float>();
  const float* q = gather(s, block, args.in[0].ptr<float>(), s.dk, plan.q);
  affine(q, w.up, w.b_up, m, s.dk, h, plan.up);
  affine(q, w.gate, w.b_gate, m, s.dk, h, plan.gate);
  float* a = writes ? plan.a : plan.up;
  if (writes) {
    HWY_DYNAMIC_DISPATCH(hidden_slopes)(plan.up, plan.gate, m * h, a);
  } else {
    HWY_DYNAMIC_DISPATCH(read_hidden)(plan.up, plan.gate, m * h, a);
  }
  float* y = block.rows > 1 ? plan.y : vhat + (block.b * s.length + block.t) * s.dv;
  affine(a, w.down, w.b_down, m, h, s.dv, y);
  scatter(s, block, y, s.dv, vhat);
  if (!writes) {
    for (int64_t i = 0; i < block.rows; ++i) {
      std::fill_n(args.out[1].ptr<float>() + (block.b + i) * s.length + block.t, block.len, 0.0f);
    }
    return;
  }
  // With -lr in p, every product below adds its part of the step.
  HWY_DYNAMIC_DISPATCH(errors)
  (args, s, c, block, static_cast<float>(-s.set.lr * s.error_scale(c)), plan.p,
   args.out[1].ptr<float>());
  affine_backward(a, w.down, plan.p, m, h, s.dv, {.dx = plan.da, .dw = to.down, .db = to.b_down});
  HWY_DYNAMIC_DISPATCH(through_hidden)
  (plan.da, plan.up, plan.gate, m * h, false, plan.up, plan.gate);
  affine_backward(q, w.up, plan.up, m, s.dk, h, {.dw = to.up, .db = to.b_up});
  affine_backward(q, w.gate, plan.gate, m, s.dk, h, {.dw = to.gate, .db = to.b_gate});
}

// behind: w, but see late_weights. d: the gradient of the weights after the chunk's write, null if
// there is none or it does not write. to: where the gradient of those before goes, null if nobody
// wants it; add: not the first to write there.
void backward_block(const OpArgs& args, const FastMlpSizes& s, const FastMlpBackwardPlan& plan,
                    int64_t c, const FastMlpBlock& block, const Weights& w, const Weights& behind,
                    const Weights* d, const Weights* to, bool add) {
  const int64_t m = block.tokens(), h = s.hidden;
  const float* q = gather(s, block, args.in[0].ptr<float>(), s.dk, plan.q);
  float *abar = plan.da, *ubar = plan.u_dot, *gbar = plan.g_dot, *ybar = plan.y_dot;
  const auto onto = [&](float* Weights::*weight, float* Weights::*bias) {
    return AffineGradients{.dw = to == nullptr ? nullptr : to->*weight,
                           .db = to == nullptr ? nullptr : to->*bias,
                           .add_dw = add};
  };
  // Only after dv was added to: q and v may be one tensor.
  const auto gather_dq = [&] {
    return args.din[0] ? gather(s, block, args.din[0].ptr<float>(), s.dk, plan.dq) : nullptr;
  };
  float* dq = nullptr;
  affine(q, w.up, w.b_up, m, s.dk, h, plan.up);
  affine(q, w.gate, w.b_gate, m, s.dk, h, plan.gate);
  AffineGradients down = onto(&Weights::down, &Weights::b_down);
  down.dx = abar;
  if (d != nullptr) {
    const auto scale = static_cast<float>(-s.set.lr * s.error_scale(c));
    HWY_DYNAMIC_DISPATCH(errors)(args, s, c, block, scale, plan.p, nullptr);
    affine_backward(nullptr, w.down, plan.p, m, h, s.dv, {.dx = plan.da});
    affine(q, d->up, d->b_up, m, s.dk, h, plan.u_dot);
    affine(q, d->gate, d->b_gate, m, s.dk, h, plan.g_dot);
    HWY_DYNAMIC_DISPATCH(hidden_second_order)(plan, m * h);
    affine(plan.a, d->down, d->b_down, m, h, s.dv, plan.y_dot);
    gemm(false, true, m, s.dv, h, 1.0f, plan.a_dot, h, behind.down, h, 1.0f, plan.y_dot, s.dv);
    if (args.din[1]) {
      HWY_DYNAMIC_DISPATCH(target_gradients)(args, s, c, block, scale, plan.y_dot);
    }
    HWY_DYNAMIC_DISPATCH(output_gradients)(args, s, c, block, scale, ybar);
    dq = gather_dq();
    // The write's own gradients of up and gate are used up here: abar takes the place of one.
    affine_backward(nullptr, d->up, plan.da, m, s.dk, h, {.dx = dq, .add_dx = true});
    affine_backward(nullptr, d->gate, plan.dgate, m, s.dk, h, {.dx = dq, .add_dx = true});
    affine_backward(plan.a_dot, d->down, plan.p, m, h, s.dv,
                    {.dx = abar, .dw = down.dw, .add_dw = add});
    down.add_dx = true;
  } else {
    HWY_DYNAMIC_DISPATCH(hidden_slopes)(plan.up, plan.gate, m * h, plan.a);
    HWY_DYNAMIC_DISPATCH(output_gradients)(args, s, c, block, 0.0f, ybar);
    dq = gather_dq();
  }
  affine_backward(plan.a, behind.down, ybar, m, h, s.dv, down);
  HWY_DYNAMIC_DISPATCH(through_hidden)
  (abar, plan.up, plan.gate, m * h, d != nullptr, ubar, gbar);
  AffineGradients up = onto(&Weights::up, &Weights::b_up);
  AffineGradients gate = onto(&Weights::gate, &Weights::b_gate);
  up.dx = gate.dx = dq;
  up.add_dx = gate.add_dx = true;
  affine_backward(q, behind.up, ubar, m, s.dk, h, up);
  affine_backward(q, behind.gate, gbar, m, s.dk, h, gate);
  if (dq != nullptr) {
    scatter(s, block, dq, s.dk, args.din[0].ptr<float>());
  }
}

}  // namespace

void fast_mlp_forward_cpu(const OpArgs& args) {
  const FastMlpSizes s(args);
  const FastMlpForwardPlan plan(args, s);
  for (int64_t r = 0; r < s.sets; ++r) {
    Weights w = Weights::of(args.in.subspan(2), s, r), after{};
    if (s.set.write) {
      after = Weights::of(args.out.subspan(2), s, r);
    }
    for (int64_t c = 0; c < s.chunks; ++c) {
      // A chunk's reads need its weights until the end, so the next ones are elsewhere: where
      // backward finds them, or in `after` and `spare` by turns, the last ones in `after`.
      Weights to{};
      if (c < s.writes) {
        if (args.saved[0] && c < s.versions) {
          to = Weights::of(args.saved[0].ptr<float>() + (c * s.sets + r) * s.packed, s);
        } else {
          to = (s.writes - 1 - c) % 2 == 0 ? after : Weights::of(plan.spare, s);
        }
        copy_weights(s, w, to);
      }
      for_fast_mlp_blocks(s, r, c, [&](const FastMlpBlock& block) {
        forward_block(args, s, plan, c, block, w, to);
      });
      if (c < s.writes) {
        w = to;
      }
    }
    if (s.set.write && w.up != after.up) {
      copy_weights(s, w, after);
    }
  }
}

void fast_mlp_backward_cpu(const OpArgs& args) {
  const FastMlpSizes s(args);
  const FastMlpBackwardPlan plan(args, s);
  for (int i = 0; i < 2; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  for (int64_t r = 0; r < s.sets; ++r) {
    bool arrived = false;  // a gradient of the weights, in d
    Weights d = Weights::of(plan.d[0], s), before = Weights::of(plan.d[1], s);
    for (int64_t c = s.chunks - 1; c >= 0; --c) {
      const Weights w = Weights::at_chunk(args, s, r, c);
      const Weights behind = Weights::behind_chunk(args, s, r, c);
      const bool passes = s.passes(c);
      bool add = arrived;
      if (arrived && passes) {
        copy_weights(s, d, before);
      }
      for_fast_mlp_blocks(s, r, c, [&](const FastMlpBlock& block) {
        backward_block(args, s, plan, c, block, w, behind, arrived && c < s.writes ? &d : nullptr,
                       passes ? &before : nullptr, add);
        add = true;
      });
      std::swap(d, before);
      arrived = passes;
    }
  }
}

size_t fast_mlp_workspace_cpu(const OpArgs& args, bool backward) {
  const FastMlpSizes s(args);
  OpArgs counted = args;
  counted.workspace = nullptr;
  return backward ? FastMlpBackwardPlan(counted, s).bytes : FastMlpForwardPlan(counted, s).bytes;
}

}  // namespace fwpkm
#endif
