// Which slots the memory reads: exactly those of the reference, ties included.
#include <cmath>
#include <set>

#include "fwpkm_run.h"

namespace fwpkm {
namespace {

// Only reads: one chunk of all tokens.
FwpkmSettings read_settings(int32_t heads, int32_t n, int32_t k, bool dot = false) {
  FwpkmSettings s = memory_settings(heads, n, k, 1 << 20, 0, true);
  s.write = false;
  s.dot = dot;
  return s;
}

MemoryResult read(Device device, const MemorySizes& z, const FwpkmSettings& s,
                  const MemoryInputs& in) {
  return run_memory(device, z, s, in, {.backward = false});
}

double score(const MemorySizes& z, const FwpkmSettings& s, const MemoryInputs& in, int64_t token,
             int64_t book, int64_t key) {
  const double* q = in.q.data() + (token * s.heads * 2 + book) * z.half;
  const double* k = in.keys.data() + (book * s.n_subkeys + key) * z.half;
  double sum = 0;
  for (int64_t i = 0; i < z.half; ++i) {
    sum += s.dot ? q[i] * k[i] : (q[i] - k[i]) * (q[i] - k[i]);
  }
  return s.dot ? sum : -std::log(kIdwEps + sum);
}

// At every rank both devices have the same sub-key, or ones whose scores differ by less than
// `gap`; so wherever scores differ by more, the selection is the same. Of all ranks, at most one in
// a hundred may be such a near-tie.
void expect_same_selection(const MemorySizes& z, const FwpkmSettings& s, const MemoryInputs& in,
                           double gap, const std::string& what) {
  const MemoryResult exact = read(Device::reference(), z, s, in);
  const MemoryResult fast = read(Device::cpu(), z, s, in);
  const int64_t k = s.topk, n = s.n_subkeys;
  int64_t ranks = 0, different = 0;
  for (int64_t t = 0; t < z.batch * z.time; ++t) {
    for (int64_t book = 0; book < s.heads * 2; ++book) {
      std::set<double> seen;
      for (int64_t r = 0; r < k; ++r, ++ranks) {
        const auto at = static_cast<size_t>((t * s.heads * 2 + book) * k + r);
        const auto a = static_cast<int64_t>(fast.ids[at]), b = static_cast<int64_t>(exact.ids[at]);
        EXPECT_TRUE(a >= 0 && a < n && seen.insert(fast.ids[at]).second) << what;
        different += a != b ? 1 : 0;
        ASSERT_NEAR(score(z, s, in, t, book, a), score(z, s, in, t, book, b), gap)
            << what << ": token " << t << ", codebook " << book << ", rank " << r << ", sub-keys "
            << a << " and " << b;
      }
    }
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t r = 0; r < k; ++r, ++ranks) {
        const auto at = static_cast<size_t>((t * s.heads + h) * k + r);
        const auto sum = [&](double slot) {
          const auto id = static_cast<int64_t>(slot);
          return score(z, s, in, t, 2 * h, id / n) + score(z, s, in, t, 2 * h + 1, id % n);
        };
        different += fast.slots[at] != exact.slots[at] ? 1 : 0;
        ASSERT_NEAR(sum(fast.slots[at]), sum(exact.slots[at]), 2 * gap)
            << what << ": token " << t << ", head " << h << ", rank " << r;
      }
    }
  }
  EXPECT_LE(different, ranks / 100) << what;
}

TEST(FwpkmSelect, AsTheReference) {
  for (const int32_t n : {2, 8, 17, 40, 512}) {
    for (const int32_t k : std::set<int32_t>{1, 2, std::min(n, 8), n / 2, n}) {
      // Sorting all k*k sums is what the reference spends its time on.
      const int64_t time = k > 200 ? 6 : k > 30 ? 12 : 70;
      for (const int32_t heads : {1, 4}) {
        if (k > 200 && heads > 1) {
          continue;
        }
        for (uint64_t seed = 0; seed < (n < 512 ? 4 : 2); ++seed) {
          const MemorySizes z{1, time, 3 + 8 * static_cast<int64_t>(seed), 1};
          for (const bool dot : {false, true}) {
            const FwpkmSettings s = read_settings(heads, n, k, dot);
            expect_same_selection(
                z, s, draw_inputs(z, s, seed), 1e-5,
                fmt::format("n={}, k={}, heads={}, seed={}, dot={}", n, k, heads, seed, dot));
          }
        }
      }
    }
  }
}

// Queries and keys far from zero and close to each other: |q|^2 - 2qK + |K|^2 would have no correct
// digit left.
TEST(FwpkmSelect, FarFromZero) {
  for (const auto& [n, k] : {std::pair{17, 5}, {40, 8}, {512, 8}}) {
    for (const double spread : {1.0, 0.01}) {
      const MemorySizes z{1, 40, 16, 1};
      const FwpkmSettings s = read_settings(2, n, k);
      MemoryInputs in = draw_inputs(z, s, 7);
      for (Values* x : {&in.q, &in.keys}) {
        for (double& value : *x) {
          value = static_cast<float>(100 + spread * value);
        }
      }
      expect_same_selection(z, s, in, 1e-5, fmt::format("n={}, spread={}", n, spread));
    }
  }
}

// Makes keys and queries full of ties, whose scores are exact or equal in every precision.
enum class Ties { kWhole, kCopies, kAllEqual, kQueriesAreKeys, kZero };

MemoryInputs draw_ties(const MemorySizes& z, const FwpkmSettings& s, Ties ties, uint64_t seed) {
  MemoryInputs in = draw_inputs(z, s, seed);
  const int64_t books = s.heads * 2, n = s.n_subkeys;
  const Random random(seed, 17);
  uint64_t next = 0;
  const auto key = [&](int64_t book, int64_t i) {
    return in.keys.begin() + (book * n + i) * z.half;
  };
  switch (ties) {
    case Ties::kWhole:  // -1, 0 and 1
      for (Values* x : {&in.q, &in.keys}) {
        for (double& value : *x) {
          value = static_cast<double>(random.bits_at(next++) % 3) - 1;
        }
      }
      break;
    case Ties::kCopies:  // three different sub-keys, in any order
      for (int64_t i = 0; i < books * n; ++i) {
        const auto from = static_cast<int64_t>(random.bits_at(next++) % 3);
        if (i % n >= 3) {
          std::copy_n(key(i / n, std::min(from, n - 1)), z.half, key(i / n, i % n));
        }
      }
      break;
    case Ties::kAllEqual:
      for (int64_t i = 0; i < books * n; ++i) {
        std::copy_n(key(i / n, 0), z.half, key(i / n, i % n));
      }
      break;
    case Ties::kQueriesAreKeys:  // each sub-key twice, each query one of them
      for (int64_t i = 0; i < books * n; ++i) {
        std::copy_n(key(i / n, i % n / 2), z.half, key(i / n, i % n));
      }
      for (int64_t i = 0; i < z.batch * z.time * books; ++i) {
        const auto from = static_cast<int64_t>(random.bits_at(next++) % static_cast<uint64_t>(n));
        std::copy_n(key(i % books, from), z.half, in.q.begin() + i * z.half);
      }
      break;
    case Ties::kZero:
      in.q.assign(in.q.size(), 0.0);
      in.keys.assign(in.keys.size(), 0.0);
      break;
  }
  return in;
}

TEST(FwpkmSelect, TiesGoToTheLowerIndex) {
  for (const Ties ties :
       {Ties::kWhole, Ties::kCopies, Ties::kAllEqual, Ties::kQueriesAreKeys, Ties::kZero}) {
    for (const auto& [n, k] : {std::pair{2, 2}, {8, 3}, {17, 17}, {40, 8}, {128, 32}, {512, 8}}) {
      for (const int64_t time : {1, 70}) {  // by direct distances, and by products
        for (const bool dot : {false, true}) {
          const MemorySizes z{1, time, 6, 1};
          const FwpkmSettings s = read_settings(2, n, k, dot);
          const MemoryInputs in = draw_ties(z, s, ties, 3);
          const MemoryResult exact = read(Device::reference(), z, s, in);
          const MemoryResult fast = read(Device::cpu(), z, s, in);
          const std::string what = fmt::format("kind {}, n={}, k={}, time={}, dot={}",
                                               static_cast<int>(ties), n, k, time, dot);
          EXPECT_EQ(fast.ids, exact.ids) << what;
          EXPECT_EQ(fast.slots, exact.slots) << what;
          // The rule itself, on both.
          for (size_t i = 0; i + 1 < exact.ids.size(); ++i) {
            const auto token = static_cast<int64_t>(i) / (4 * k),
                       book = static_cast<int64_t>(i) / k % 4;
            if (static_cast<int64_t>(i + 1) % k == 0) {
              continue;
            }
            const auto at = [&](size_t j) {
              return score(z, s, in, token, book, static_cast<int64_t>(fast.ids[j]));
            };
            EXPECT_TRUE(at(i) > at(i + 1) || (at(i) == at(i + 1) && fast.ids[i] < fast.ids[i + 1]))
                << what;
          }
        }
      }
    }
  }
}

TEST(FwpkmSelect, AllEqualReadsTheFirst) {
  const int32_t n = 40, k = 8;
  const MemorySizes z{1, 9, 6, 1};
  const FwpkmSettings s = read_settings(1, n, k);
  for (const Device device : {Device::reference(), Device::cpu()}) {
    const MemoryResult r = read(device, z, s, draw_ties(z, s, Ties::kAllEqual, 4));
    for (size_t i = 0; i < r.slots.size(); ++i) {
      // All sums are equal: slots 0 .. k-1, with sub-key 0 of the first codebook.
      EXPECT_EQ(r.slots[i], static_cast<double>(i % k));
      EXPECT_EQ(r.weights[i], 1.0 / k);
    }
    for (size_t i = 0; i < r.ids.size(); ++i) {
      EXPECT_EQ(r.ids[i], static_cast<double>(i % k));
    }
  }
}

// A token's selection does not depend on the call that it comes in, bit for bit.
TEST(FwpkmSelect, FewTokensAsMany) {
  constexpr int64_t kTokens = 200;
  for (const bool dot : {false, true}) {
    for (const auto& [n, k] : {std::pair{17, 5}, {40, 8}, {512, 8}}) {
      for (const bool ties : {false, true}) {
        const MemorySizes all{1, kTokens, 19, 5};
        const FwpkmSettings s = read_settings(2, n, k, dot);
        const MemoryInputs in = ties ? draw_ties(all, s, Ties::kCopies, 5) : draw_inputs(all, s, 5);
        const MemoryResult whole = read(Device::cpu(), all, s, in);
        FwpkmSettings chunked = s;
        chunked.chunk = 7;
        const MemoryResult in_chunks = read(Device::cpu(), all, chunked, in);
        EXPECT_EQ(in_chunks.ids, whole.ids);
        EXPECT_EQ(in_chunks.slots, whole.slots);
        EXPECT_EQ(in_chunks.weights, whole.weights);
        EXPECT_EQ(in_chunks.output, whole.output);
        for (const int64_t length : {1, 3, 5, 64}) {
          MemoryResult joined;
          const auto join = [](Values* to, const Values& from) {
            to->insert(to->end(), from.begin(), from.end());
          };
          // Not every token of the short calls: that would be slow with a table of 512*512.
          const int64_t end = std::min<int64_t>(kTokens, (n < 512 ? 40 : 5) * length);
          for (int64_t at = 0; at < end; at += length) {
            MemorySizes z = all;
            z.time = std::min(length, kTokens - at);
            const MemoryResult r =
                read(Device::cpu(), z, s, cut_inputs(in, all, at, at + z.time, in.keys));
            join(&joined.ids, r.ids);
            join(&joined.slots, r.slots);
            join(&joined.weights, r.weights);
            join(&joined.output, r.output);
          }
          const auto first = [](const Values& x, const Values& part) {
            return Values(x.begin(), x.begin() + static_cast<int64_t>(part.size()));
          };
          EXPECT_EQ(joined.ids, first(whole.ids, joined.ids)) << length;
          EXPECT_EQ(joined.slots, first(whole.slots, joined.slots)) << length;
          EXPECT_EQ(joined.weights, first(whole.weights, joined.weights)) << length;
          EXPECT_EQ(joined.output, first(whole.output, joined.output)) << length;
        }
      }
    }
  }
}

// Sub-keys in a crowd, so that the order by products is not that by distances: whatever the
// products say, what is read is what direct distances say.
TEST(FwpkmSelect, CrowdsAreLookedAtClosely) {
  for (const int64_t half : {16, 256}) {
    for (const double spread : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1}) {
      for (const bool dot : {false, true}) {
        const MemorySizes many{1, 192, half, 1}, few{1, 4, half, 1};
        const FwpkmSettings s = read_settings(1, 64, 4, dot);
        MemoryInputs in = draw_inputs(many, s, static_cast<uint64_t>(half));
        for (size_t i = 0; i < in.keys.size(); ++i) {
          in.keys[i] = static_cast<float>(in.keys[i % half] + spread * in.keys[i]);
        }
        const MemoryResult whole = read(Device::cpu(), many, s, in);
        for (int64_t at = 0; at < many.time; at += few.time) {
          const MemoryResult r =
              read(Device::cpu(), few, s, cut_inputs(in, many, at, at + few.time, in.keys));
          ASSERT_EQ(r.ids, cut_tokens(whole.ids, many, at, at + few.time)) << half << " " << spread;
          ASSERT_EQ(r.weights, cut_tokens(whole.weights, many, at, at + few.time));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fwpkm
