// Checks of whole small models that several tests make.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "check/compare.h"
#include "ops/lm_loss/lm_loss.h"
#include "tiny_models.h"
#include "train/step.h"

namespace fwpkm {

inline double loss_of(const Model& model, std::span<const int32_t> tokens, int64_t batch,
                      int64_t seq) {
  const InputsAndLabels split = split_labels(tokens, batch, seq);
  Pool pool(model.parameters().device());
  Run run(pool);
  const Shape shape = {batch, seq};
  const Tensor h = model.hidden(run, run.from_host("tokens", shape, split.inputs));
  const Tensor labels = run.from_host("labels", shape, split.labels);
  return to_host(lm_loss(run, h, model.embedding_table(), labels).loss.view())[0];
}

// Three random directions per parameter tensor, against central differences in double. Returns how
// many tensors have no gradient: fast weights. (A forward changes none of them, so nothing has to
// be undone between two.)
inline int expect_true_gradients(const ModelConfig& config, double tolerance) {
  constexpr int64_t kBatch = 2, kSeq = 11;
  Model model(config, Device::reference(), true);
  randomize(&model.parameters(), 3);
  const auto tokens = tiny_tokens(kBatch * (kSeq + 1), config.vocab_size, 5);
  Pool pool(Device::reference());
  pool.set_poison(true);
  accumulate_gradients(model, pool, tokens, kBatch, kSeq, 1.0);
  const auto& specs = model.parameters().specs();
  int fast = 0;
  for (size_t p = 0; p < specs.size(); ++p) {
    EXPECT_EQ(specs[p].fast, !model.parameters().at(p).node()->grad) << specs[p].name;
    if (specs[p].fast) {
      ++fast;
      continue;
    }
    const View& value = model.parameters().at(p).view();
    const std::vector<double> start = to_host(value);
    const std::vector<double> gradient = to_host(model.parameters().at(p).node()->grad);
    for (uint64_t direction = 0; direction < 3; ++direction) {
      const Random random(100 + direction, p);
      std::vector<double> moved(start.size());
      double analytic = 0, scale = 0;
      for (size_t i = 0; i < start.size(); ++i) {
        analytic += gradient[i] * random.normal_at(i);
        scale += std::pow(gradient[i] * random.normal_at(i), 2);
      }
      const auto at = [&](double step) {
        for (size_t i = 0; i < start.size(); ++i) {
          moved[i] = start[i] + step * random.normal_at(i);
        }
        copy_from_host(value, moved);
        return loss_of(model, tokens, kBatch, kSeq);
      };
      constexpr double kStep = 1e-6;  // small, so that no selection changes on the way
      const double numeric =
          (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
      EXPECT_NEAR(numeric, analytic, tolerance * std::max(std::sqrt(scale), 1e-3))
          << specs[p].name << ", direction " << direction;
    }
    copy_from_host(value, start);
  }
  return fast;
}

// Rounding is amplified by the model itself; the plain code in float tells by how much.
inline void expect_cpu_matches_reference(const ModelConfig& config) {
  constexpr int64_t kBatch = 3, kSeq = 29;
  const auto tokens = tiny_tokens(kBatch * (kSeq + 1), config.vocab_size, 6);
  std::vector<std::vector<double>> gradients[3];
  double losses[3];
  const Device devices[] = {Device::reference(), Device::plain(), Device::cpu()};
  for (int d = 0; d < 3; ++d) {
    Model model(config, devices[d], true);
    randomize(&model.parameters(), 4);
    Pool pool(devices[d]);
    pool.set_poison(true);
    losses[d] = accumulate_gradients(model, pool, tokens, kBatch, kSeq, 1.0);
    for (size_t p = 0; p < model.parameters().specs().size(); ++p) {
      if (!model.parameters().specs()[p].fast) {
        gradients[d].push_back(to_host(model.parameters().at(p).node()->grad));
      }
    }
  }
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
  double plain = 1e-6, fast = 0;
  for (size_t p = 0; p < gradients[0].size(); ++p) {
    plain = std::max(plain, relative_error(gradients[1][p], gradients[0][p]));
    fast = std::max(fast, relative_error(gradients[2][p], gradients[0][p]));
  }
  EXPECT_LE(fast, 4 * plain);
}

}  // namespace fwpkm
