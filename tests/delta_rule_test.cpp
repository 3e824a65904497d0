// What the cases cannot draw: sequences cut into calls, hard decays and keys, thread counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/delta_rule/delta_rule.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

struct Problem {
  int64_t batch = 2, length = 200, key_heads = 2, value_heads = 4, dk = 12, dv = 20;
  Values q, k, v, g, beta, state, seed;

  // Standard normal q, k, v, state; decays in (-1, 0) and gates in (0, 1). All fit a float.
  void draw() {
    uint64_t stream = 0;
    const auto fill = [&](Values& values, int64_t count, auto&& number) {
      Random random(17, ++stream);
      values.resize(static_cast<size_t>(count));
      for (double& x : values) {
        x = static_cast<double>(static_cast<float>(number(random)));
      }
    };
    const auto normal = [](Random& r) { return r.normal(); };
    const auto uniform = [](Random& r) { return r.uniform(); };
    const auto decay = [](Random& r) { return -r.uniform(); };
    const int64_t tokens = batch * length;
    fill(q, tokens * key_heads * dk, normal);
    fill(k, tokens * key_heads * dk, normal);
    fill(v, tokens * value_heads * dv, normal);
    fill(g, tokens * value_heads, decay);
    fill(beta, tokens * value_heads, uniform);
    fill(state, batch * value_heads * dk * dv, normal);
    fill(seed, tokens * value_heads * dv, normal);
  }
};

// o and the last state of a problem whose tokens are given `cuts` at a time.
std::pair<Values, Values> run_in_cuts(const Problem& p, Device device,
                                      const std::vector<int64_t>& cuts) {
  Pool pool(device);
  pool.set_poison(true);
  Run run(pool);
  const Tensor q = run.from_host("q", {p.batch, p.length, p.key_heads, p.dk}, p.q);
  const Tensor k = run.from_host("k", {p.batch, p.length, p.key_heads, p.dk}, p.k);
  const Tensor v = run.from_host("v", {p.batch, p.length, p.value_heads, p.dv}, p.v);
  const Tensor g = run.from_host("g", {p.batch, p.length, p.value_heads}, p.g);
  const Tensor beta = run.from_host("beta", {p.batch, p.length, p.value_heads}, p.beta);
  const Tensor state = run.from_host("state", {p.batch, p.value_heads, p.dk, p.dv}, p.state);
  const Tensor o = run.make("o", v.shape());
  int64_t begin = 0;
  for (int64_t cut : cuts) {
    const auto tokens = [&](const Tensor& t) {
      return Tensor::constant(t.view().slice(1, begin, begin + cut));
    };
    const auto packed = [&](const Tensor& t) {
      const Tensor part = tokens(t);
      return run.from_host("packed", part.shape(), to_host(part.view()));
    };
    const Tensor part =
        delta_rule(run, tokens(q), tokens(k), tokens(v), packed(g), packed(beta), state);
    copy_from_host(o.view().slice(1, begin, begin + cut), to_host(part.view()));
    begin += cut;
  }
  EXPECT_EQ(begin, p.length);
  return {to_host(o.view()), to_host(state.view())};
}

double relative_error(const Values& a, const Values& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(std::isfinite(a[i]));
    worst = std::max(worst, std::fabs(a[i] - b[i]));
    largest = std::max(largest, std::fabs(b[i]));
  }
  return largest == 0 ? worst : worst / largest;
}

// o, the last state and the gradients of q, k, v, g, beta; or of input `only`, if given.
std::vector<Values> run_and_replay(const Problem& p, Device device, int only = -1) {
  Pool pool(device);
  pool.set_poison(true);
  Tape tape;
  Run run(pool, &tape);
  const std::vector<Tensor> in = {
      run.from_host("q", {p.batch, p.length, p.key_heads, p.dk}, p.q),
      run.from_host("k", {p.batch, p.length, p.key_heads, p.dk}, p.k),
      run.from_host("v", {p.batch, p.length, p.value_heads, p.dv}, p.v),
      run.from_host("g", {p.batch, p.length, p.value_heads}, p.g),
      run.from_host("beta", {p.batch, p.length, p.value_heads}, p.beta),
  };
  const Tensor state = run.from_host("state", {p.batch, p.value_heads, p.dk, p.dv}, p.state);
  const Tensor seed = run.from_host("seed", in[2].shape(), p.seed);
  const std::vector<Tensor> wanted = only < 0 ? in : std::vector{in[static_cast<size_t>(only)]};
  for (const Tensor& t : wanted) {
    t.node()->wants_grad = true;
    tape.keep_grad(t);
  }
  const Tensor o = delta_rule(run, in[0], in[1], in[2], in[3], in[4], state);
  std::vector<Values> results = {to_host(o.view()), to_host(state.view())};
  tape.backward(pool, o, seed);
  for (const Tensor& t : wanted) {
    results.push_back(to_host(t.node()->grad));
  }
  return results;
}

// The fast kernels may be four times as far from the exact numbers as the plain float code.
void expect_close(const Problem& p) {
  const char* names[] = {"o", "state", "dq", "dk", "dv", "dg", "dbeta"};
  const auto exact = run_and_replay(p, Device::reference());
  const auto plain = run_and_replay(p, Device::plain());
  const auto fast = run_and_replay(p, Device::cpu());
  for (size_t i = 0; i < exact.size(); ++i) {
    const double limit = 4 * std::max(relative_error(plain[i], exact[i]), 4 * 0x1.0p-24);
    EXPECT_LE(relative_error(fast[i], exact[i]), limit) << names[i];
  }
}

TEST(DeltaRule, CutsGiveTheSame) {
  Problem p;
  p.draw();
  std::vector<std::vector<int64_t>> lists = {{1, 64, 1, 1, 5, 63, 65}, {16, 15, 129, 40}};
  lists.emplace_back(200, 1);
  for (Device device : {Device::reference(), Device::cpu()}) {
    const auto whole = run_in_cuts(p, device, {p.length});
    const double limit = device.kind == DeviceKind::kReference ? 1e-12 : 2e-6;
    for (const auto& cuts : lists) {
      const auto parts = run_in_cuts(p, device, cuts);
      EXPECT_LE(relative_error(parts.first, whole.first), limit) << cuts.size() << " cuts";
      EXPECT_LE(relative_error(parts.second, whole.second), limit) << cuts.size() << " cuts";
    }
  }
}

TEST(DeltaRule, StrongDecay) {
  Problem p;
  p.draw();
  for (double& g : p.g) {
    g = -20 + g;
  }
  expect_close(p);
}

// Far decayed tokens beside ones that hardly decay: differences of sums of g must stay exact.
TEST(DeltaRule, StrongAndWeakDecayMixed) {
  Problem p;
  p.draw();
  for (size_t i = 0; i < p.g.size(); ++i) {
    p.g[i] = i % 7 == 0 ? -100.0 : static_cast<double>(static_cast<float>(0.01 * p.g[i]));
  }
  expect_close(p);
}

TEST(DeltaRule, NoDecay) {
  Problem p;
  p.draw();
  std::fill(p.g.begin(), p.g.end(), 0.0);
  expect_close(p);
}

// beta near 1 and one key for all tokens: A is as large as it gets.
TEST(DeltaRule, RepeatedKeys) {
  Problem p;
  p.draw();
  for (size_t i = 0; i < p.k.size(); ++i) {
    p.k[i] = p.k[i % static_cast<size_t>(p.key_heads * p.dk)];
  }
  for (double& beta : p.beta) {
    beta = static_cast<double>(static_cast<float>(1 - 1e-3 * beta));
  }
  std::fill(p.g.begin(), p.g.end(), 0.0);
  expect_close(p);
}

TEST(DeltaRule, ThreadsDoNotMatter) {
  const int before = threads();
  Problem many, single;  // many items of work, and a single one
  single.batch = single.key_heads = 1;
  single.dk = single.dv = 64;
  for (Problem& p : {std::ref(many), std::ref(single)}) {
    p.draw();
    set_threads(1);
    const auto one = run_and_replay(p, Device::cpu());
    for (int count : {2, 3, 8}) {
      set_threads(count);
      EXPECT_EQ(run_and_replay(p, Device::cpu()), one) << count << " threads";
    }
  }
  set_threads(before);
}

TEST(DeltaRule, UnwantedGradientsAreLeftOut) {
  Problem p;
  p.draw();
  const auto all = run_and_replay(p, Device::cpu());
  for (int only = 0; only < 5; ++only) {
    EXPECT_EQ(run_and_replay(p, Device::cpu(), only).back(), all[static_cast<size_t>(only) + 2]);
  }
}

TEST(DeltaRule, ShapesAreChecked) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const Tensor q = run.make("q", {1, 3, 2, 4}), v = run.make("v", {1, 3, 3, 4});
  const Tensor g = run.make("g", {1, 3, 3});
  EXPECT_THROW(delta_rule(run, q, q, v, g, g), Error);
  EXPECT_THROW(delta_rule(run, q, q, q, g, g), Error);
  const Tensor gate = run.make("gate", {1, 3, 2}), state = run.make("state", {1, 2, 4, 5});
  EXPECT_THROW(delta_rule(run, q, q, q, gate, gate, state), Error);
}

}  // namespace
}  // namespace fwpkm
