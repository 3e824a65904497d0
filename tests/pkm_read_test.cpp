// What the cases of pkm_read cannot show: exact selection with ties, and independence of threads.
#include "ops/pkm_read/pkm_read.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/parallel.h"
#include "base/random.h"
#include "memory/segments.h"
#include "tensor/tape.h"

namespace fwpkm {
namespace {

using Values = std::vector<double>;

struct Sizes {
  int64_t tokens, heads, n, k, dk, dv;
};

// A read and its gradients on a device.
struct Result {
  Values output, slots, weights, dq, dkeys, dvalues;
  bool operator==(const Result&) const = default;
};

Result run_read(Device device, const Sizes& s, const Values& q, const Values& keys,
                const Values& values, const Values& dy) {
  Pool pool(device);
  Tape tape;
  Run host(pool), run(pool, &tape);
  const auto parameter = [&](const char* name, const Shape& shape, const Values& v) {
    const Values zero(v.size(), 0.0);
    return std::pair{host.from_host(name, shape, v), host.from_host(name, shape, zero)};
  };
  const auto [q_value, q_grad] = parameter("q", {s.tokens, s.heads * s.dk}, q);
  const auto [k_value, k_grad] = parameter("keys", {s.heads * 2 * s.n, s.dk / 2}, keys);
  const auto [v_value, v_grad] = parameter("values", {s.n * s.n, s.dv}, values);
  const PkmRead read =
      pkm_read(run, Tensor::parameter(q_value.view(), q_grad.view()),
               Tensor::parameter(k_value.view(), k_grad.view()),
               Tensor::parameter(v_value.view(), v_grad.view()), {s.heads, s.k, s.n});
  tape.backward(pool, read.output, host.from_host("dy", read.output.shape(), dy));
  return {to_host(read.output.view()), to_host(read.slots.view()), to_host(read.weights.view()),
          to_host(q_grad.view()),      to_host(k_grad.view()),     to_host(v_grad.view())};
}

Values drawn(int64_t count, uint64_t stream, bool whole) {
  const Random random(3, stream);
  Values v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = whole ? static_cast<double>(random.bits_at(i) % 3) - 1
                 : static_cast<double>(static_cast<float>(random.normal_at(i)));
  }
  return v;
}

Result run_drawn(Device device, const Sizes& s, bool whole) {
  return run_read(device, s, drawn(s.tokens * s.heads * s.dk, 0, whole),
                  drawn(s.heads * s.n * s.dk, 1, whole), drawn(s.n * s.n * s.dv, 2, false),
                  drawn(s.tokens * s.dv, 3, false));
}

// Queries and keys of -1, 0 and 1: scores are small whole numbers, exact on every device and full
// of ties, so the slots must be exactly the same ones in the same order.
TEST(PkmRead, TiesGoToTheLowerSlot) {
  for (const Sizes& s :
       {Sizes{1, 1, 2, 2, 4, 3}, Sizes{3, 4, 17, 5, 6, 3}, Sizes{70, 2, 40, 8, 8, 3},
        Sizes{130, 1, 128, 32, 16, 4}, Sizes{2, 2, 512, 8, 32, 4}}) {
    const Result exact = run_drawn(Device::reference(), s, true);
    const Result fast = run_drawn(Device::cpu(), s, true);
    EXPECT_EQ(fast.slots, exact.slots) << s.tokens << " tokens, n=" << s.n;
  }
}

TEST(PkmRead, AllScoresEqual) {
  const Sizes s{5, 2, 16, 4, 8, 3};
  const Values q(s.tokens * s.heads * s.dk, 0.0);
  const Result read = run_read(Device::cpu(), s, q, drawn(s.heads * s.n * s.dk, 1, false),
                               drawn(s.n * s.n * s.dv, 2, false), drawn(s.tokens * s.dv, 3, false));
  for (size_t i = 0; i < read.slots.size(); ++i) {
    EXPECT_EQ(read.slots[i], static_cast<double>(i % 4));
    EXPECT_EQ(read.weights[i], 0.25);
  }
}

TEST(PkmRead, SelectsAsTheReferenceAwayFromTies) {
  for (const Sizes& s : {Sizes{130, 2, 64, 8, 32, 5}, Sizes{1, 4, 512, 32, 64, 5}}) {
    EXPECT_EQ(run_drawn(Device::cpu(), s, false).slots,
              run_drawn(Device::reference(), s, false).slots);
  }
}

TEST(PkmRead, DoesNotDependOnThreads) {
  const int before = threads();
  for (const Sizes& s : {Sizes{1, 2, 40, 8, 32, 20}, Sizes{150, 3, 20, 8, 24, 33}}) {
    set_threads(1);
    const Result one = run_drawn(Device::cpu(), s, false);
    for (const int count : {2, 3, 7}) {
      set_threads(count);
      EXPECT_TRUE(run_drawn(Device::cpu(), s, false) == one) << count << " threads";
    }
  }
  set_threads(before);
}

TEST(PkmRead, SurvivesNotANumber) {
  const Sizes s{6, 2, 40, 8, 8, 3};
  Values q = drawn(s.tokens * s.heads * s.dk, 0, false);
  q[0] = q[40] = std::numeric_limits<double>::quiet_NaN();
  const Result read = run_read(Device::cpu(), s, q, drawn(s.heads * s.n * s.dk, 1, false),
                               drawn(s.n * s.n * s.dv, 2, false), drawn(s.tokens * s.dv, 3, false));
  for (const double slot : read.slots) {
    EXPECT_TRUE(slot >= 0 && slot < static_cast<double>(s.n * s.n));
  }
}

TEST(PkmRead, RefusesWrongShapes) {
  Pool pool(Device::cpu());
  fwpkm::Run run(pool);
  const Tensor q = run.make("q", {3, 2, 8}), keys = run.make("keys", {2 * 2 * 6, 4});
  const Tensor values = run.make("values", {36, 5});
  EXPECT_THROW(pkm_read(run, q, keys, values, {2, 7, 6}), Error);  // topk > n_subkeys
  EXPECT_THROW(pkm_read(run, q, keys, values, {3, 2, 6}), Error);
  EXPECT_THROW(pkm_read(run, run.make("q", {3, 2, 9}), keys, values, {2, 2, 6}), Error);
  EXPECT_THROW(pkm_read(run, q, keys, run.make("values", {35, 5}), {2, 2, 6}), Error);
}

TEST(Segments, SortIsStableAndEverySegmentIsSeenOnce) {
  for (const auto& [count, limit] :
       {std::pair{1, 1}, {7, 3}, {1000, 10}, {50000, 262144}, {100000, 1 << 30}, {40000, 1}}) {
    std::vector<int32_t> ids(count);
    Random random(1, count);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random.below(limit));
    }
    std::vector<uint64_t> scratch(sort_by_id_scratch(count) / 8 + 1);
    const Placed* sorted = sort_by_id(ids.data(), count, limit, scratch.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(sorted[i].id(), ids[sorted[i].place()]);
      ASSERT_TRUE(i == 0 || sorted[i - 1].bits < sorted[i].bits);
    }
    int64_t next = 0;
    for (int64_t first = 0; first < count; first += 100) {
      for_segments(sorted, count, first, std::min<int64_t>(first + 100, count),
                   [&](int64_t begin, int64_t end) {
                     EXPECT_EQ(begin, next);
                     next = end;
                   });
    }
    EXPECT_EQ(next, count);
  }
}

}  // namespace
}  // namespace fwpkm
