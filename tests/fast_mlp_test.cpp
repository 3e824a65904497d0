// What the cases of fast_mlp cannot show: numbers worked out by hand, cut gradients, carried
// weights.
#include "ops/fast_mlp/fast_mlp.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "check/compare.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;
using SixValues = std::array<Values, 6>;

struct Sizes {
  int64_t batch, sets, time, dk, h, dv;
  std::array<Shape, 6> weights() const {
    return {Shape{sets, h, dk}, Shape{sets, h},     Shape{sets, h, dk},
            Shape{sets, h},     Shape{sets, dv, h}, Shape{sets, dv}};
  }
};

struct Result {
  Values output, losses, dq, dv;
  SixValues after, given;  // given: the weights handed in, looked at after backward
};

Result run_op(Device device, const Sizes& z, const Values& q, const Values& v, const SixValues& w,
              const Values& dy, const FastMlpSettings& settings) {
  Pool pool(device);
  pool.set_poison(true);
  Tape tape;
  Run host(pool), run(pool, &tape);
  const Tensor q_value = host.from_host("q", {z.batch, z.time, z.dk}, q);
  const Tensor v_value = host.from_host("v", {z.batch, z.time, z.dv}, v);
  const Tensor dq = host.from_host("dq", q_value.shape(), Values(q.size(), 0.0));
  const Tensor dv = host.from_host("dv", v_value.shape(), Values(v.size(), 0.0));
  std::array<Tensor, 6> weights;
  for (int i = 0; i < 6; ++i) {
    weights[i] = host.from_host("w", z.weights()[i], w[i]);
    weights[i].node()->wants_grad = true;  // must not matter
  }
  const FastMlpResult r = fast_mlp(run, Tensor::parameter(q_value.view(), dq.view()),
                                   Tensor::parameter(v_value.view(), dv.view()), weights, settings);
  Result result{to_host(r.output.view()), to_host(r.losses.view()), {}, {}, {}, {}};
  tape.backward(pool, r.output, host.from_host("dy", r.output.shape(), dy));
  result.dq = to_host(dq.view());
  result.dv = to_host(dv.view());
  for (int i = 0; i < 6; ++i) {
    result.given[i] = to_host(weights[i].view());
    EXPECT_FALSE(weights[i].node()->grad);
    if (settings.write) {
      result.after[i] = to_host(r.after[i].view());
    } else {
      EXPECT_FALSE(r.after[i]);
    }
  }
  return result;
}

Values drawn(int64_t count, uint64_t stream, double scale) {
  const Random random(5, stream);
  Values v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<double>(static_cast<float>(scale * random.normal_at(i)));
  }
  return v;
}

SixValues drawn_weights(const Sizes& z) {
  SixValues w;
  for (int i = 0; i < 6; ++i) {
    w[i] = drawn(z.weights()[i].size(), 10 + i, 0.3);
  }
  return w;
}

// Tokens begin..end of [batch, time, width].
Values tokens(const Values& x, const Sizes& z, int64_t begin, int64_t end) {
  const int64_t width = static_cast<int64_t>(x.size()) / (z.batch * z.time);
  Values part;
  for (int64_t b = 0; b < z.batch; ++b) {
    const auto row = x.begin() + b * z.time * width;
    part.insert(part.end(), row + begin * width, row + end * width);
  }
  return part;
}

void expect_near(const Values& got, const Values& right, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), right.size()) << what;
  EXPECT_LE(relative_error(got, right), tolerance) << what;
}

class FastMlp : public testing::TestWithParam<Device> {
 protected:
  double tolerance() const { return GetParam().real == DType::kF64 ? 1e-12 : 3e-6; }
};

// All of size 1, two chunks of one token. The first gate is 0: silu(0) = 0, its slope is 1/2.
TEST_P(FastMlp, OneTokenByHand) {
  const Sizes z{1, 1, 2, 1, 1, 1};
  const SixValues w = {Values{1}, {1}, {0}, {0}, {0.5}, {0}};
  const Result r = run_op(GetParam(), z, {2, 1}, {1, 4}, w, {0, 1},
                          {.chunk = 1, .lookahead = 0, .lr = 0.5, .bptt_chunks = 0});
  // up = 3, vhat = 0, error -1. Gradients: b_down -2, w_down 0, gate -2 * 0.5 * 3 / 2 = -1.5.
  // Then w_gate = 1.5, b_gate = 0.75, b_down = 1, the others as they were: up = 2, gate = 2.25.
  const double sigmoid = 1 / (1 + std::exp(-2.25)), silu = 2.25 * sigmoid;
  const double slope = sigmoid * (1 + 2.25 * (1 - sigmoid));
  const double error = silu + 1 - 4;
  expect_near(r.output, {0, silu + 1}, tolerance(), "output");
  expect_near(r.losses, {1, error * error}, tolerance(), "losses");
  expect_near(r.after[0], {1 - 0.5 * 2 * error * 0.5 * silu}, tolerance(), "w_up");
  expect_near(r.after[1], {1 - 0.5 * 2 * error * 0.5 * silu}, tolerance(), "b_up");
  expect_near(r.after[2], {1.5 - 0.5 * 2 * error * 0.5 * 2 * slope}, tolerance(), "w_gate");
  expect_near(r.after[3], {0.75 - 0.5 * 2 * error * 0.5 * 2 * slope}, tolerance(), "b_gate");
  expect_near(r.after[4], {0.5 - 0.5 * 2 * error * 2 * silu}, tolerance(), "w_down");
  expect_near(r.after[5], {1 - 0.5 * 2 * error}, tolerance(), "b_down");
  // The second output by the first value e = -v (the first vhat is 0): b_down' = -e, and the gate
  // gets -0.75 e (q q' + 1) = -2.25 e; w_up and w_down do not move, as silu(0) = 0.
  expect_near(r.dv, {1 + 2.25 * slope, 0}, tolerance(), "dv");
}

// Only b_down is not zero, so only it moves, and by a plain mean.
TEST_P(FastMlp, MeansByHand) {
  for (const int64_t sets : {1, 2}) {
    for (const bool mean : {false, true}) {
      const Sizes z{2, sets, 5, 1, 1, 2};
      SixValues w;
      for (int i = 0; i < 6; ++i) {
        w[i].assign(static_cast<size_t>(z.weights()[i].size()), 0.0);
      }
      const Values v = {1, 10, 2, 20, 4, 40, 8, 80, 16, 160, 3, 30, 5, 50, 7, 70, 9, 90, 11, 110};
      Values dy(v.size(), 0.0);
      dy[6] = 1;  // row 0, token 3, feature 0: the first one of chunk 1
      const Result r =
          run_op(GetParam(), z, Values(10, 0.5), v, w, dy,
                 {.chunk = 3, .lookahead = 1, .mean_target = mean, .lr = 0.25, .bptt_chunks = 0});
      // Tokens 0 and 1 of each row write: 4 (or 2) of them, 2 features. b = 0.5 sum / count.
      const double row0 = mean ? 1.5 + 3 : 2 + 4, row1 = mean ? 4 + 6 : 5 + 7;
      const double count = sets == 1 ? 4 : 2, rate = 0.25 * 2 / (count * 2);
      const double b0 = rate * (sets == 1 ? row0 + row1 : row0);
      const double b1 = rate * (sets == 1 ? row0 + row1 : row1);
      expect_near(r.output, {0, 0, 0, 0, 0, 0, b0, 10 * b0, b0, 10 * b0,  //
                             0, 0, 0, 0, 0, 0, b1, 10 * b1, b1, 10 * b1},
                  tolerance(), "output");
      // Token 3 writes too, into what nobody reads.
      const double t0 = mean ? 12 : 16, t1 = mean ? 10 : 11;
      const double e0 = b0 - t0, e1 = b1 - t1, squares = (1 + 100) / 2.0;
      const Values first = mean ? Values{2.25, 9, 16, 36} : Values{4, 16, 25, 49};
      expect_near(r.losses,
                  {first[0] * squares, first[1] * squares, 0, e0 * e0 * squares, 0,
                   first[2] * squares, first[3] * squares, 0, e1 * e1 * squares, 0},
                  tolerance(), "losses");
      const double step = 0.25 * 2 / ((sets == 1 ? 2 : 1) * 2);
      Values b_down = {b0 - step * e0, 10 * (b0 - step * e0), b1 - step * e1,
                       10 * (b1 - step * e1)};
      if (sets == 1) {
        b_down = {b0 - step * (e0 + e1), 10 * (b0 - step * (e0 + e1))};
      }
      expect_near(r.after[5], b_down, tolerance(), "b_down");
      Values dv(v.size(), 0.0);
      for (const int row : {0, 10}) {
        if (row == 0 || sets == 1) {
          dv[row] = mean ? rate / 2 : 0;
          dv[row + 2] = rate;
          dv[row + 4] = mean ? rate / 2 : rate;
        }
      }
      expect_near(r.dv, dv, tolerance(), "dv");
    }
  }
}

// A gradient cut in front of a chunk is that of two calls, the second starting from constants.
TEST_P(FastMlp, CutsGradients) {
  for (const int64_t sets : {1, 3}) {
    const Sizes z{3, sets, 43, 5, 13, 7};
    const Values q = drawn(z.batch * z.time * z.dk, 0, 1), v = drawn(z.batch * z.time * z.dv, 1, 1),
                 dy = drawn(z.batch * z.time * z.dv, 2, 1);
    FastMlpSettings settings{.chunk = 6, .lookahead = 1, .lr = 1, .bptt_chunks = 3};
    const SixValues start = drawn_weights(z);
    const Result cut = run_op(GetParam(), z, q, v, start, dy, settings);
    settings.bptt_chunks = 0;
    const Result whole = run_op(GetParam(), z, q, v, start, dy, settings);
    EXPECT_EQ(cut.output, whole.output);
    EXPECT_GT(relative_error(cut.dq, whole.dq), 1e-3);
    EXPECT_GT(relative_error(cut.dv, whole.dv), 1e-3);
    SixValues w = start;
    for (const auto& [begin, end] : {std::pair{0, 18}, {18, 36}, {36, 43}}) {
      Sizes piece = z;
      piece.time = end - begin;
      const Result r = run_op(GetParam(), piece, tokens(q, z, begin, end), tokens(v, z, begin, end),
                              w, tokens(dy, z, begin, end), settings);
      expect_near(tokens(cut.output, z, begin, end), r.output, tolerance(), "output");
      expect_near(tokens(cut.losses, z, begin, end), r.losses, tolerance(), "losses");
      expect_near(tokens(cut.dq, z, begin, end), r.dq, tolerance(), "dq");
      expect_near(tokens(cut.dv, z, begin, end), r.dv, tolerance(), "dv");
      EXPECT_EQ(r.given, w);
      w = r.after;
    }
    for (int i = 0; i < 6; ++i) {
      expect_near(cut.after[i], w[i], tolerance(), "after");
      EXPECT_GT(relative_error(cut.after[i], start[i]), 1e-2);
    }
  }
}

TEST_P(FastMlp, ReadsWithoutWriting) {
  const Sizes z{2, 1, 9, 5, 13, 7};
  const Values q = drawn(z.batch * z.time * z.dk, 0, 1), v = drawn(z.batch * z.time * z.dv, 1, 1),
               dy = drawn(z.batch * z.time * z.dv, 2, 1);
  const SixValues w = drawn_weights(z);
  const Result wrote = run_op(GetParam(), z, q, v, w, dy, {.chunk = 9, .lookahead = 1});
  const Result read = run_op(GetParam(), z, q, v, w, dy, {.chunk = 2, .write = false});
  // One chunk is read before it is written.
  expect_near(read.output, wrote.output, tolerance(), "output");
  expect_near(read.dq, wrote.dq, tolerance(), "dq");
  EXPECT_EQ(read.losses, Values(18, 0.0));
  EXPECT_EQ(read.dv, Values(v.size(), 0.0));
}

INSTANTIATE_TEST_SUITE_P(Devices, FastMlp, testing::Values(Device::reference(), Device::cpu()),
                         [](const auto& info) {
                           return info.param.kind == DeviceKind::kCpu ? "cpu" : "reference";
                         });

TEST(FastMlpShapes, RefusesWrongOnes) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const Sizes z{3, 1, 4, 5, 13, 7};
  const auto weights = [&](const Sizes& sizes) {
    std::array<Tensor, 6> w;
    for (int i = 0; i < 6; ++i) {
      w[i] = run.make("w", sizes.weights()[i]);
      fill_zero(w[i].view());
    }
    return w;
  };
  const Tensor q = run.make("q", {3, 4, 5}), v = run.make("v", {3, 4, 7});
  fill_zero(q.view());
  fill_zero(v.view());
  EXPECT_NO_THROW(fast_mlp(run, q, v, weights(z), {}));
  EXPECT_NO_THROW(fast_mlp(run, q, {}, weights(z), {.write = false}));
  EXPECT_THROW(fast_mlp(run, q, {}, weights(z), {}), Error);
  EXPECT_THROW(fast_mlp(run, q, q, weights(z), {}), Error);
  EXPECT_THROW(fast_mlp(run, v, v, weights(z), {}), Error);
  EXPECT_THROW(fast_mlp(run, q, v, weights({3, 2, 4, 5, 13, 7}), {}), Error);
  EXPECT_THROW(fast_mlp(run, q, v, weights(z), {.chunk = 0}), Error);
  EXPECT_THROW(fast_mlp(run, q, v, weights(z), {.lookahead = -1}), Error);
}

}  // namespace
}  // namespace fwpkm
