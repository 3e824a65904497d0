// Attention as the formula, one query and head at a time:
//   s_j = scale q.k_j,   lse = log(sum_j exp(s_j)),   p_j = exp(s_j - lse),   o = sum_j p_j v_j
// over the keys j that the query sees. Backward: see README.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/attention/attention.h"

namespace fwpkm {

// Calls fn(b, i, h, g, first, end) for every query i and head h; g is its key head, first..end-1
// are the keys it sees.
template <typename Fn>
void for_each_query(const OpArgs& args, Fn&& fn) {
  const auto settings = args.attr<AttentionSettings>();
  const View &q = args.in[0], &k = args.in[1];
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t i = 0; i < q.dim(1); ++i) {
      const int64_t position = i + settings.q_offset;
      int64_t first =
          settings.window > 0 ? std::max<int64_t>(0, position - settings.window + 1) : 0;
      if (const int32_t* starts = args.in[3].ptr<int32_t>(); starts != nullptr) {
        first = std::max<int64_t>(first, starts[b * q.dim(1) + i]);
      }
      const int64_t end = std::min(k.dim(1), position + 1);
      for (int64_t h = 0; h < q.dim(2); ++h) {
        fn(b, i, h, h / (q.dim(2) / k.dim(2)), first, end);
      }
    }
  }
}

// The features of token t, head h of a view [B, T, H, D].
template <typename T>
T* token_head(const View& view, int64_t b, int64_t t, int64_t h) {
  return view.ptr<T>() + b * view.stride(0) + t * view.stride(1) + h * view.stride(2);
}

template <typename T>
T dot_product(const T* a, const T* b, int64_t width) {
  T sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// in: q, k, v. out: o. saved: lse.
template <typename T>
void attention_forward_reference(const OpArgs& args) {
  const View &q = args.in[0], &k = args.in[1], &v = args.in[2], &o = args.out[0];
  const T scale = T(args.attr<AttentionSettings>().scale);
  const int64_t width = q.dim(3);
  for_each_query(args, [&](int64_t b, int64_t i, int64_t h, int64_t g, int64_t first, int64_t end) {
    const T* query = token_head<T>(q, b, i, h);
    T* out = token_head<T>(o, b, i, h);
    const auto score = [&](int64_t j) {
      return scale * dot_product(query, token_head<T>(k, b, j, g), width);
    };
    T largest = score(first);
    for (int64_t j = first; j < end; ++j) {
      largest = std::max(largest, score(j));
    }
    T total = 0;
    std::fill(out, out + width, T(0));
    for (int64_t j = first; j < end; ++j) {
      const T e = std::exp(score(j) - largest);
      total += e;
      for (int64_t c = 0; c < width; ++c) {
        out[c] += e * token_head<T>(v, b, j, g)[c];
      }
    }
    for (int64_t c = 0; c < width; ++c) {
      out[c] /= total;
    }
    if (args.saved[0]) {
      args.saved[0].ptr<T>()[(b * q.dim(2) + h) * q.dim(1) + i] = largest + std::log(total);
    }
  });
}

template <typename T>
void attention_backward_reference(const OpArgs& args) {
  const View &q = args.in[0], &k = args.in[1], &v = args.in[2], &o = args.out[0];
  const T scale = T(args.attr<AttentionSettings>().scale);
  const int64_t width = q.dim(3);
  for (int n = 0; n < 3; ++n) {
    if (args.din[n] && !args.accumulate[n]) {
      fill_zero(args.din[n]);
    }
  }
  for_each_query(args, [&](int64_t b, int64_t i, int64_t h, int64_t g, int64_t first, int64_t end) {
    const T* query = token_head<T>(q, b, i, h);
    const T* grad = token_head<T>(args.dout[0], b, i, h);
    const T lse = args.saved[0].ptr<T>()[(b * q.dim(2) + h) * q.dim(1) + i];
    const T delta = dot_product<T>(grad, token_head<T>(o, b, i, h), width);
    for (int64_t j = first; j < end; ++j) {
      const T* key = token_head<T>(k, b, j, g);
      const T p = std::exp(scale * dot_product(query, key, width) - lse);
      const T dp = dot_product<T>(grad, token_head<T>(v, b, j, g), width);
      const T ds = scale * p * (dp - delta);
      const auto add = [&](const View& to, int64_t t, int64_t head, T factor, const T* what) {
        if (to) {
          for (int64_t c = 0; c < width; ++c) {
            token_head<T>(to, b, t, head)[c] += factor * what[c];
          }
        }
      };
      add(args.din[0], i, h, ds, key);
      add(args.din[1], j, g, ds, query);
      add(args.din[2], j, g, p, grad);
    }
  });
}

}  // namespace fwpkm
