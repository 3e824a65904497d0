#include "train/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tiny_models.h"

namespace fwpkm {
namespace {

void set_gradients(Parameters* parameters, uint64_t seed) {
  for (size_t p = 0; p < parameters->specs().size(); ++p) {
    const Random random(seed, p);
    const View& grad = parameters->at(p).node()->grad;
    std::vector<double> values(static_cast<size_t>(grad.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(random.normal_at(i));
    }
    copy_from_host(grad, values);
  }
}

// The update written out for one number, as the paper of AdamW and PyTorch have it.
TEST(AdamW, MatchesAWrittenOutUpdate) {
  const ModelConfig config = parse_config(tiny_models()[0].json, "test");
  AdamWSettings s;
  s.lr = 0.01;
  s.weight_decay = 0.3;
  for (const Device device : {Device::reference(), Device::cpu()}) {
    Parameters parameters(config, device, true);
    parameters.initialize(1);
    AdamW optimizer(&parameters);
    const auto& specs = parameters.specs();
    for (const size_t p : {size_t{0}, specs.size() - 1}) {  // a matrix and a norm
      ASSERT_EQ(specs[p].decay, p == 0);
    }
    std::vector<double> want[2], m[2], v[2];
    for (int k = 0; k < 2; ++k) {
      const size_t p = k == 0 ? 0 : specs.size() - 1;
      want[k] = to_host(parameters.at(p).view());
      m[k].assign(want[k].size(), 0);
      v[k].assign(want[k].size(), 0);
    }
    for (int step = 1; step <= 3; ++step) {
      set_gradients(&parameters, static_cast<uint64_t>(step));
      for (int k = 0; k < 2; ++k) {
        const size_t p = k == 0 ? 0 : specs.size() - 1;
        const auto g = to_host(parameters.at(p).node()->grad);
        for (size_t i = 0; i < g.size(); ++i) {
          const double gradient = 0.5 * g[i];
          want[k][i] -= k == 0 ? s.lr * s.weight_decay * want[k][i] : 0;
          m[k][i] = s.beta1 * m[k][i] + (1 - s.beta1) * gradient;
          v[k][i] = s.beta2 * v[k][i] + (1 - s.beta2) * gradient * gradient;
          const double mhat = m[k][i] / (1 - std::pow(s.beta1, step));
          const double vhat = v[k][i] / (1 - std::pow(s.beta2, step));
          want[k][i] -= s.lr * mhat / (std::sqrt(vhat) + s.eps);
        }
      }
      optimizer.step(s, 0.5);
    }
    const double tolerance = device.real == DType::kF64 ? 1e-14 : 3e-7;
    for (int k = 0; k < 2; ++k) {
      const size_t p = k == 0 ? 0 : specs.size() - 1;
      const auto got = to_host(parameters.at(p).view());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[k][i], tolerance);
      }
      for (const double g : to_host(parameters.at(p).node()->grad)) {
        ASSERT_EQ(g, 0);
      }
    }
    EXPECT_EQ(optimizer.steps(), 3);
  }
}

TEST(AdamW, NormIsExact) {
  const ModelConfig config = parse_config(tiny_models()[1].json, "test");
  for (const Device device : {Device::reference(), Device::cpu()}) {
    Parameters parameters(config, device, true);
    AdamW optimizer(&parameters);
    set_gradients(&parameters, 5);
    double squares = 0;
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      for (const double g : to_host(parameters.at(p).node()->grad)) {
        squares += g * g;
      }
    }
    EXPECT_NEAR(optimizer.gradient_norm(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
  }
}

// Training steps on a GPU may not have updated everything yet.
TEST(AdamW, LentTablesAreRefused) {
  Parameters parameters(parse_config(tiny_models()[0].json, "test"), Device::cpu(), true);
  AdamW optimizer(&parameters);
  const auto read = [&] { optimizer.for_moments([](const auto&, const View&, const View&) {}); };
  parameters.lend_tables(true);
  EXPECT_THROW(read(), Error);
  EXPECT_THROW(optimizer.gradient_norm(), Error);
  EXPECT_THROW(optimizer.step({}, 1), Error);
  EXPECT_EQ(optimizer.steps(), 0);
  parameters.lend_tables(false);
  EXPECT_NO_THROW(read());
}

}  // namespace
}  // namespace fwpkm
