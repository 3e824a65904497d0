#include "ops/fwpkm/plan.h"

#include <algorithm>
#include <cmath>

namespace fwpkm {

void group_by_subkey(const FwpkmSizes& s, const ChunkTokens& tokens, const int32_t* ids,
                     const SubkeyGroups& groups) {
  parallel_items(s.books, [&](int64_t book) {
    int32_t* starts = groups.starts + book * (s.n + 1);
    int32_t* entries = groups.entries + book * groups.stride;
    std::fill_n(starts, s.n + 1, 0);
    const auto ids_of = [&](int64_t j) { return ids + (tokens.token(j) * s.books + book) * s.k; };
    for (int64_t j = 0; j < tokens.count; ++j) {
      for (int64_t r = 0; r < s.k; ++r) {
        ++starts[ids_of(j)[r]];
      }
    }
    int32_t total = 0;
    for (int64_t i = 0; i <= s.n; ++i) {
      total += starts[i];
      starts[i] = total;  // the end of sub-key i; filling from the back makes it the start
    }
    for (int64_t j = tokens.count - 1; j >= 0; --j) {
      for (int64_t r = s.k - 1; r >= 0; --r) {
        entries[--starts[ids_of(j)[r]]] = static_cast<int32_t>(j * s.k + r);
      }
    }
  });
}

double addressing_push(const FwpkmSizes& s, int64_t c, const ChunkTokens& tokens,
                       const int32_t* ids, const float* scores, const KeyPush& to) {
  const auto eps = static_cast<float>(kMarginalEps);
  const auto lambda = static_cast<float>(s.set.addr_weight);
  const float share = 1.0f / static_cast<float>(s.marginal_tokens(c));
  constexpr int64_t kGrain = 16;
  parallel_ranges(tokens.count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t book = 0; book < s.books; ++book) {
        const float* score = scores + (tokens.token(j) * s.books + book) * s.k;
        float* p = to.p + (j * s.books + book) * s.k;
        const float highest = *std::max_element(score, score + s.k);
        float total = 0;
        for (int64_t r = 0; r < s.k; ++r) {
          total += p[r] = std::exp(score[r] - highest);
        }
        for (int64_t r = 0; r < s.k; ++r) {
          p[r] /= total;
        }
      }
    }
  });
  // Each marginal is summed by one thread, in the order of heads and tokens.
  parallel_items(s.marginals(), [&](int64_t m) {
    float *pbar = to.pbar + m * s.n, *slope = to.slope + m * s.n;
    std::fill_n(pbar, s.n, 0.0f);
    for (int64_t book = m; book < s.books; book += s.marginals()) {
      for (int64_t j = 0; j < tokens.count; ++j) {
        const int32_t* id = ids + (tokens.token(j) * s.books + book) * s.k;
        const float* p = to.p + (j * s.books + book) * s.k;
        for (int64_t r = 0; r < s.k; ++r) {
          pbar[id[r]] += p[r];
        }
      }
    }
    for (int64_t i = 0; i < s.n; ++i) {
      if (pbar[i] > 0) {
        pbar[i] *= share;
        slope[i] = std::log(pbar[i] + eps) + pbar[i] / (pbar[i] + eps);
      }
    }
  });
  parallel_ranges(tokens.count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t book = 0; book < s.books; ++book) {
        const int32_t* id = ids + (tokens.token(j) * s.books + book) * s.k;
        const float* p = to.p + (j * s.books + book) * s.k;
        const float* slope = to.slope + s.marginal(book) * s.n;
        float* push = to.push + (j * s.books + book) * s.k;
        float mean = 0;
        for (int64_t r = 0; r < s.k; ++r) {
          mean += p[r] * slope[id[r]];
        }
        for (int64_t r = 0; r < s.k; ++r) {
          push[r] = lambda * p[r] * (slope[id[r]] - mean) * share;
        }
      }
    }
  });
  double loss = 0;
  for (int64_t i = 0; i < s.marginals() * s.n; ++i) {
    loss += to.pbar[i] > 0 ? to.pbar[i] * std::log(to.pbar[i] + eps) : 0.0;
  }
  return s.set.addr_weight * loss;
}

float memory_mean(const FwpkmSizes& s, const ChunkTokens& tokens) {
  return 1.0f / static_cast<float>(std::max<int64_t>(1, s.batch * tokens.writers) * s.dv);
}

void memory_push(const FwpkmSizes& s, const ChunkTokens& tokens, const int32_t* picks,
                 const float* weights, const float* gates, const KeyPush& to) {
  const float share = memory_mean(s, tokens);
  parallel_ranges(tokens.count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      float* push = to.push + j * s.books * s.k;
      std::fill_n(push, s.books * s.k, 0.0f);
      if (!tokens.writes(j)) {
        continue;
      }
      const int64_t t = tokens.token(j);
      const float *w = weights + t * s.reads, *along = to.along + j * s.reads;
      const float scale = share * (gates == nullptr ? 1.0f : gates[t]);
      float mean = 0;
      for (int64_t r = 0; r < s.reads; ++r) {
        mean += w[r] * along[r];
      }
      for (int64_t r = 0; r < s.reads; ++r) {
        const float ds = scale * w[r] * (along[r] - mean);
        const int64_t first = r / s.k * 2 * s.k, pick = picks[t * s.reads + r];
        push[first + pick / s.k] += ds;
        push[first + s.k + pick % s.k] += ds;
      }
    }
  });
}

}  // namespace fwpkm
