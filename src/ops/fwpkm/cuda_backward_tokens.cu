// Backward of the values, token by token: a warp has a token.
#include "ops/common/row_sums.cuh"
#include "ops/fwpkm/cuda_backward.cuh"
#include "ops/fwpkm/cuda_rows.cuh"

namespace fwpkm {
namespace {

struct Token {
  int j, t;
  bool writes;
  float gate = 0, eta = 0;
  int64_t read;  // its first read, of all
  int64_t own;   // and of the chunk's

  __device__ Token(const FwpkmCall& call, const SortedSpan& span, int reads, int number, float step)
      : j(number), t(span.token(number)), writes(span.writes(number)) {
    read = static_cast<int64_t>(t) * reads;
    own = static_cast<int64_t>(j) * reads;
    if (!writes) {
      return;
    }
    gate = gate_of(call, t);
    eta = step;
    if (call.rewrite) {
      float squares = 0;
      for (int r = threadIdx.x % 32; r < reads; r += 32) {
        squares = fmaf(call.weights[read + r], call.weights[read + r], squares);
      }
      eta = 1.0f / warp_sum(squares);
    }
  }
};

// The gradient of the row that a slot has after the chunk, or null.
template <typename T>
__device__ const T* row_gradient(const FwpkmCall& call, const FwpkmBack& back, const Token& token,
                                 int r) {
  const int chain = token.writes ? call.chain[token.read + r] : -1;
  return chain >= 0 && back.live[chain] != 0 ? row_of<T>(call, back.dvalues, chain) : nullptr;
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
  T* to = static_cast<T*>(back.dv) + static_cast<int64_t>(t + call.lookahead) * call.dv + c;
  float x[kRun];
  if (back.add_v) {
    load_run(to, x);
    add_run(-1.0f, de, x);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      x[i] = 0.0f - de[i];
    }
  }
  store_once(to, x);
}

// Up to kReads reads, whose rows all are in registers at once; kFull: just so many, of whole rows
// (with_full). Row: as in cuda_read.cu. Leaves dw; -> dg.
template <typename Row, typename T, int kRun, int kReads, bool kFull>
__device__ float through_few(const FwpkmCall& call, const FwpkmBack& back, const Token& token) {
  // Of a token: arrays, so that several reads can be taken at once, and what nobody wants before
  // the end, for which there are no registers.
  struct alignas(16) Reads {
    const float* values[kReads];
    const T* gradients[kReads];             // or null
    float weights[kReads], scales[kReads];  // of values and gradients
    float shares[kReads], eta, gate;
  };
  __shared__ Reads all[kFwpkmWarps];
  const int lane = threadIdx.x % 32, reads = kFull ? kReads : call.reads;
  Reads& own = all[threadIdx.x / 32];
  if (lane < kReads) {
    const float* value = nullptr;
    float weight = 0, share = 0;
    if (lane < reads) {
      const int64_t read = token.read + lane;
      weight = call.weights[read];
      value = value_row(call, call.source[read], call.slots[read]);
      share = token.writes ? call.share[read] : 0.0f;
    }
    own.values[lane] = value;
    own.gradients[lane] = nullptr;
    own.weights[lane] = weight;
    own.scales[lane] = -share * token.eta * token.gate * weight;
    own.shares[lane] = share;
    own.eta = token.eta;
    own.gate = token.gate;
  }
  __syncwarp();
  // Rows of values have long been there; of those after the chunk the kernel before wrote some.
  unsigned live = 0;
  const auto find_gradients = [&] {
    wait_for_earlier();
    const T* gradient = nullptr;
    if (lane < reads) {
      gradient = row_gradient<T>(call, back, token, lane);
      own.gradients[lane] = gradient;
    }
    live = __ballot_sync(kWholeWarp, gradient != nullptr);
    __syncwarp();
  };
  const auto for_reads = [&](auto&& fn) {
#pragma unroll
    for (int r = 0; r < kReads; ++r) {
      if (kFull || r < reads) {
        fn(r);
      }
    }
  };
  const auto for_live = [&](auto&& fn) {
#pragma unroll
    for (int r = 0; r < kReads; ++r) {
      if ((live >> r & 1) != 0) {
        fn(r);
      }
    }
  };
  const T* dy = static_cast<const T*>(back.dy) + back.dy_rows[token.t];
  T* dreads = row_of<T>(call, back.dreads, token.j);
  float x[kReads] = {}, y[kReads] = {};
  for (int first = 0; first < call.dv; first += 32 * kRun) {
    const int c = first + lane * kRun;
    const bool here = kFull || c < call.dv;
    RowPart<Row, kRun> held[kReads];
    RowPart<T, kRun> gradients[kReads], target;
    float row[kRun], dread[kRun] = {}, de[kRun] = {};
    if (here) {
      for_reads([&](int r) {
        held[r].template load<true>(global_pointer(own.values[r]), false, c, call.dv);
      });
      target.template load<true>(dy + c, false, 0, kRun);
      target.get(false, dread);
    }
    if (first == 0) {
      find_gradients();
    }
    if (!here) {
      break;
    }
    if (live != 0) {
      // `live` would tell, too, but not without many more instructions.
#pragma unroll
      for (int r = 0; r < kReads; ++r) {
        const T* from = own.gradients[r];
        if (from != nullptr) {
          gradients[r].load(global_pointer(from), false, c, call.dv);
        }
      }
      target.load(target_of<T>(call, token.t), false, c, call.dv);
      for_live([&](int r) {
        gradients[r].get(false, row);
        add_run(own.scales[r], row, de);
      });
      add_run(1.0f, de, dread);
    }
    if (token.writes && back.dv != nullptr) {
      put_target<T>(call, back, token.t, c, de);
    }
    if (!back.last) {
      store_wide(dreads + c, dread);
    }
    // Rows of values are unpacked once, for the error and for y; so all of dread comes before.
    if (live == 0) {
      for_reads([&](int r) {
        held[r].get(false, row);
        y[r] = dot_run(dread, row, y[r]);
      });
      continue;
    }
    float error[kRun] = {};
    for_reads([&](int r) {
      held[r].get(false, row);
      add_run(own.weights[r], row, error);
      y[r] = dot_run(dread, row, y[r]);
    });
    target.get(false, row);
    add_run(-1.0f, row, error);
    for_live([&](int r) {
      gradients[r].get(false, row);
      x[r] = dot_run(row, error, x[r]);
    });
  }
  // Each of the first lanes gets the sums of its read.
  const int from = lane * (32 / kReads) % 32;
  const float y_own = __shfl_sync(kWholeWarp, warp_sums(y), from);
  const float weight = lane < kReads ? own.weights[lane] : 0.0f;
  float x_own = 0;
  if (live != 0) {
    const float x_sum = __shfl_sync(kWholeWarp, warp_sums(x), from);
    x_own = lane < kReads ? own.shares[lane] * x_sum : 0.0f;
  }
  const float eta = own.eta, gate = own.gate, deta = warp_sum(-gate * weight * x_own);
  if (lane < reads) {
    back.dw[token.read + lane] =
        y_own - eta * gate * x_own - (call.rewrite ? 2 * weight * eta * eta * deta : 0.0f);
  }
  return warp_sum(-eta * weight * x_own);
}

// Through the pushes of the memory loss to the weights (dw) and to <e, V> (dalong); -> dg.
__device__ float through_push(const FwpkmCall& call, const SortedSpan& span, const FwpkmBack& back,
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
    back.dw[token.read + r] = share * token.gate * (away * pull(r) - along[r] * pull_mean);
    dgate += share * weights[r] * away * pull(r);
  }
  return dgate;
}

// Any number of reads, and all modes; rows are fetched again where they are needed again.
template <typename T, int kRun>
__device__ float through_any(const FwpkmCall& call, const SortedSpan& span, const FwpkmBack& back,
                             const Token& token) {
  const int lane = threadIdx.x % 32;
  const bool memory = back.memory && token.writes;
  float dgate = 0, deta = 0;
  if (memory) {
    dgate = through_push(call, span, back, token);
  } else {
    for (int r = lane; r < call.reads; r += 32) {
      back.dw[token.read + r] = 0;
    }
  }
  __syncwarp();
  const T* dy = static_cast<const T*>(back.dy) + back.dy_rows[token.t];
  T* dreads = row_of<T>(call, back.dreads, token.j);
  T* errors = row_of<T>(call, back.errors, token.j);
  for (int first = 0; first < call.dv; first += kFwpkmGroups<kRun> * 32 * kRun) {
    float error[kFwpkmGroups<kRun>][kRun] = {}, de[kFwpkmGroups<kRun>][kRun] = {};
    if (token.writes) {
      add_read_rows<kRun>(call, token.t, first, error);
    }
    for (int r = 0; r < call.reads && token.writes; ++r) {
      const int64_t read = token.read + r;
      const T* gradient = row_gradient<T>(call, back, token, r);
      const float scale = -call.share[read] * token.eta * token.gate * call.weights[read];
      const float* value = value_row(call, call.source[read], call.slots[read]);
      for_groups<kRun, kFwpkmGroups<kRun>>(first, call.dv, [&](int g, int c) {
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
    for_groups<kRun, kFwpkmGroups<kRun>>(first, call.dv, [&](int g, int c) {
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
    const T* gradient = row_gradient<T>(call, back, token, r);
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
      back.dw[token.read + r] += y - token.eta * token.gate * x;
    }
  }
  if (call.rewrite) {
    deta = warp_sum(deta);
    for (int r = lane; r < call.reads; r += 32) {
      back.dw[token.read + r] -= 2 * call.weights[token.read + r] * token.eta * token.eta * deta;
    }
  }
  return warp_sum(dgate);
}

// kReads 0: any number of reads.
template <typename Row, typename T, int kRun, int kReads, bool kFull>
__global__ void __launch_bounds__(kFwpkmThreads, 2)
    values_kernel(FwpkmCall call, SortedSpan span, FwpkmBack back, float step) {
  const int j = warp_item();
  if (j >= span.count) {
    return;
  }
  let_next_start();
  const Token token(call, span, reads_of<kFull>(call), j, step);
  const int lane = threadIdx.x % 32;
  if constexpr (kReads == 0) {
    wait_for_earlier();
  }
  // Nobody writes towards the first tokens of a chunk.
  if (back.dv != nullptr && !back.add_v && (!call.write || span.step(j) < call.lookahead)) {
    T* dv = static_cast<T*>(back.dv) + static_cast<int64_t>(token.t) * call.dv;
    for (int c = lane; c < call.dv; c += 32) {
      dv[c] = from_float<T>(0);
    }
  }
  float dgate = 0;
  if constexpr (kReads > 0) {
    dgate = through_few<Row, T, kRun, kReads, kFull>(call, back, token);
  } else {
    dgate = through_any<T, kRun>(call, span, back, token);
  }
  if (back.dg != nullptr && lane == 0) {
    put(back.dg + token.t, dgate, back.add_g);
  }
}

}  // namespace

void through_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back, float step,
                    bool next) {
  constexpr int kFew = kFwpkmFewReads;
  const bool few = call.reads <= kFew && !back.memory && !back.late;
  with_value_rows(call, [&]<typename T, typename Run, typename Halved>(T*, Run, Halved) {
    with_full<Run::value>(call, [&]<typename Full>(Full) {
      using Row = std::conditional_t<Halved::value, bf16, float>;
      auto kernel = &values_kernel<Row, T, Run::value, kFew, Full::value>;
      if constexpr (Halved::value) {
        require(few, "fwpkm", "rows in halves are for few reads and the addressing loss");
      } else {
        kernel = few ? kernel : &values_kernel<float, T, Run::value, 0, false>;
      }
      launch(next, kernel, fwpkm_blocks(span.count), kFwpkmThreads, 0,
             "fwpkm gradients of tokens' values", call, SortedSpan(call, span), back, step);
    });
  });
}

}  // namespace fwpkm
