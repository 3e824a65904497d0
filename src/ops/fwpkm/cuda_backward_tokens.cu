// Backward token by token: a warp has a token, and does all that needs no other.
#include "ops/fwpkm/cuda_backward.cuh"

namespace fwpkm {
namespace {

struct Token {
  int j, t;
  bool writes;
  float gate = 0, eta = 0;
  int64_t read;  // its first read, of all
  int64_t own;   // and of the chunk's

  __device__ Token(const FwpkmCall& call, const FwpkmSpan& span, int number, float step)
      : j(number), t(span.token(number)), writes(span.writes(number)) {
    read = static_cast<int64_t>(t) * call.reads;
    own = static_cast<int64_t>(j) * call.reads;
    if (!writes) {
      return;
    }
    gate = gate_of(call, t);
    eta = step;
    if (call.rewrite) {
      float squares = 0;
      for (int r = threadIdx.x % 32; r < call.reads; r += 32) {
        squares = fmaf(call.weights[read + r], call.weights[read + r], squares);
      }
      eta = 1.0f / warp_sum(squares);
    }
  }
};

// The gradient of the row that a slot has after the chunk, or null.
__device__ const float* row_gradient(const FwpkmCall& call, const FwpkmBack& back,
                                     const Token& token, int r) {
  const int chain = token.writes ? call.chain[token.read + r] : -1;
  return chain >= 0 && back.live[chain] != 0 ? back.dvalues + static_cast<int64_t>(chain) * call.dv
                                             : nullptr;
}

// The row that a read found, but see late_values.
__device__ const float* row_behind(const FwpkmCall& call, const FwpkmBack& back, int64_t read) {
  const int last = back.late ? call.writes[static_cast<int64_t>(call.chain[read]) * 3 + 2] : -1;
  return value_row(call, last >= 0 ? last : call.source[read], call.slots[read]);
}

// To the target's gradient, the opposite of the error's.
template <typename T, int kRun>
__device__ void put_target(const FwpkmCall& call, const FwpkmBack& back, int t, int c,
                           const float (&de)[kRun]) {
  float x[kRun] = {};
  add_run(-1.0f, de, x);
  put_wide(static_cast<T*>(back.dv) + static_cast<int64_t>(t + call.lookahead) * call.dv + c, x,
           back.add_v);
}

// Up to kReads reads, whose rows all are in registers at once. Leaves dw; -> dg.
template <typename T, int kRun, int kReads>
__device__ float through_few(const FwpkmCall& call, const FwpkmBack& back, const Token& token) {
  struct Row {
    const float *value, *gradient;
  };
  __shared__ Row all_rows[kFwpkmWarps][kReads];
  __shared__ float2 all_scales[kFwpkmWarps][kReads];
  const int lane = threadIdx.x % 32;
  Row* rows = all_rows[threadIdx.x / 32];
  float2* scales = all_scales[threadIdx.x / 32];  // of values and gradients
  float weight = 0, share = 0;
  bool alive = false;
  if (lane < kReads) {
    Row row = {nullptr, nullptr};
    if (lane < call.reads) {
      const int64_t read = token.read + lane;
      weight = call.weights[read];
      row.value = value_row(call, call.source[read], call.slots[read]);
      row.gradient = row_gradient(call, back, token, lane);
      alive = row.gradient != nullptr;
      share = alive ? call.share[read] : 0.0f;
    }
    rows[lane] = row;
    scales[lane] = {weight, -share * token.eta * token.gate * weight};
  }
  const unsigned live = __ballot_sync(kWholeWarp, alive);
  __syncwarp();
  const T* dy = static_cast<const T*>(back.dy) + back.dy_rows[token.t];
  float* dreads = back.dreads + static_cast<int64_t>(token.j) * call.dv;
  float x[kReads] = {}, y[kReads] = {};
  for (int c = lane * kRun; c < call.dv; c += 32 * kRun) {
    float values[kReads][kRun], dread[kRun], de[kRun] = {};
#pragma unroll
    for (int r = 0; r < kReads; ++r) {
      if (r < call.reads) {
        load_run(global_pointer(rows[r].value) + c, values[r]);
      }
    }
    load_run(dy + c, dread);
    if (live != 0) {
      float gradients[kReads][kRun], error[kRun] = {}, target[kRun];
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
        if ((live >> r & 1) != 0) {
          load_run(global_pointer(rows[r].gradient) + c, gradients[r]);
        }
      }
      load_run(target_of<T>(call, token.t) + c, target);
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
        if (r < call.reads) {
          add_run(scales[r].x, values[r], error);
        }
      }
      add_run(-1.0f, target, error);
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
        if ((live >> r & 1) != 0) {
          add_run(scales[r].y, gradients[r], de);
          x[r] = dot_run(gradients[r], error, x[r]);
        }
      }
      add_run(1.0f, de, dread);
    }
    if (token.writes && back.dv != nullptr) {
      put_target<T>(call, back, token.t, c, de);
    }
    if (!back.last) {
      store_wide(dreads + c, dread);
    }
#pragma unroll
    for (int r = 0; r < kReads; ++r) {
      if (r < call.reads) {
        y[r] = dot_run(dread, values[r], y[r]);
      }
    }
  }
  float x_own = 0, y_own = 0;
#pragma unroll
  for (int r = 0; r < kReads; ++r) {
    const float y_sum = warp_sum(y[r]), x_sum = live != 0 ? warp_sum(x[r]) : 0.0f;
    if (lane == r) {
      y_own = y_sum;
      x_own = share * x_sum;
    }
  }
  const float eta = token.eta, deta = warp_sum(-token.gate * weight * x_own);
  if (lane < call.reads) {
    back.dw[token.own + lane] =
        y_own - eta * token.gate * x_own - (call.rewrite ? 2 * weight * eta * eta * deta : 0.0f);
  }
  return warp_sum(-eta * weight * x_own);
}

// Through the pushes of the memory loss to the weights (dw) and to <e, V> (dalong); -> dg.
__device__ float through_push(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                              const Token& token) {
  const float share = 1.0f / (static_cast<float>(call.batch * span.writers) * call.dv);
  const float *weights = call.weights + token.read, *along = back.along + token.own;
  const auto pull = [&](int r) {
    const float* gam = back.gam + 2 * (token.own + r / call.k * call.k);
    const int pick = call.picks[token.read + r];
    return gam[pick / call.k] + gam[call.k + pick % call.k];
  };
  float mean = 0, pull_mean = 0, dgate = 0;
  for (int r = threadIdx.x % 32; r < call.reads; r += 32) {
    mean = fmaf(weights[r], along[r], mean);
    pull_mean = fmaf(weights[r], pull(r), pull_mean);
  }
  mean = warp_sum(mean);
  pull_mean = warp_sum(pull_mean);
  for (int r = threadIdx.x % 32; r < call.reads; r += 32) {
    const float away = along[r] - mean;
    back.dalong[token.own + r] = share * token.gate * weights[r] * (pull(r) - pull_mean);
    back.dw[token.own + r] = share * token.gate * (away * pull(r) - along[r] * pull_mean);
    dgate += share * weights[r] * away * pull(r);
  }
  return dgate;
}

// Any number of reads, and all modes; rows are fetched again where they are needed again.
template <typename T, int kRun>
__device__ float through_any(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                             const Token& token) {
  const int lane = threadIdx.x % 32;
  const bool memory = back.memory && token.writes;
  float dgate = 0, deta = 0;
  if (memory) {
    dgate = through_push(call, span, back, token);
  } else {
    for (int r = lane; r < call.reads; r += 32) {
      back.dw[token.own + r] = 0;
    }
  }
  __syncwarp();
  const T* dy = static_cast<const T*>(back.dy) + back.dy_rows[token.t];
  float* dreads = back.dreads + static_cast<int64_t>(token.j) * call.dv;
  float* errors = back.errors + static_cast<int64_t>(token.j) * call.dv;
  for (int first = 0; first < call.dv; first += kFwpkmGroups * 32 * kRun) {
    float error[kFwpkmGroups][kRun] = {}, de[kFwpkmGroups][kRun] = {};
    if (token.writes) {
      add_read_rows<kRun>(call, token.t, first, error);
    }
    for (int r = 0; r < call.reads && token.writes; ++r) {
      const int64_t read = token.read + r;
      const float* gradient = row_gradient(call, back, token, r);
      const float scale = -call.share[read] * token.eta * token.gate * call.weights[read];
      const float* value = value_row(call, call.source[read], call.slots[read]);
      for_groups<kRun, kFwpkmGroups>(first, call.dv, [&](int g, int c) {
        float x[kRun];
        if (gradient != nullptr) {
          load_run(gradient + c, x);
          add_run(scale, x, de[g]);
        }
        if (memory) {
          load_run(value + c, x);
          add_run(back.dalong[token.own + r], x, de[g]);
        }
      });
    }
    for_groups<kRun, kFwpkmGroups>(first, call.dv, [&](int g, int c) {
      float x[kRun];
      if (token.writes) {
        load_run(target_of<T>(call, token.t) + c, x);
        add_run(-1.0f, x, error[g]);
        store_wide(errors + c, error[g]);
        if (back.dv != nullptr) {
          put_target<T>(call, back, token.t, c, de[g]);
        }
      }
      load_run(dy + c, x);
      add_run(1.0f, x, de[g]);
      store_wide(dreads + c, de[g]);
    });
  }
  for (int r = 0; r < call.reads; ++r) {
    const int64_t read = token.read + r;
    const float* gradient = row_gradient(call, back, token, r);
    const float* value = row_behind(call, back, read);
    float x = 0, y = 0;
    for (int c = lane * kRun; c < call.dv; c += 32 * kRun) {
      float a[kRun], b[kRun];
      load_run(dreads + c, a);
      load_run(value + c, b);
      y = dot_run(a, b, y);
      if (gradient != nullptr) {
        load_run(errors + c, a);
        load_run(gradient + c, b);
        x = dot_run(a, b, x);
      }
    }
    x = call.write ? call.share[read] * warp_sum(x) : 0.0f;
    y = warp_sum(y);
    if (lane == r % 32) {
      const float weight = call.weights[read];
      dgate -= token.eta * weight * x;
      deta -= token.gate * weight * x;
      back.dw[token.own + r] += y - token.eta * token.gate * x;
    }
  }
  if (call.rewrite) {
    deta = warp_sum(deta);
    for (int r = lane; r < call.reads; r += 32) {
      back.dw[token.own + r] -= 2 * call.weights[token.read + r] * token.eta * token.eta * deta;
    }
  }
  return warp_sum(dgate);
}

// The sum over the half of a warp that this lane is in.
__device__ float half_sum(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, step);
  }
  return x;
}

// What the addressing loss's gradient gives to a token's scores in one codebook, where the keys
// have gradients. A half of a warp has a codebook.
struct ThroughAddressing {
  const float *p, *gam, *a, *dpbar;
  const int32_t* ids;
  float lambda, share;
  float a_mean = 0, gam_mean = 0, dp_mean = 0;

  __device__ ThroughAddressing(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                               int64_t all, int64_t own, int book) {
    const int64_t marginal = static_cast<int64_t>(book % call.marginals) * call.n;
    p = back.p + all;
    gam = back.gam + own;
    a = back.slope + static_cast<int64_t>(span.number) * call.marginals * call.n + marginal;
    dpbar = back.dpbar + marginal;
    ids = call.ids + all;
    lambda = call.addr_weight;
    share = 1.0f / marginal_tokens(call, span);
    for (int r = threadIdx.x % 16; r < call.k; r += 16) {
      a_mean = fmaf(p[r], a[ids[r]], a_mean);
      gam_mean = fmaf(p[r], lambda * gam[r], gam_mean);
    }
    a_mean = half_sum(a_mean);
    gam_mean = half_sum(gam_mean);
    for (int r = threadIdx.x % 16; r < call.k; r += 16) {
      dp_mean = fmaf(p[r], dp(r), dp_mean);
    }
    dp_mean = half_sum(dp_mean);
  }
  __device__ float dp(int r) const {
    const float slope = a[ids[r]];
    return (lambda * gam[r] * (slope - a_mean) - slope * gam_mean + dpbar[ids[r]]) * share;
  }
  __device__ float ds(int r) const { return p[r] * (dp(r) - dp_mean); }
};

// From dw to the gradients of the token's sub-scores: a head at a time, half a warp for each of its
// codebooks.
__device__ void through_softmax(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back,
                                const Token& token) {
  const int lane = threadIdx.x % 32;
  const float *weights = call.weights + token.read, *dw = back.dw + token.own;
  float mean = 0;
  for (int r = lane; r < call.reads; r += 32) {
    mean = fmaf(weights[r], dw[r], mean);
  }
  mean = warp_sum(mean);
  for (int head = 0; head < call.heads; ++head) {
    const int book = 2 * head + lane / 16;
    const int64_t all = 2 * token.read + book * call.k, own = 2 * token.own + book * call.k;
    const auto store = [&](auto&& from_keys) {
      for (int rank = lane % 16; rank < call.k; rank += 16) {
        float sum = from_keys(rank);
#pragma unroll 8
        for (int r = head * call.k; r < (head + 1) * call.k; ++r) {
          const int pick = call.picks[token.read + r];
          const bool part = (lane < 16 ? pick / call.k : pick % call.k) == rank;
          const float slot = weights[r] * (dw[r] - mean);
          sum += part ? slot : 0.0f;
        }
        back.ds[own + rank] = sum;
      }
    };
    const auto from_slope = [&](int rank) {  // r in 2 r (q - K) goes through the score
      return back.keys_live && !call.dot ? back.push[all + rank] * back.gam[own + rank] : 0.0f;
    };
    if (back.keys_live && call.addr_loss) {
      const ThroughAddressing through(call, span, back, all, own, book);
      store([&](int rank) { return from_slope(rank) + through.ds(rank); });
    } else {
      store(from_slope);
    }
  }
  __syncwarp();
}

// From the scores' gradients to the query's.
template <typename T, int kRun>
__device__ void to_query(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                         const FwpkmBack& back, const Token& token, int book) {
  constexpr int kGroups = kFwpkmKeyGroups, kAhead = 4;
  const int lane = threadIdx.x % 32;
  const int64_t all = (static_cast<int64_t>(token.t) * call.books + book) * call.k;
  const int64_t own = (static_cast<int64_t>(token.j) * call.books + book) * call.k;
  const T* query = query_of<T>(call, token.t, book);
  T* dq = static_cast<T*>(back.dq) + static_cast<int64_t>(token.t) * call.row + book * call.half;
  const auto row_of = [&](const float* rows, int number, int i) {
    return rows + static_cast<int64_t>(__shfl_sync(kWholeWarp, number, i)) * call.half;
  };
  for (int first = 0; first < call.half; first += kGroups * 32 * kRun) {
    float q[kGroups][kRun] = {}, sum[kGroups][kRun] = {};
    if (!call.dot) {
      for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) { load_run(query + c, q[g]); });
    }
    for (int begin = 0; begin < call.k; begin += 32) {
      const int some = min(32, call.k - begin);
      float by_score = 0, by_key = 0;
      int key = 0, dkey = 0;
      if (lane < some) {
        const int id = call.ids[all + begin + lane];
        const float slope = slope_of(call, call.scores[all + begin + lane]);
        by_score = slope * back.ds[own + begin + lane];
        by_key = back.keys_live ? -slope * back.push[all + begin + lane] : 0.0f;
        key = key_read(call, span, groups, book, id);
        dkey = book * call.n + id;
      }
      for (int r = 0; r < some; r += kAhead) {
        float x[kAhead][kGroups][kRun], y[kAhead][kGroups][kRun];
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int i = min(r + u, some - 1);
          const float *k = row_of(keys_read(call), key, i), *dk = row_of(back.dkeys, dkey, i);
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int c) {
            load_run(k + c, x[u][g]);
            if (back.keys_live) {
              load_run(dk + c, y[u][g]);
            }
          });
        }
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int i = min(r + u, some - 1);
          const float a = __shfl_sync(kWholeWarp, by_score, i);
          const float b = __shfl_sync(kWholeWarp, by_key, i);
          if (r + u >= some) {
            continue;
          }
          for_groups<kRun, kGroups>(first, call.half, [&](int g, int) {
            add_run(-1.0f, q[g], x[u][g]);  // q is 0 for dot products
            add_run(a, x[u][g], sum[g]);
            if (back.keys_live) {
              add_run(b, y[u][g], sum[g]);
            }
          });
        }
      }
    }
    for_groups<kRun, kGroups>(first, call.half,
                              [&](int g, int c) { put_wide(dq + c, sum[g], back.add_q); });
  }
}

// kReads 0: any number of reads.
template <typename T, int kRun, int kReads>
__global__ void __launch_bounds__(kFwpkmThreads)
    token_kernel(FwpkmCall call, FwpkmSpan span, FwpkmGroups groups, FwpkmBack back, float step) {
  const int j = blockIdx.x * kFwpkmWarps + static_cast<int>(threadIdx.x / 32);
  if (j >= span.count) {
    return;
  }
  const Token token(call, span, j, step);
  const int lane = threadIdx.x % 32;
  // Nobody writes towards the first tokens of a chunk.
  if (back.dv != nullptr && !back.add_v && (!call.write || j % span.length < call.lookahead)) {
    T* dv = static_cast<T*>(back.dv) + static_cast<int64_t>(token.t) * call.dv;
    for (int c = lane; c < call.dv; c += 32) {
      dv[c] = from_float<T>(0);
    }
  }
  float dgate = 0;
  if constexpr (kReads > 0) {
    dgate = through_few<T, kRun, kReads>(call, back, token);
  } else {
    dgate = through_any<T, kRun>(call, span, back, token);
  }
  if (back.dg != nullptr && lane == 0) {
    put(back.dg + token.t, dgate, back.add_g);
  }
  __syncwarp();
  through_softmax(call, span, back, token);
  for (int book = 0; book < call.books && back.dq != nullptr; ++book) {
    to_query<T, kRun>(call, span, groups, back, token, book);
  }
}

}  // namespace

void through_tokens(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                    const FwpkmBack& back, float step) {
  constexpr int kFew = 8;
  const bool few = call.reads <= kFew && !back.memory && !back.late;
  with_real_and_run(call, [&]<typename T, typename Run>(T*, Run) {
    const auto launch = [&](auto kernel) {
      kernel<<<fwpkm_blocks(span.count), kFwpkmThreads, 0, this_stream()>>>(call, span, groups,
                                                                            back, step);
    };
    if (few) {
      launch(&token_kernel<T, Run::value, kFew>);
    } else {
      launch(&token_kernel<T, Run::value, 0>);
    }
  });
  check_launch("fwpkm gradients of tokens");
}

}  // namespace fwpkm
