#include "ops/common/gemm.h"
#include "ops/common/rows.h"
#include "ops/pkm_read/plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pkm_read/cpu.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "memory/gather-inl.h"
#include "ops/common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {

// Up to this many tokens, scores are dot products that stream the keys once: oneDNN would repack
// them first.
constexpr int64_t kFewTokens = 4;

// scores [count, n] = q [count, half] (rows s.row apart) x keys [n, half]^T.
void few_scores(const PkmSizes& s, const float* q, int64_t count, const float* keys,
                float* scores) {
  const F32 d;
  int64_t j = 0;
  for (; j + 4 <= s.n; j += 4) {
    const float *a = keys + j * s.half, *b = a + s.half, *c = b + s.half, *e = c + s.half;
    for (int64_t t = 0; t < count; ++t) {
      const float* x = q + t * s.row;
      V32 sa = hn::Zero(d), sb = sa, sc = sa, se = sa;
      for_vectors(d, s.half, [&](int64_t i, size_t n) {
        const V32 v = load_part(d, x + i, n);
        sa = hn::MulAdd(v, load_part(d, a + i, n), sa);
        sb = hn::MulAdd(v, load_part(d, b + i, n), sb);
        sc = hn::MulAdd(v, load_part(d, c + i, n), sc);
        se = hn::MulAdd(v, load_part(d, e + i, n), se);
      });
      float* out = scores + t * s.n + j;
      out[0] = hn::GetLane(hn::SumOfLanes(d, sa));
      out[1] = hn::GetLane(hn::SumOfLanes(d, sb));
      out[2] = hn::GetLane(hn::SumOfLanes(d, sc));
      out[3] = hn::GetLane(hn::SumOfLanes(d, se));
    }
  }
  for (; j < s.n; ++j) {
    for (int64_t t = 0; t < count; ++t) {
      scores[t * s.n + j] = dot(d, q + t * s.row, keys + j * s.half, s.half);
    }
  }
}

}  // namespace

void pkm_forward(const OpArgs& args) {
  const PkmSizes s(args);
  const PkmForwardPlan plan(s, args.workspace);
  const float* q = args.in[0].ptr<float>();
  const float* keys = args.in[1].ptr<float>();
  const float* values = args.in[2].ptr<float>();
  float* y = args.out[0].ptr<float>();
  int32_t* slots = args.out[1].ptr<int32_t>();
  float* weights = args.out[2].ptr<float>();

  // The k best sub-keys: an item is a codebook of a head for a block of tokens.
  const int64_t blocks = pkm_blocks(s.tokens);
  parallel_items(s.heads * 2 * blocks, [&](int64_t item) {
    const int64_t book = item / blocks, begin = item % blocks * kPkmBlock;
    const int64_t count = HWY_MIN(kPkmBlock, s.tokens - begin);
    const float* queries = q + begin * s.row + book * s.half;
    const float* subkeys = keys + book * s.n * s.half;
    float* scores = plan.scores + thread_index() * HWY_MIN(kPkmBlock, s.tokens) * s.n;
    if (count <= kFewTokens) {
      few_scores(s, queries, count, subkeys, scores);
    } else {
      gemm(false, true, count, s.n, s.half, 1.0f, queries, s.row, subkeys, s.half, 0.0f, scores,
           s.n);
    }
    void* scratch = plan.topk + static_cast<size_t>(thread_index()) * plan.topk_bytes;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t at = ((begin + t) * s.heads * 2 + book) * s.k;
      top_k(scores + t * s.n, s.n, s.k, plan.best + at, plan.ids + at, scratch);
    }
  });

  // The k best slots, their weights and the sum of their values, token by token.
  constexpr int64_t kTokens = 8;
  parallel_items((s.tokens + kTokens - 1) / kTokens, [&](int64_t item) {
    const F32 d;
    void* scratch = plan.topk + static_cast<size_t>(thread_index()) * plan.topk_bytes;
    const int64_t end = HWY_MIN(s.tokens, (item + 1) * kTokens);
    for (int64_t t = item * kTokens; t < end; ++t) {
      int32_t* slot = slots + t * s.reads;
      float* weight = weights + t * s.reads;
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t a = (t * s.heads + h) * 2 * s.k, b = a + s.k;
        product_top_k(plan.best + a, plan.ids + a, plan.best + b, plan.ids + b, s.k, s.n,
                      weight + h * s.k, slot + h * s.k, scratch);
        softmax(d, weight + h * s.k, s.k);
      }
      sum_rows(
          d, [&](int64_t r) { return values + slot[r] * s.dv; }, weight, s.reads, s.dv,
          y + t * s.dv, false);
    }
  });
}

namespace {

// dw of every read, and dvalues unless null: reads sorted by slot, so that each row of the table is
// fetched once and has one owner, who adds in the order of tokens.
void value_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardPlan& plan) {
  const float* values = args.in[2].ptr<float>();
  const int32_t* slots = args.out[1].ptr<int32_t>();
  const float* weights = args.out[2].ptr<float>();
  const float* dy = args.dout[0].ptr<float>();
  float* dvalues = args.din[2].ptr<float>();
  const Rows dy_rows(args.dout[0]);
  if (dvalues != nullptr && !args.accumulate[2]) {
    parallel_ranges(s.n * s.n, 64, [&](int64_t begin, int64_t end) {
      std::memset(dvalues + begin * s.dv, 0,
                  static_cast<size_t>((end - begin) * s.dv) * sizeof(float));
    });
  }
  const int64_t count = s.tokens * s.reads;
  const Placed* reads = sort_by_id(slots, count, s.n * s.n, plan.sort);
  const auto per_token = static_cast<uint32_t>(s.reads);
  const auto dy_of = [&](Placed read) {
    return dy + dy_rows[static_cast<uint32_t>(read.place()) / per_token];
  };
  constexpr int64_t kPiece = 256, kAhead = 2;
  parallel_items((count + kPiece - 1) / kPiece, [&](int64_t piece) {
    const F32 d;
    const int64_t last = HWY_MIN(count, (piece + 1) * kPiece);
    for_segments(reads, count, piece * kPiece, last, [&](int64_t begin, int64_t end) {
      const int64_t row = reads[begin].id() * s.dv;
      for (int64_t r = begin; r < end; ++r) {
        if (r + kAhead < count) {
          const Placed next = reads[r + kAhead];
          prefetch_row(dy_of(next), s.dv);
          if (next.id() != reads[r + kAhead - 1].id()) {
            prefetch_row(values + next.id() * s.dv, s.dv);
            if (dvalues != nullptr) {
              prefetch_row(dvalues + next.id() * s.dv, s.dv);
            }
          }
        }
        plan.dw[reads[r].place()] =
            dot_and_add(d, values + row, dy_of(reads[r]), weights[reads[r].place()], s.dv,
                        dvalues == nullptr ? nullptr : dvalues + row);
      }
    });
  });
}

// Through the softmax to the score gradients of sub-keys, added up over the slots that share one,
// and to dq.
void query_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardPlan& plan) {
  const float* keys = args.in[1].ptr<float>();
  const int32_t* slots = args.out[1].ptr<int32_t>();
  const float* weights = args.out[2].ptr<float>();
  float* dq = args.din[0].ptr<float>();
  const int64_t blocks = pkm_blocks(s.tokens);
  // Heads outside: a head's keys stay in the cache.
  parallel_items(s.heads * blocks, [&](int64_t item) {
    const F32 d;
    const int64_t h = item / blocks, first = item % blocks * kPkmBlock;
    const int64_t last = HWY_MIN(s.tokens, first + kPkmBlock);
    int32_t* places = plan.places + thread_index() * s.n;
    float* slot_ds = plan.slot_ds + thread_index() * s.k;
    std::fill_n(places, s.n, -1);
    for (int64_t t = first; t < last; ++t) {
      const int64_t at = t * s.reads + h * s.k;
      const float mean = dot(d, weights + at, plan.dw + at, s.k);
      for (int64_t r = 0; r < s.k; ++r) {
        slot_ds[r] = weights[at + r] * (plan.dw[at + r] - mean);
      }
      for (int64_t m = 0; m < 2; ++m) {
        const int64_t book = h * 2 + m;
        int32_t* ids = plan.ids + (book * s.tokens + t) * s.k;
        float* ds = plan.ds + (book * s.tokens + t) * s.k;
        int32_t count = 0;
        for (int64_t r = 0; r < s.k; ++r) {
          const auto slot = static_cast<uint32_t>(slots[at + r]), n = static_cast<uint32_t>(s.n);
          const uint32_t id = m == 0 ? slot / n : slot % n;
          if (places[id] < 0) {
            places[id] = count;
            ids[count] = static_cast<int32_t>(id);
            ds[count++] = slot_ds[r];
          } else {
            ds[places[id]] += slot_ds[r];
          }
        }
        for (int32_t i = 0; i < count; ++i) {
          places[ids[i]] = -1;
        }
        plan.counts[book * s.tokens + t] = count;
        if (dq != nullptr) {
          const float* subkeys = keys + book * s.n * s.half;
          sum_rows(
              d, [&](int64_t i) { return subkeys + ids[i] * s.half; }, ds, count, s.half,
              dq + t * s.row + book * s.half, args.accumulate[0]);
        }
      }
    }
  });
}

// dkeys: the lists of a codebook, sorted by sub-key, then a sum for each sub-key.
void key_gradients(const OpArgs& args, const PkmSizes& s, const PkmBackwardPlan& plan) {
  const float* q = args.in[0].ptr<float>();
  float* dkeys = args.din[1].ptr<float>();
  parallel_items(s.heads * 2, [&](int64_t book) {
    int32_t* starts = plan.starts + book * (s.n + 1);
    const int32_t* counts = plan.counts + book * s.tokens;
    const int32_t* ids = plan.ids + book * s.tokens * s.k;
    const float* ds = plan.ds + book * s.tokens * s.k;
    std::fill_n(starts, s.n + 1, 0);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int32_t i = 0; i < counts[t]; ++i) {
        ++starts[ids[t * s.k + i]];
      }
    }
    int32_t total = 0;
    for (int64_t i = 0; i <= s.n; ++i) {
      total += starts[i];
      starts[i] = total;  // the end of sub-key i; filling from the back makes it the start
    }
    for (int64_t t = s.tokens - 1; t >= 0; --t) {
      for (int32_t i = 0; i < counts[t]; ++i) {
        const int64_t to = book * s.tokens * s.k + --starts[ids[t * s.k + i]];
        plan.tokens[to] = static_cast<int32_t>(t);
        plan.weights[to] = ds[t * s.k + i];
      }
    }
  });
  constexpr int64_t kSubkeys = 16;
  const int64_t pieces = (s.n + kSubkeys - 1) / kSubkeys;
  parallel_items(s.heads * 2 * pieces, [&](int64_t item) {
    const F32 d;
    const int64_t book = item / pieces, first = item % pieces * kSubkeys;
    const int32_t* starts = plan.starts + book * (s.n + 1);
    const int32_t* tokens = plan.tokens + book * s.tokens * s.k;
    const float* weights = plan.weights + book * s.tokens * s.k;
    const float* queries = q + book * s.half;
    for (int64_t i = first; i < HWY_MIN(s.n, first + kSubkeys); ++i) {
      const int32_t* token = tokens + starts[i];
      sum_rows(
          d, [&](int64_t r) { return queries + token[r] * s.row; }, weights + starts[i],
          starts[i + 1] - starts[i], s.half, dkeys + (book * s.n + i) * s.half, args.accumulate[1]);
    }
  });
}

}  // namespace

void pkm_backward(const OpArgs& args) {
  const PkmSizes s(args);
  const PkmBackwardPlan plan(s, args.workspace);
  value_gradients(args, s, plan);
  if (args.din[0] || args.din[1]) {
    query_gradients(args, s, plan);
  }
  if (args.din[1]) {
    key_gradients(args, s, plan);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(pkm_forward);
HWY_EXPORT(pkm_backward);

void pkm_read_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(pkm_forward)(args);
}

void pkm_read_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(pkm_backward)(args);
}

size_t pkm_read_workspace_cpu(const OpArgs& args, bool backward) {
  const PkmSizes s(args);
  return backward ? PkmBackwardPlan(s, nullptr).bytes : PkmForwardPlan(s, nullptr).bytes;
}

}  // namespace fwpkm
#endif
