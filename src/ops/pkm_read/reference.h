// The read as the formula; README.md derives the backward.
#pragma once

#include <cmath>
#include <vector>

#include "memory/topk.h"
#include "ops/common/rows.h"
#include "ops/pkm_read/pkm_read.h"

namespace fwpkm {

// in: q, keys, values. out: y, slots, weights.
template <typename T>
void pkm_read_forward_reference(const OpArgs& args) {
  const PkmSizes s(args);
  const T* q = args.in[0].ptr<T>();
  const T* keys = args.in[1].ptr<T>();
  const T* values = args.in[2].ptr<T>();
  std::vector<T> scores(static_cast<size_t>(s.n)), best[2], sums(static_cast<size_t>(s.k));
  std::vector<int32_t> ids[2];
  for (int m = 0; m < 2; ++m) {
    best[m].resize(static_cast<size_t>(s.k));
    ids[m].resize(static_cast<size_t>(s.k));
  }
  for (int64_t t = 0; t < s.tokens; ++t) {
    T* y = args.out[0].ptr<T>() + t * s.dv;
    std::fill_n(y, s.dv, T(0));
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int m = 0; m < 2; ++m) {
        const T* q_m = q + t * s.row + (h * 2 + m) * s.half;
        for (int64_t i = 0; i < s.n; ++i) {
          const T* key = keys + ((h * 2 + m) * s.n + i) * s.half;
          scores[i] = 0;
          for (int64_t c = 0; c < s.half; ++c) {
            scores[i] += q_m[c] * key[c];
          }
        }
        top_k_reference(scores.data(), s.n, s.k, best[m].data(), ids[m].data());
      }
      int32_t* slots = args.out[1].ptr<int32_t>() + t * s.reads + h * s.k;
      T* weights = args.out[2].ptr<T>() + t * s.reads + h * s.k;
      product_top_k_reference(best[0].data(), ids[0].data(), best[1].data(), ids[1].data(), s.k,
                              s.n, sums.data(), slots);
      T total = 0;
      for (int64_t r = 0; r < s.k; ++r) {
        weights[r] = std::exp(sums[r] - sums[0]);
        total += weights[r];
      }
      for (int64_t r = 0; r < s.k; ++r) {
        weights[r] /= total;
        for (int64_t c = 0; c < s.dv; ++c) {
          y[c] += weights[r] * values[slots[r] * s.dv + c];
        }
      }
    }
  }
}

template <typename T>
void pkm_read_backward_reference(const OpArgs& args) {
  const PkmSizes s(args);
  const T* q = args.in[0].ptr<T>();
  const T* keys = args.in[1].ptr<T>();
  const T* values = args.in[2].ptr<T>();
  T *dq = args.din[0].ptr<T>(), *dkeys = args.din[1].ptr<T>(), *dvalues = args.din[2].ptr<T>();
  for (int i = 0; i < 3; ++i) {
    if (args.din[i] && !args.accumulate[i]) {
      fill_zero(args.din[i]);
    }
  }
  const Rows dy_rows(args.dout[0]);
  std::vector<T> dw(static_cast<size_t>(s.k));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const T* dy = args.dout[0].ptr<T>() + dy_rows[t];
    for (int64_t h = 0; h < s.heads; ++h) {
      const int32_t* slots = args.out[1].ptr<int32_t>() + t * s.reads + h * s.k;
      const T* weights = args.out[2].ptr<T>() + t * s.reads + h * s.k;
      T mean = 0;
      for (int64_t r = 0; r < s.k; ++r) {
        dw[r] = 0;
        for (int64_t c = 0; c < s.dv; ++c) {
          dw[r] += dy[c] * values[slots[r] * s.dv + c];
          if (dvalues != nullptr) {
            dvalues[slots[r] * s.dv + c] += weights[r] * dy[c];
          }
        }
        mean += weights[r] * dw[r];
      }
      for (int64_t r = 0; r < s.k; ++r) {
        const T ds = weights[r] * (dw[r] - mean);
        for (int m = 0; m < 2; ++m) {
          const int64_t i = m == 0 ? slots[r] / s.n : slots[r] % s.n;
          const int64_t q_at = t * s.row + (h * 2 + m) * s.half;
          const int64_t key_at = ((h * 2 + m) * s.n + i) * s.half;
          for (int64_t c = 0; c < s.half; ++c) {
            if (dq != nullptr) {
              dq[q_at + c] += ds * keys[key_at + c];
            }
            if (dkeys != nullptr) {
              dkeys[key_at + c] += ds * q[q_at + c];
            }
          }
        }
      }
    }
  }
}

}  // namespace fwpkm
