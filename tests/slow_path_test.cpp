// What the cases of z_score, memory_norm, memory_qv and blend_norm cannot draw: equal features, rows
// far from zero, saturated gates, gradients that are dropped after the call, wrong shapes.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/blend_norm/blend_norm.h"
#include "ops/memory_norm/memory_norm.h"
#include "ops/memory_qv/memory_qv.h"
#include "ops/z_score/z_score.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

const Device kDevices[] = {Device::reference(), Device::plain(), Device::cpu()};

double tolerance(Device device) {
  return device.real == DType::kF64 ? 1e-12 : 2e-6;
}

// Output and input gradient of a call with one input.
std::pair<Values, Values> forward_backward(Device device, const Shape& shape, const Values& input,
                                           const Values& dout,
                                           Tensor (*call)(Run&, const Tensor&)) {
  Pool pool(device);
  pool.set_poison(true);
  Tape tape;
  Run run(pool, &tape);
  const Tensor x = run.from_host("x", shape, input);
  x.node()->wants_grad = true;
  tape.keep_grad(x);
  const Tensor y = call(run, x);
  const Values values = to_host(y.view());
  tape.backward(pool, y, run.from_host("dy", y.shape(), dout));
  return {values, to_host(x.node()->grad)};
}

TEST(ZScore, EqualFeaturesAreZeroAndTheirGradientFinite) {
  // A plain mean of these in float is not 0.1.
  const int64_t width = 37;
  const Values x(width, static_cast<double>(0.1f));
  Values dy(width);
  double mean = 0;
  for (int64_t i = 0; i < width; ++i) {
    dy[i] = static_cast<double>(i % 5) / 4;
    mean += dy[i] / static_cast<double>(width);
  }
  for (const Device device : kDevices) {
    const auto [y, dx] = forward_backward(device, {1, width}, x, dy, &z_score);
    for (int64_t i = 0; i < width; ++i) {
      EXPECT_EQ(y[i], 0.0);
      EXPECT_NEAR(dx[i], (dy[i] - mean) * 1e6, 1e6 * tolerance(device)) << i;
    }
  }
}

TEST(ZScore, OneFeatureIsZero) {
  for (const Device device : kDevices) {
    const auto [y, dx] = forward_backward(device, {3, 1}, {-2, 0, 5}, {1, 2, 3}, &z_score);
    EXPECT_EQ(y, Values(3, 0.0));
    EXPECT_EQ(dx, Values(3, 0.0));
  }
}

TEST(ZScore, KnownRow) {
  // Mean 3, squares 4 + 1 + 0 + 1 + 4 = 10, std sqrt(10 / 4).
  for (const Device device : kDevices) {
    const Values y =
        forward_backward(device, {1, 5}, {1, 2, 3, 4, 5}, Values(5, 1.0), &z_score).first;
    for (int i = 0; i < 5; ++i) {
      EXPECT_NEAR(y[i], (i - 2) / (std::sqrt(2.5) + 1e-6), tolerance(device));
    }
  }
}

TEST(ZScore, FarFromZero) {
  // Exact in float, so that all that is lost would be lost by the kernel.
  const int64_t width = 129;
  Values near(width), far(width), dy(width);
  for (int64_t i = 0; i < width; ++i) {
    near[i] = static_cast<double>(i * 37 % 64) / 64;
    far[i] = near[i] + 4096;
    dy[i] = static_cast<double>(i * 11 % 16) / 16;
  }
  const auto [y, dx] = forward_backward(Device::reference(), {1, width}, near, dy, &z_score);
  for (const Device device : kDevices) {
    const auto [far_y, far_dx] = forward_backward(device, {1, width}, far, dy, &z_score);
    for (int64_t i = 0; i < width; ++i) {
      EXPECT_NEAR(far_y[i], y[i], tolerance(device)) << i;
      EXPECT_NEAR(far_dx[i], dx[i], 4 * tolerance(device)) << i;
    }
  }
}

// Weights of a gate for rows of `width` features, whose logit is all its biases' doing.
MemoryGate gate_of(fwpkm::Run& run, int64_t width, const Values& biases) {
  const auto gates = static_cast<int64_t>(biases.size());
  return {run.from_host("w_g", {width}, Values(static_cast<size_t>(width), 0.0)),
          run.from_host("gate", {gates, width}, Values(static_cast<size_t>(gates * width), 0.0)),
          run.from_host("b", {gates}, biases)};
}

// The gate of one row for these biases, and its gradient by the first of them.
std::pair<double, double> gate_and_slope(Device device, const Values& biases) {
  Pool pool(device);
  pool.set_poison(true);
  Tape tape;
  fwpkm::Run run(pool, &tape);
  const Tensor x = run.from_host("x", {1, 1, 3}, Values{1, -2, 3});
  const Tensor w = run.from_host("w", {3}, Values{0, 1, -1});
  const MemoryGate gate = gate_of(run, 3, biases);
  gate.bias.node()->wants_grad = true;
  tape.keep_grad(gate.bias);
  const Tensor g = memory_norm(run, x, w, w, gate, 1e-5).g;
  tape.backward(pool, g, run.from_host("dg", g.shape(), Values{1}));
  return {to_host(g.view())[0], to_host(gate.bias.node()->grad)[0]};
}

TEST(MemoryNorm, GatesSaturate) {
  const double e = std::exp(-15.0);
  for (const Device device : kDevices) {
    const auto [wide, flat] = gate_and_slope(device, {300, 100});
    EXPECT_EQ(wide, 1.0);
    EXPECT_NEAR(flat, 0.0, 1e-30);
    const auto [shut, no_slope] = gate_and_slope(device, {-100, -300});
    EXPECT_NEAR(shut, 0.0, 1e-30);
    EXPECT_NEAR(no_slope, 0.0, 1e-30);
    const auto [half, steepest] = gate_and_slope(device, {5, -5});
    EXPECT_NEAR(half, 0.5, tolerance(device));
    EXPECT_NEAR(steepest, 0.125, tolerance(device));
    const auto [open, slope] = gate_and_slope(device, {16, 14});
    EXPECT_NEAR(open, 1 / (1 + e), tolerance(device));
    EXPECT_NEAR(slope, e / (1 + e) / (1 + e) / 2, e * 1e-5);
  }
}

// What blend_norm makes of rows of two features, with a weight that leaves the norm as it is.
Values blended(Device device, const Values& a, const Values& b, const Values& g, double eps) {
  Pool pool(device);
  pool.set_poison(true);
  fwpkm::Run run(pool);
  const auto rows = static_cast<int64_t>(a.size() / 2);
  const Tensor gate = g.empty() ? Tensor() : run.from_host("g", {1, rows}, g);
  return to_host(blend_norm(run, run.from_host("a", {1, rows, 2}, a),
                            run.from_host("b", {1, rows, 2}, b), gate,
                            run.from_host("w", {2}, Values{0, 0}), eps)
                     .view());
}

TEST(BlendNorm, KnownRows) {
  // m is (3, 4) in each of them; of two features rms is 5 / sqrt 2.
  const double rms = 5 / std::sqrt(2.0);
  for (const Device device : kDevices) {
    for (const Values& y : {blended(device, {6, 0, 9, 1}, {0, 8, 1, 5}, {0.5, 0.25}, 0),
                            blended(device, {1, 3, -1, 2}, {2, 1, 4, 2}, {}, 0)}) {
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(y[i], (i % 2 == 0 ? 3 : 4) / rms, tolerance(device));
      }
    }
  }
}

TEST(BlendNorm, OpenAndShutGatesPassOneSideExactly) {
  const Values a = {0.1, 3, -7, 1e-3}, b = {5, -0.3, 2, 1e6};
  for (const Device device : kDevices) {
    const Values y = blended(device, a, b, {1, 0}, 1e-5);
    const Values from_a = blended(device, a, a, {1, 1}, 1e-5);
    const Values from_b = blended(device, b, b, {0, 0}, 1e-5);
    EXPECT_EQ(y, (Values{from_a[0], from_a[1], from_b[2], from_b[3]}));
  }
}

TEST(BlendNorm, NothingIsNothing) {
  for (const Device device : kDevices) {
    EXPECT_EQ(blended(device, {1, -2}, {-1, 2}, {0.5}, 1e-5), (Values{0, 0}));
  }
}

// An input may stop wanting its gradient after the call was recorded.
TEST(SlowPath, GradientsDroppedAfterTheCall) {
  for (const Device device : kDevices) {
    const auto gated = [](fwpkm::Run& run, const Tensor& x) {
      const Tensor w = run.from_host("w", {3}, Values{0, 1, -1});
      return memory_norm(run, x, w, w, gate_of(run, 3, {0.5}), 1e-5).g;
    };
    for (Tensor (*call)(fwpkm::Run&, const Tensor&) : {&z_score, +gated}) {
      Pool pool(device);
      Tape tape;
      fwpkm::Run run(pool, &tape);
      const Tensor x = run.from_host("x", {1, 2, 3}, Values{1, 2, 3, 4, 5, 7});
      x.node()->wants_grad = true;
      const Tensor y = call(run, x);
      x.node()->wants_grad = false;
      tape.backward(pool, y, run.from_host("dy", y.shape(), to_host(y.view())));
      EXPECT_FALSE(x.node()->grad);
    }
  }
}

TEST(SlowPath, WrongShapesAreErrors) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const Tensor x = run.from_host("x", {1, 2, 3}, Values(6, 1.0));
  const Tensor other = run.from_host("x", {1, 3, 2}, Values(6, 1.0));
  const Tensor row = run.from_host("x", {6}, Values(6, 1.0));
  const Tensor w = run.from_host("w", {3}, Values(3, 0.0));
  const Tensor y = run.from_host("y", {1, 2, 3}, Values(6, 1.0));
  EXPECT_THROW(blend_norm(run, x, other, {}, w, 1e-5), Error);
  EXPECT_THROW(blend_norm(run, x, y, row, w, 1e-5), Error);
  EXPECT_THROW(blend_norm(run, x, y, {}, row, 1e-5), Error);
  EXPECT_THROW(blend_norm(run, x, x, {}, w, 1e-5), Error);
  EXPECT_THROW(blend_norm(run, row, w, {}, w, 1e-5), Error);
  EXPECT_THROW(memory_norm(run, x, row, w, {}, 1e-5), Error);
  EXPECT_THROW(memory_norm(run, x, w, w, gate_of(run, 2, {1}), 1e-5), Error);
  const Tensor square = run.from_host("w", {3, 3}, Values(9, 1.0));
  EXPECT_THROW(memory_qv(run, x, {row, square, w}, {w, square, w}, {}, true, 1e-5), Error);
  EXPECT_THROW(memory_qv(run, x, {w, square, w}, {w, w, w}, {}, true, 1e-5), Error);
  EXPECT_THROW(memory_qv(run, x, {w, square, w}, {w, square, row}, {}, true, 1e-5), Error);
  View turned = x.view();
  std::swap(turned.shape.dims[1], turned.shape.dims[2]);
  std::swap(turned.strides[1], turned.strides[2]);
  const Tensor t = Tensor::constant(turned);
  EXPECT_THROW(z_score(run, t), Error);
  EXPECT_THROW(memory_norm(run, t, w, w, {}, 1e-5), Error);
  EXPECT_THROW(blend_norm(run, t, run.from_host("x", t.shape(), Values(6, 1.0)), {},
                          run.from_host("w", {2}, Values(2, 0.0)), 1e-5),
               Error);
}

}  // namespace
}  // namespace fwpkm
