// What the cases of the op do not see: bitwise equal results on any number of threads, and errors.
#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/random.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

// Output and gradients of one call.
std::vector<std::vector<double>> run_attention(int64_t queries, int64_t keys, int64_t window,
                                               int thread_count) {
  set_threads(thread_count);
  Pool pool(Device::cpu());
  Tape tape;
  Run run(pool, &tape);
  const auto draw = [&](const Shape& shape, uint64_t stream) {
    const Random random(5, stream);
    std::vector<double> values(static_cast<size_t>(shape.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = random.normal_at(i);
    }
    return run.from_host("x", shape, values);
  };
  std::vector<Tensor> in = {draw({1, queries, 6, 24}, 0), draw({1, keys, 2, 24}, 1),
                            draw({1, keys, 2, 24}, 2)};
  for (const Tensor& t : in) {
    t.node()->wants_grad = true;
    tape.keep_grad(t);
  }
  const Tensor o = attention(run, in[0], in[1], in[2], {keys - queries, window, 0.2});
  std::vector<std::vector<double>> results = {to_host(o.view())};
  tape.backward(pool, o, draw(o.shape(), 3));
  for (const Tensor& t : in) {
    results.push_back(to_host(t.node()->grad));
  }
  set_threads(0);
  return results;
}

TEST(Attention, ThreadsDoNotChangeResults) {
  for (const auto& [queries, keys, window] :
       {std::tuple<int64_t, int64_t, int64_t>{700, 700, 0}, {700, 900, 90}, {2, 3000, 0}}) {
    const auto one = run_attention(queries, keys, window, 1);
    for (const int count : {2, 3}) {
      EXPECT_EQ(one, run_attention(queries, keys, window, count)) << queries << " " << count;
    }
  }
}

TEST(Attention, RefusesQueriesWithoutKeys) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const Tensor q = run.make("q", {1, 4, 2, 8}), k = run.make("k", {1, 6, 1, 8});
  EXPECT_THROW(attention(run, q, k, k, {8, 5, 1.0}), Error);
  EXPECT_THROW(attention(run, q, k, k, {-1, 0, 1.0}), Error);
  EXPECT_THROW(attention(run, run.make("q", {1, 4, 3, 8}), run.make("k", {1, 6, 2, 8}),
                         run.make("v", {1, 6, 2, 8}), {2, 0, 1.0}),
               Error);
}

}  // namespace
}  // namespace fwpkm
