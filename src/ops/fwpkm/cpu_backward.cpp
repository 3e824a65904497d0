#include <algorithm>
#include <cmath>

#include "ops/common/rows.h"
#include "ops/fwpkm/plan.h"
#include "tensor/profile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fwpkm/cpu_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/fwpkm/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {

// Chunks from the last to the first. On the way the keys go back to what each chunk read; the
// values need not, because forward wrote new rows and kept the old ones.
class Backward {
 public:
  explicit Backward(const OpArgs& args)
      : args_(args), s(args), plan_(s, args.workspace), dy_rows_(args.dout[0]) {
    q_ = args.in[FwpkmIn::q].ptr<float>();
    v_ = args.in[FwpkmIn::v].ptr<float>();
    g_ = args.in[FwpkmIn::g].ptr<float>();
    y_ = args.out[FwpkmOut::y].ptr<float>();
    slots_ = args.out[FwpkmOut::slots].ptr<int32_t>();
    weights_ = args.out[FwpkmOut::weights].ptr<float>();
    ids_ = args.out[FwpkmOut::ids].ptr<int32_t>();
    picks_ = args.out[FwpkmOut::picks].ptr<int32_t>();
    rows_ = {args.in[FwpkmIn::values].ptr<float>(), args.in[FwpkmIn::rows].ptr<float>(),
             args.out[FwpkmOut::rows].ptr<float>(), s.dv, args.in[FwpkmIn::values].stride(0)};
    scores_ = args.saved[FwpkmSaved::scores].ptr<float>();
    share_ = args.saved[FwpkmSaved::share].ptr<float>();
    source_ = args.saved[FwpkmSaved::source].ptr<int32_t>();
    chain_ = args.saved[FwpkmSaved::chain].ptr<int32_t>();
    dq_ = args.din[FwpkmIn::q].ptr<float>();
    dv_ = args.din[FwpkmIn::v].ptr<float>();
    dg_ = args.din[FwpkmIn::g].ptr<float>();
    keys_move_ = s.set.write && s.moves_keys();
  }

  void run() {
    const auto values = [](auto&& part) { Profile::phase(FwpkmPhases::backward_values, part); };
    const auto keys = [](auto&& part) { Profile::phase(FwpkmPhases::backward_keys, part); };
    keys([&] { start_keys(); });
    values([&] {
      if (dv_ != nullptr && !args_.accumulate[FwpkmIn::v]) {
        fill_zero(args_.din[FwpkmIn::v]);
      }
    });
    for (int64_t c = s.chunks - 1; c >= 0; --c) {
      const ChunkTokens tokens(s, c);
      if (c == s.chunks - 1 || cut_after(c)) {
        keys([&] { cut_keys(); });
        values([&] { cut_values(); });
      }
      // Nothing that an earlier chunk wrote is asked for.
      const bool last = c == 0 || cut_after(c - 1);
      values([&] { find_errors(tokens); });
      keys([&] {
        if (keys_move_) {
          group_by_subkey(s, tokens, ids_, plan_.groups);
          undo_keys(c);
        }
        find_slopes(tokens);
        through_key_write(c, tokens);
      });
      values([&] {
        through_values(c, tokens);
        if (s.set.write && !last) {
          gather_value_gradients(tokens);
        }
      });
      keys([&] {
        to_queries(tokens);
        if (keys_move_ && !last) {
          to_keys(tokens);
        }
      });
    }
  }

 private:
  float gate(int64_t t) const { return g_ == nullptr ? 1.0f : g_[t]; }
  bool cut_after(int64_t c) const {
    return s.set.bptt_chunks > 0 && (c + 1) % s.set.bptt_chunks == 0;
  }
  // The row that a read of chunk c found, but see late_values.
  const float* row_behind(int64_t c, int64_t read) const {
    const int32_t last =
        s.set.late_values && c == 0 && s.set.write
            ? args_.out[FwpkmOut::writes].ptr<int32_t>()[int64_t{chain_[read]} * 3 + 2]
            : -1;
    return rows_.at(last >= 0 ? last : source_[read], slots_[read]);
  }
  int64_t sub(int64_t j, int64_t book) const { return (j * s.books + book) * s.k; }

  // The keys as they are after the last chunk.
  void start_keys() {
    const View& after = args_.out[FwpkmOut::keys];
    std::memcpy(plan_.keys, after ? after.data : args_.in[FwpkmIn::keys].data,
                static_cast<size_t>(s.books * s.n * s.half) * sizeof(float));
  }

  // No gradient of fast weights from here on.
  void cut_keys() {
    std::memset(plan_.dkeys, 0, static_cast<size_t>(s.books * s.n * s.half) * sizeof(float));
    dkeys_live_ = false;
  }
  void cut_values() {
    if (s.set.write) {
      std::memset(plan_.live, 0, static_cast<size_t>(s.owners * s.chain_cap));
    }
  }

  void undo_keys(int64_t c) {
    const float* from = args_.saved[FwpkmSaved::key_rows].ptr<float>() +
                        args_.saved[FwpkmSaved::key_starts].ptr<int32_t>()[c] * s.half;
    int64_t touched = 0;
    for (int64_t key = 0; key < s.books * s.n; ++key) {
      plan_.key_places[key] = static_cast<int32_t>(touched);
      touched += plan_.groups.begin(s, key) < plan_.groups.end(s, key) ? 1 : 0;
    }
    parallel_ranges(s.books * s.n, 64, [&](int64_t begin, int64_t end) {
      for (int64_t key = begin; key < end; ++key) {
        if (plan_.groups.begin(s, key) < plan_.groups.end(s, key)) {
          std::memcpy(plan_.keys + key * s.half, from + plan_.key_places[key] * s.half,
                      static_cast<size_t>(s.half) * sizeof(float));
        }
      }
    });
  }

  void find_slopes(const ChunkTokens& tokens) {
    const int64_t each = s.books * s.k;
    parallel_ranges(tokens.count, 32, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const float* score = scores_ + tokens.token(j) * each;
        for (int64_t i = 0; i < each; ++i) {
          plan_.slope[j * each + i] = s.set.dot ? 1.0f : 2 * std::exp(score[i]);
        }
      }
    });
  }

  void find_errors(const ChunkTokens& tokens) {
    const bool along = keys_move_ && !s.set.addr_loss && dkeys_live_;
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        if (!tokens.writes(j)) {
          continue;
        }
        const int64_t t = tokens.token(j);
        const float *y = y_ + t * s.dv, *v = v_ + (t + s.set.lookahead) * s.dv;
        float* e = plan_.errors + j * s.dv;
        for_vectors(d, s.dv, [&](int64_t i, size_t n) {
          store_part(d, hn::Sub(load_part(d, y + i, n), load_part(d, v + i, n)), e + i, n);
        });
        for (int64_t r = 0; r < s.reads && along; ++r) {
          const int64_t at = t * s.reads + r;
          plan_.push.along[j * s.reads + r] = dot(d, e, rows_.at(source_[at], slots_[at]), s.dv);
        }
      }
    });
  }

  // From the gradients of moved keys to those of what moved them (gam) and of the scores (ds).
  void through_key_write(int64_t c, const ChunkTokens& tokens) {
    const int64_t each = s.books * s.k;
    if (!keys_move_ || !dkeys_live_) {
      std::fill_n(plan_.ds, tokens.count * each, 0.0f);
      return;
    }
    if (s.set.addr_loss) {
      addressing_push(s, c, tokens, ids_, scores_, plan_.push);
    } else {
      memory_push(s, tokens, picks_, weights_, g_, plan_.push);
    }
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        const int64_t t = tokens.token(j);
        for (int64_t book = 0; book < s.books; ++book) {
          const float* q = q_ + t * s.row + book * s.half;
          for (int64_t r = 0; r < s.k; ++r) {
            const int64_t at = sub(j, book) + r;
            const int64_t key = (book * s.n + ids_[(t * s.books + book) * s.k + r]) * s.half;
            const float u = s.set.dot
                                ? dot(d, q, plan_.dkeys + key, s.half)
                                : dot_difference(d, q, plan_.keys + key, plan_.dkeys + key, s.half);
            plan_.gam[at] = -plan_.slope[at] * u;
            plan_.ds[at] = s.set.dot ? 0.0f : plan_.push.push[at] * plan_.gam[at];
          }
        }
      }
    });
    if (s.set.addr_loss) {
      through_addressing(c, tokens);
    }
  }

  void through_addressing(int64_t c, const ChunkTokens& tokens) {
    const auto lambda = static_cast<float>(s.set.addr_weight);
    const auto eps = static_cast<float>(kMarginalEps);
    const float share = 1.0f / static_cast<float>(s.marginal_tokens(c));
    parallel_items(s.marginals(), [&](int64_t m) {
      float* dpbar = plan_.dpbar + m * s.n;
      const float* pbar = plan_.push.pbar + m * s.n;
      std::fill_n(dpbar, s.n, 0.0f);
      for (int64_t book = m; book < s.books; book += s.marginals()) {
        for (int64_t j = 0; j < tokens.count; ++j) {
          const int32_t* id = ids_ + (tokens.token(j) * s.books + book) * s.k;
          const float *p = plan_.push.p + sub(j, book), *gam = plan_.gam + sub(j, book);
          float mean = 0;
          for (int64_t r = 0; r < s.k; ++r) {
            mean += lambda * gam[r] * p[r];
          }
          plan_.mean_gam[j * s.books + book] = mean;
          for (int64_t r = 0; r < s.k; ++r) {
            dpbar[id[r]] += p[r] * (lambda * gam[r] - mean);
          }
        }
      }
      for (int64_t i = 0; i < s.n; ++i) {
        const float p = pbar[i] + eps;
        dpbar[i] *= share * (1.0f / p + eps / (p * p));
      }
    });
    parallel_ranges(tokens.count, 16, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t book = 0; book < s.books; ++book) {
          const int64_t m = s.marginal(book) * s.n, at = sub(j, book);
          const int32_t* id = ids_ + (tokens.token(j) * s.books + book) * s.k;
          const float *p = plan_.push.p + at, *a = plan_.push.slope + m;
          const float mean = plan_.mean_gam[j * s.books + book];
          float a_mean = 0, dp_mean = 0;
          for (int64_t r = 0; r < s.k; ++r) {
            a_mean += p[r] * a[id[r]];
          }
          const auto dp = [&](int64_t r) {
            return (lambda * plan_.gam[at + r] * (a[id[r]] - a_mean) - a[id[r]] * mean +
                    plan_.dpbar[m + id[r]]) *
                   share;
          };
          for (int64_t r = 0; r < s.k; ++r) {
            dp_mean += p[r] * dp(r);
          }
          for (int64_t r = 0; r < s.k; ++r) {
            plan_.ds[at + r] += p[r] * (dp(r) - dp_mean);
          }
        }
      }
    });
  }

  // The value write, then the read: gradients of v, g and of what was read, and through the softmax
  // to the scores.
  void through_values(int64_t c, const ChunkTokens& tokens) {
    const auto step = static_cast<float>(s.step(c));
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        const int64_t t = tokens.token(j);
        const float* w = weights_ + t * s.reads;
        const float* dy = args_.dout[0].ptr<float>() + dy_rows_[t];
        float *dread = plan_.dreads + j * s.dv, *dw = plan_.dw + j * s.reads;
        std::memcpy(dread, dy, static_cast<size_t>(s.dv) * sizeof(float));
        std::fill_n(dw, s.reads, 0.0f);
        float dgate = 0;
        if (tokens.writes(j)) {
          dgate = through_write(d, t, j, step, tokens);
        }
        if (dg_ != nullptr) {
          dg_[t] = dgate + (args_.accumulate[FwpkmIn::g] ? dg_[t] : 0.0f);
        }
        float mean = 0;
        for (int64_t r = 0; r < s.reads; ++r) {
          const int64_t at = t * s.reads + r;
          if (r + 1 < s.reads) {
            prefetch_row(row_behind(c, at + 1), s.dv);
          }
          dw[r] += dot(d, dread, row_behind(c, at), s.dv);
          mean += w[r] * dw[r];
        }
        for (int64_t r = 0; r < s.reads; ++r) {
          const float slot_ds = w[r] * (dw[r] - mean);
          const int64_t first = sub(j, r / s.k * 2), pick = picks_[t * s.reads + r];
          plan_.ds[first + pick / s.k] += slot_ds;
          plan_.ds[first + s.k + pick % s.k] += slot_ds;
        }
      }
    });
  }

  // Adds to dread and dw of a writing token and to dv; returns dg.
  float through_write(F32 d, int64_t t, int64_t j, float step, const ChunkTokens& tokens) {
    const float *w = weights_ + t * s.reads, *e = plan_.errors + j * s.dv;
    float *dread = plan_.dreads + j * s.dv, *dw = plan_.dw + j * s.reads;
    float* list_weights = plan_.list_weights + thread_index() * s.reads;
    const float** list_rows = plan_.list_rows + thread_index() * s.reads;
    const float eta = s.set.rewrite ? 1.0f / dot(d, w, w, s.reads) : step, g = gate(t);
    int64_t count = 0;
    float dgate = 0, deta = 0;
    for (int64_t r = 0; r < s.reads; ++r) {
      const int64_t at = t * s.reads + r;
      if (plan_.live[chain_[at]] == 0) {
        continue;
      }
      const float* row = plan_.dvalues + chain_[at] * s.dv;
      const float x = share_[at] * dot(d, row, e, s.dv);
      dgate -= eta * w[r] * x;
      deta -= g * w[r] * x;
      dw[r] -= eta * g * x;
      list_weights[count] = -share_[at] * eta * g * w[r];
      list_rows[count++] = row;
    }
    for (int64_t r = 0; r < s.reads && s.set.rewrite; ++r) {
      dw[r] -= deta * eta * eta * 2 * w[r];
    }
    float* de = plan_.de + thread_index() * s.dv;
    if (count > 0) {
      sum_rows(
          d, [&](int64_t r) { return list_rows[r]; }, list_weights, count, s.dv, de, false);
    }
    if (keys_move_ && !s.set.addr_loss && dkeys_live_) {
      if (count == 0) {
        std::fill_n(de, s.dv, 0.0f);
      }
      dgate += through_memory_push(d, t, j, tokens, de);
      count = 1;
    } else if (!s.set.addr_loss) {
      std::fill_n(plan_.dalong + j * s.reads, s.reads, 0.0f);
    }
    if (count > 0) {
      add_scaled(d, 1.0f, de, s.dv, dread);
      if (dv_ != nullptr) {
        add_scaled(d, -1.0f, de, s.dv, dv_ + (t + s.set.lookahead) * s.dv);
      }
    }
    return dgate;
  }

  // Without the addressing loss the keys follow the error: to what it was made of.
  float through_memory_push(F32 d, int64_t t, int64_t j, const ChunkTokens& tokens, float* de) {
    const float *w = weights_ + t * s.reads, *along = plan_.push.along + j * s.reads;
    float *dw = plan_.dw + j * s.reads, *dalong = plan_.dalong + j * s.reads;
    const float share = memory_mean(s, tokens);
    float mean = 0, pull_mean = 0, dgate = 0;
    const auto pull = [&](int64_t r) {
      const int64_t first = sub(j, r / s.k * 2), pick = picks_[t * s.reads + r];
      return plan_.gam[first + pick / s.k] + plan_.gam[first + s.k + pick % s.k];
    };
    for (int64_t r = 0; r < s.reads; ++r) {
      mean += w[r] * along[r];
      pull_mean += w[r] * pull(r);
    }
    for (int64_t r = 0; r < s.reads; ++r) {
      const int64_t at = t * s.reads + r;
      dalong[r] = share * gate(t) * w[r] * (pull(r) - pull_mean);
      dgate += share * w[r] * (along[r] - mean) * pull(r);
      dw[r] += share * gate(t) * ((along[r] - mean) * pull(r) - along[r] * pull_mean);
      add_scaled(d, dalong[r], rows_.at(source_[at], slots_[at]), s.dv, de);
    }
    return dgate;
  }

  // Gradients of the rows that were read and that an earlier chunk wrote, by chain.
  void gather_value_gradients(const ChunkTokens& tokens) {
    const int64_t count = tokens.count * s.reads;
    for (int64_t j = 0; j < tokens.count; ++j) {
      std::copy_n(chain_ + tokens.token(j) * s.reads, s.reads, plan_.chains + j * s.reads);
    }
    const Placed* reads = sort_by_id(plan_.chains, count, s.owners * s.chain_cap, plan_.sort);
    constexpr int64_t kPiece = 256;
    const auto place = [&](int64_t i) { return static_cast<int64_t>(reads[i].place()); };
    parallel_items((count + kPiece - 1) / kPiece, [&](int64_t piece) {
      const F32 d;
      const int64_t last = HWY_MIN(count, (piece + 1) * kPiece);
      for_segments(reads, count, piece * kPiece, last, [&](int64_t begin, int64_t end) {
        const int64_t chain = reads[begin].id();
        const int64_t first = tokens.token(place(begin) / s.reads);
        if (source_[first * s.reads + place(begin) % s.reads] < 0) {
          return;
        }
        float* to = plan_.dvalues + chain * s.dv;
        // All rows at once: reads of the slot, in the order of tokens.
        sum_rows(
            d, [&](int64_t i) { return plan_.dreads + place(begin + i) / s.reads * s.dv; },
            [&](int64_t i) {
              const int64_t t = tokens.token(place(begin + i) / s.reads);
              return weights_[t * s.reads + place(begin + i) % s.reads];
            },
            end - begin, s.dv, to, plan_.live[chain] != 0);
        plan_.live[chain] = 1;
        for (int64_t i = begin; i < end && !s.set.addr_loss; ++i) {
          const int64_t j = place(i) / s.reads;
          if (tokens.writes(j)) {
            add_scaled(d, plan_.dalong[place(i)], plan_.errors + j * s.dv, s.dv, to);
          }
        }
      });
    });
  }

  void to_queries(const ChunkTokens& tokens) {
    if (dq_ == nullptr) {
      return;
    }
    const bool moved = keys_move_ && dkeys_live_;
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        const int64_t t = tokens.token(j);
        for (int64_t book = 0; book < s.books; ++book) {
          const int32_t* id = ids_ + (t * s.books + book) * s.k;
          const float *slope = plan_.slope + sub(j, book), *ds = plan_.ds + sub(j, book);
          const float* push = plan_.push.push + sub(j, book);
          const float *q = q_ + t * s.row + book * s.half, *keys = plan_.keys + book * s.n * s.half;
          const float* dkeys = plan_.dkeys + book * s.n * s.half;
          for_vectors(d, s.half, [&](int64_t i, size_t n) {
            const V32 x = load_part(d, q + i, n);
            V32 sum = hn::Zero(d);
            for (int64_t r = 0; r < s.k; ++r) {
              const V32 key = load_part(d, keys + id[r] * s.half + i, n);
              sum =
                  hn::MulAdd(hn::Set(d, slope[r] * ds[r]), s.set.dot ? key : hn::Sub(key, x), sum);
              if (moved) {
                sum = hn::NegMulAdd(hn::Set(d, slope[r] * push[r]),
                                    load_part(d, dkeys + id[r] * s.half + i, n), sum);
              }
            }
            put(d, sum, dq_ + t * s.row + book * s.half + i, n, args_.accumulate[FwpkmIn::q]);
          });
        }
      }
    });
  }

  void to_keys(const ChunkTokens& tokens) {
    parallel_ranges(s.books * s.n, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t key = begin; key < end; ++key) {
        const int64_t first = plan_.groups.begin(s, key), last = plan_.groups.end(s, key);
        if (first == last) {
          continue;
        }
        const int64_t book = key / s.n;
        const int32_t* entries = plan_.groups.of(s, key);
        const auto at = [&](int64_t i) { return sub(entries[i] / s.k, book) + entries[i] % s.k; };
        float* to = plan_.dkeys + key * s.half;
        if (dkeys_live_ && !s.set.dot) {
          float moved = 0;
          for (int64_t i = first; i < last; ++i) {
            moved += plan_.slope[at(i)] * plan_.push.push[at(i)];
          }
          add_scaled(d, moved, to, s.half, to);
        }
        for (int64_t i = first; i < last; ++i) {
          const float* q = q_ + tokens.token(entries[i] / s.k) * s.row + book * s.half;
          const float scale = plan_.slope[at(i)] * plan_.ds[at(i)];
          if (s.set.dot) {
            add_scaled(d, scale, q, s.half, to);
          } else {
            add_scaled_difference(d, scale, q, plan_.keys + key * s.half, s.half, to);
          }
        }
      }
    });
    dkeys_live_ = true;
  }

  const OpArgs& args_;
  FwpkmSizes s;
  FwpkmBackwardPlan plan_;
  Rows dy_rows_;
  const float *q_, *v_, *g_, *y_, *weights_, *scores_, *share_;
  const int32_t *slots_, *ids_, *picks_, *source_, *chain_;
  float *dq_, *dv_, *dg_;
  ValueRows rows_;
  bool keys_move_;
  bool dkeys_live_ = false;  // whether dkeys is not all zero
};

}  // namespace

void fwpkm_backward(const OpArgs& args) {
  Backward(args).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(fwpkm_backward);

void fwpkm_backward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(fwpkm_backward)(args);
}

}  // namespace fwpkm
#endif
