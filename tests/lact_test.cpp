// What the cases cannot draw: sequences cut into calls, forks, and the update itself.
#include "ops/lact/lact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

struct Problem {
  int64_t batch = 2, length = 70, heads = 2, width = 6, chunk = 16;
  Values inputs[8];  // q, k, v, lr, momentum, w0, w1, w2

  void draw() {
    const int64_t tokens = batch * length * heads, matrix = heads * width * width;
    const int64_t counts[] = {tokens * width, tokens * width, tokens * width, 3 * tokens,
                              tokens,         matrix,         matrix,         matrix};
    for (size_t i = 0; i < 8; ++i) {
      Random random(23, i);
      inputs[i].resize(static_cast<size_t>(counts[i]));
      for (double& x : inputs[i]) {
        x = static_cast<float>(i < 3    ? 0.5 * random.normal()
                               : i == 3 ? 0.3 * random.uniform()
                               : i == 4 ? random.uniform()
                                        : 0.4 * random.normal());
      }
    }
  }

  Shape shape(size_t i) const {
    if (i < 3) {
      return {batch, length, heads, width};
    }
    return i == 3   ? Shape({batch, length, heads, 3})
           : i == 4 ? Shape({batch, length, heads})
                    : Shape({heads, width, width});
  }
  std::vector<Tensor> tensors(Run& run) const {
    std::vector<Tensor> list;
    for (size_t i = 0; i < 8; ++i) {
      list.push_back(run.from_host("input", shape(i), inputs[i]));
    }
    return list;
  }
};

// Tokens begin..end through the state; the first weights only where they are needed.
Values advance(Run& run, const Problem& p, const std::vector<Tensor>& in, int64_t begin,
               int64_t end, LactState* state) {
  std::vector<Tensor> part;
  for (size_t i = 0; i < 5; ++i) {
    const View view = in[i].view().slice(1, begin, end);
    part.push_back(run.from_host("part", view.shape, to_host(view)));
  }
  const LactWeights start = begin == 0 ? LactWeights{in[5], in[6], in[7]} : LactWeights();
  return to_host(
      lact(run, part[0], part[1], part[2], part[3], part[4], start, p.chunk, state).view());
}

// Outputs [B, T, ..] of a stream cut into calls, and the last weights and M.
std::pair<Values, Values> in_cuts(const Problem& p, Device device,
                                  const std::vector<int64_t>& cuts) {
  Pool pool(device);
  pool.set_poison(true);
  fwpkm::Run run(pool);
  const std::vector<Tensor> in = p.tensors(run);
  LactState state = LactState::make(run, p.batch, p.heads, p.width, p.chunk);
  const int64_t row = p.heads * p.width;
  Values o(static_cast<size_t>(p.batch * p.length * row));
  int64_t at = 0;
  for (const int64_t cut : cuts) {
    const Values part = advance(run, p, in, at, at + cut, &state);
    for (int64_t b = 0; b < p.batch; ++b) {
      std::copy_n(part.begin() + b * cut * row, cut * row, o.begin() + (b * p.length + at) * row);
    }
    at += cut;
  }
  EXPECT_EQ(at, p.length);
  EXPECT_EQ(state.tokens, p.length);
  Values last = to_host(state.weights.view());
  const Values m = to_host(state.momentum.view());
  last.insert(last.end(), m.begin(), m.end());
  return {o, last};
}

double worst_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(a[i] - b[i]);
    worst = std::max(worst, std::isnan(difference) ? 1e9 : difference);
  }
  return worst;
}

Values whole(const Problem& p, Device device) {
  Pool pool(device);
  pool.set_poison(true);
  fwpkm::Run run(pool);
  const std::vector<Tensor> in = p.tensors(run);
  return to_host(
      lact(run, in[0], in[1], in[2], in[3], in[4], {in[5], in[6], in[7]}, p.chunk).view());
}

TEST(Lact, CutsGiveTheSame) {
  for (const int64_t chunk : {1, 2, 16, 35, 70, 100}) {
    Problem p;
    p.chunk = chunk;
    p.draw();
    for (const Device device : {Device::reference(), Device::cpu()}) {
      const double limit = device.real == DType::kF64 ? 1e-9 : 1e-5;
      const auto once = in_cuts(p, device, {p.length});
      EXPECT_LE(worst_difference(once.first, whole(p, device)), limit);
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>(70, 1), {16, 16, 16, 16, 6}, {15, 2, 31, 22}, {1, 69}, {69, 1}}) {
        const auto parts = in_cuts(p, device, cuts);
        EXPECT_LE(worst_difference(parts.first, once.first), limit) << "chunk " << chunk;
        EXPECT_LE(worst_difference(parts.second, once.second), limit) << "chunk " << chunk;
      }
    }
  }
}

// A copy of the state goes on exactly as the original does.
TEST(Lact, StreamsFork) {
  Problem p;
  p.draw();
  for (const Device device : {Device::reference(), Device::cpu()}) {
    Pool pool(device);
    fwpkm::Run run(pool);
    const std::vector<Tensor> in = p.tensors(run);
    LactState first = LactState::make(run, p.batch, p.heads, p.width, p.chunk);
    advance(run, p, in, 0, 41, &first);
    LactState second = LactState::make(run, p.batch, p.heads, p.width, p.chunk);
    copy_view(first.weights.view(), second.weights.view());
    copy_view(first.momentum.view(), second.momentum.view());
    copy_view(first.norms.view(), second.norms.view());
    copy_view(first.pending.view(), second.pending.view());
    second.tokens = first.tokens;
    EXPECT_EQ(advance(run, p, in, 41, p.length, &first),
              advance(run, p, in, 41, p.length, &second));
  }
}

// Rows keep their first norms; later outputs do change, earlier ones do not.
TEST(Lact, UpdatesKeepNormsAndMatterLaterOnly) {
  Problem p;
  p.draw();
  const auto [o, last] = in_cuts(p, Device::reference(), {p.length});
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t r = 0; r < p.width; ++r) {
          double before = 0, after = 0;
          for (int64_t j = 0; j < p.width; ++j) {
            const auto old = static_cast<size_t>((h * p.width + r) * p.width + j);
            const auto now =
                static_cast<size_t>((((b * p.heads + h) * 3 + i) * p.width + r) * p.width + j);
            before += std::pow(p.inputs[5 + i][old], 2);
            after += std::pow(last[now], 2);
          }
          EXPECT_NEAR(std::sqrt(after), std::sqrt(before), 1e-3 * std::sqrt(before));
        }
      }
    }
  }
  // A value of token 20, in the second chunk, is learned at token 32.
  Problem changed = p;
  const int64_t row = p.heads * p.width;
  changed.inputs[2][static_cast<size_t>(20 * row)] += 1;
  const Values with = whole(changed, Device::reference()), without = whole(p, Device::reference());
  const auto border = static_cast<std::ptrdiff_t>(32 * row);
  EXPECT_TRUE(std::equal(with.begin(), with.begin() + border, without.begin()));
  EXPECT_FALSE(
      std::equal(with.begin() + border, with.begin() + border + row, without.begin() + border));
  // Sequences do not share fast weights.
  EXPECT_TRUE(
      std::equal(with.begin() + p.length * row, with.end(), without.begin() + p.length * row));
}

TEST(Lact, ThreadsDoNotMatter) {
  const int before = threads();
  Problem p;
  p.draw();
  std::vector<std::vector<Values>> results;
  for (const int count : {1, 2, 5}) {
    set_threads(count);
    Pool pool(Device::cpu());
    Tape tape;
    fwpkm::Run run(pool, &tape);
    const std::vector<Tensor> in = p.tensors(run);
    for (const Tensor& t : in) {
      t.node()->wants_grad = true;
      tape.keep_grad(t);
    }
    const Tensor o = lact(run, in[0], in[1], in[2], in[3], in[4], {in[5], in[6], in[7]}, p.chunk);
    results.push_back({to_host(o.view())});
    tape.backward(pool, o, run.from_host("seed", o.shape(), p.inputs[0]));
    for (const Tensor& t : in) {
      results.back().push_back(to_host(t.node()->grad));
    }
  }
  set_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Lact, MisuseIsRefused) {
  Problem p;
  p.draw();
  Pool pool(Device::cpu());
  Tape tape;
  fwpkm::Run run(pool, &tape);
  const std::vector<Tensor> in = p.tensors(run);
  const LactWeights start = {in[5], in[6], in[7]};
  const auto call = [&](int64_t chunk, const LactWeights& weights, LactState* state) {
    lact(run, in[0], in[1], in[2], in[3], in[4], weights, chunk, state);
  };
  EXPECT_THROW(call(0, start, nullptr), Error);
  EXPECT_THROW(call(4, {}, nullptr), Error);
  EXPECT_THROW(call(4, {in[5], in[6], in[0]}, nullptr), Error);
  LactState state = LactState::make(run, p.batch, p.heads, p.width, p.chunk);
  EXPECT_THROW(call(4, start, &state), Error);  // of other chunks
  EXPECT_THROW(lact(run, in[0], in[0], in[2], in[3], in[4], start, 4), Error);
  call(p.chunk, start, &state);
  in[1].node()->wants_grad = true;
  EXPECT_THROW(call(p.chunk, {}, &state), Error);
}

}  // namespace
}  // namespace fwpkm
