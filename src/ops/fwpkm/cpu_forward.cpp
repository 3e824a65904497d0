#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ops/common/gemm.h"
#include "ops/fwpkm/plan.h"
#include "tensor/profile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/fwpkm/cpu_forward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "ops/fwpkm/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fwpkm {
namespace HWY_NAMESPACE {
namespace {

class Forward {
 public:
  explicit Forward(const OpArgs& args)
      : args_(args),
        s(args),
        plan_(s, static_cast<bool>(args.saved[FwpkmSaved::scores]), args.workspace) {
    q_ = args.in[FwpkmIn::q].ptr<float>();
    v_ = args.in[FwpkmIn::v].ptr<float>();
    g_ = args.in[FwpkmIn::g].ptr<float>();
    keys_ = args.in[FwpkmIn::keys].ptr<float>();
    y_ = args.out[FwpkmOut::y].ptr<float>();
    slots_ = args.out[FwpkmOut::slots].ptr<int32_t>();
    weights_ = args.out[FwpkmOut::weights].ptr<float>();
    losses_ = args.out[FwpkmOut::losses].ptr<float>();
    ids_ = args.out[FwpkmOut::ids].ptr<int32_t>();
    picks_ = args.out[FwpkmOut::picks].ptr<int32_t>();
    rows_ = {args.in[FwpkmIn::values].ptr<float>(), args.in[FwpkmIn::rows].ptr<float>(),
             args.out[FwpkmOut::rows].ptr<float>(), s.dv, args.in[FwpkmIn::values].stride(0)};
    constexpr size_t kLine = 64;
    stream_rows_ = reinterpret_cast<uintptr_t>(rows_.log) % kLine == 0 &&
                   static_cast<size_t>(s.dv) * sizeof(float) % kLine == 0;
    if (args.saved[FwpkmSaved::scores]) {
      plan_.scores = args.saved[FwpkmSaved::scores].ptr<float>();
      plan_.share = args.saved[FwpkmSaved::share].ptr<float>();
      plan_.source = args.saved[FwpkmSaved::source].ptr<int32_t>();
      plan_.chain = args.saved[FwpkmSaved::chain].ptr<int32_t>();
      key_rows_ = args.saved[FwpkmSaved::key_rows].ptr<float>();
      key_starts_ = args.saved[FwpkmSaved::key_starts].ptr<int32_t>();
    }
  }

  void run() {
    using P = FwpkmPhases;
    const auto phase = [](const char* name, auto&& part) { Profile::phase(name, part); };
    if (key_starts_ != nullptr) {
      std::fill_n(key_starts_, s.chunks + 1, 0);
    }
    if (s.set.write) {
      phase(P::write_keys, [&] { copy_keys(); });
      phase(P::write_values, [&] { clear_chains(); });
    }
    if (by_products()) {
      phase(P::read, [&] { measure_keys(); });
    }
    for (int64_t c = 0; c < s.chunks; ++c) {
      const ChunkTokens tokens(s, c);
      float* addressing = args_.out[FwpkmOut::addressing].ptr<float>() + c;
      *addressing = 0;
      phase(P::read, [&] { select(tokens); });
      phase(s.set.write ? P::write_values : P::read, [&] { find_rows(tokens); });
      phase(P::read, [&] { gather(tokens); });
      if (!s.set.write) {
        continue;
      }
      phase(P::write_values, [&] {
        find_errors(c, tokens);
        write_values(tokens);
      });
      if (s.moves_keys()) {
        phase(P::write_keys, [&] {
          *addressing = push_keys(c, tokens);
          move_keys(c, tokens);
        });
      }
    }
  }

 private:
  SlotMap map(int64_t owner) const {
    return SlotMap(plan_.maps + static_cast<size_t>(owner) * plan_.map_bytes, s.chain_cap);
  }
  float gate(int64_t t) const { return g_ == nullptr ? 1.0f : g_[t]; }
  // Whether any candidates are found by products, which need the norms of the keys.
  bool by_products() const { return longest_chunk(s) > kFwpkmFew && !args_.in[FwpkmIn::ids]; }

  void copy_keys() {
    float* moving = args_.out[FwpkmOut::keys].ptr<float>();
    std::memcpy(moving, keys_, static_cast<size_t>(s.books * s.n * s.half) * sizeof(float));
    keys_ = moving;
  }

  void clear_chains() {
    writes_ = args_.out[FwpkmOut::writes].ptr<int32_t>();
    counts_ = args_.out[FwpkmOut::counts].ptr<int32_t>();
    std::fill_n(counts_, s.owners, 0);
    std::fill_n(plan_.log_counts, s.owners, 0);
    parallel_items(s.owners, [&](int64_t o) { map(o).clear(); });
  }

  void measure_keys() {
    parallel_ranges(s.books * s.n, 16, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t i = begin; i < end; ++i) {
        plan_.norms[i] = dot(d, keys_ + i * s.half, keys_ + i * s.half, s.half);
      }
    });
    find_max_norms();
  }
  void find_max_norms() {
    for (int64_t book = 0; book < s.books; ++book) {
      const float* norms = plan_.norms + book * s.n;
      plan_.max_norm[book] = *std::max_element(norms, norms + s.n);
    }
  }

  // What sub-keys are ranked by: the dot product, or the negative squared distance.
  HWY_INLINE float closeness(F32 d, const float* q, const float* key) const {
    return s.set.dot ? dot(d, q, key, s.half) : -squared_distance(d, q, key, s.half);
  }
  float score(float closeness) const {
    return s.set.dot ? closeness : -std::log(static_cast<float>(kIdwEps) - closeness);
  }

  // The k best sub-keys of every codebook: an item is a codebook for a block of tokens of a row.
  void select(const ChunkTokens& tokens) {
    const int64_t blocks = (tokens.length + kFwpkmBlock - 1) / kFwpkmBlock;
    const bool given = static_cast<bool>(args_.in[FwpkmIn::ids]);
    parallel_items(s.books * s.batch * blocks, [&](int64_t item) {
      const int64_t book = item / (s.batch * blocks), b = item / blocks % s.batch;
      const int64_t begin = item % blocks * kFwpkmBlock;
      const int64_t count = HWY_MIN(kFwpkmBlock, tokens.length - begin);
      const int64_t t = b * s.time + tokens.first + begin;
      if (given) {
        take_given(book, t, count);
      } else {
        select_block(book, t, count);
      }
    });
    constexpr int64_t kTokens = 8;
    parallel_ranges(tokens.count, kTokens, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        select_slots(tokens.token(j), given);
      }
    });
  }

  void take_given(int64_t book, int64_t t, int64_t count) {
    const F32 d;
    const int32_t* from = args_.in[FwpkmIn::ids].ptr<int32_t>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = ((t + i) * s.books + book) * s.k;
      for (int64_t r = 0; r < s.k; ++r) {
        ids_[at + r] = from[at + r];
        plan_.scores[at + r] = score(closeness(d, q_ + (t + i) * s.row + book * s.half,
                                               keys_ + (book * s.n + from[at + r]) * s.half));
      }
    }
  }

  // Products find candidates; their closeness, computed directly, decides. Where the products could
  // have missed one, all are computed directly.
  void select_block(int64_t book, int64_t t, int64_t count) {
    const F32 d;
    const float* keys = keys_ + book * s.n * s.half;
    const float* norms = plan_.norms + book * s.n;
    float* products =
        plan_.products + thread_index() * HWY_MIN(kFwpkmBlock, longest_chunk(s)) * s.n;
    const SelectScratch scratch(
        s, plan_.select + static_cast<size_t>(thread_index()) * plan_.select_bytes);
    const bool few = count <= kFwpkmFew;
    if (!few) {
      for (int64_t i = 0; i < count && !s.set.dot; ++i) {
        for_vectors(d, s.n, [&](int64_t at, size_t n) {
          store_part(d, hn::Neg(load_part(d, norms + at, n)), products + i * s.n + at, n);
        });
      }
      gemm(false, true, count, s.n, s.half, s.set.dot ? 1.0f : 2.0f, q_ + t * s.row + book * s.half,
           s.row, keys, s.half, s.set.dot ? 0.0f : 1.0f, products, s.n);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* q = q_ + (t + i) * s.row + book * s.half;
      float* row = products + i * s.n;
      const int64_t at = ((t + i) * s.books + book) * s.k;
      float* best = plan_.scores + at;
      int32_t* ids = ids_ + at;
      if (few || !select_near(book, q, row, keys, scratch, best, ids)) {
        for (int64_t key = 0; key < s.n; ++key) {
          row[key] = closeness(d, q, keys + key * s.half);
        }
        top_k(row, s.n, s.k, best, ids, scratch.sort);
      }
      for (int64_t r = 0; r < s.k; ++r) {
        best[r] = score(best[r]);
      }
    }
  }

  bool select_near(int64_t book, const float* q, const float* products, const float* keys,
                   const SelectScratch& scratch, float* best, int32_t* ids) const {
    const F32 d;
    top_k(products, s.n, scratch.near, scratch.sums, scratch.ids, scratch.sort);
    const float last = scratch.sums[scratch.near - 1];
    std::sort(scratch.ids, scratch.ids + scratch.near);  // equal ones: the lower first
    for (int64_t i = 0; i < scratch.near; ++i) {
      scratch.values[i] = closeness(d, q, keys + scratch.ids[i] * s.half);
    }
    top_k(scratch.values, scratch.near, s.k, best, scratch.ranks, scratch.sort);
    for (int64_t r = 0; r < s.k; ++r) {
      ids[r] = scratch.ids[scratch.ranks[r]];
    }
    if (scratch.near == s.n) {
      return true;
    }
    // No product of a sub-key that was left out is off by more than this (README.md, "Selecting").
    const float norm = dot(d, q, q, s.half);
    const float slack =
        0x1.0p-23f * static_cast<float>(3 * s.half + 8) * (norm + plan_.max_norm[book]);
    return best[s.k - 1] > last + slack - (s.set.dot ? 0.0f : norm);
  }

  // The k best slots of each head, and the weights of all.
  void select_slots(int64_t t, bool given) {
    const F32 d;
    const SelectScratch scratch(
        s, plan_.select + static_cast<size_t>(thread_index()) * plan_.select_bytes);
    float* weights = weights_ + t * s.reads;
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t a = (t * s.books + 2 * h) * s.k, b = a + s.k;
      int32_t* slots = slots_ + t * s.reads + h * s.k;
      int32_t* picks = picks_ + t * s.reads + h * s.k;
      if (given) {
        std::copy_n(args_.in[FwpkmIn::picks].ptr<int32_t>() + t * s.reads + h * s.k, s.k, picks);
        for (int64_t r = 0; r < s.k; ++r) {
          slots[r] =
              static_cast<int32_t>(ids_[a + picks[r] / s.k] * s.n + ids_[b + picks[r] % s.k]);
        }
      } else {
        product_top_k(plan_.scores + a, ids_ + a, plan_.scores + b, ids_ + b, s.k, s.n,
                      scratch.sums, slots, scratch.sort);
        for (int64_t r = 0; r < s.k; ++r) {
          const auto i = static_cast<int32_t>(slots[r] / s.n);
          const auto j = static_cast<int32_t>(slots[r] % s.n);
          picks[r] = static_cast<int32_t>((std::find(ids_ + a, ids_ + b, i) - (ids_ + a)) * s.k +
                                          (std::find(ids_ + b, ids_ + b + s.k, j) - (ids_ + b)));
        }
      }
      for (int64_t r = 0; r < s.k; ++r) {
        weights[h * s.k + r] = plan_.scores[a + picks[r] / s.k] + plan_.scores[b + picks[r] % s.k];
      }
    }
    softmax(d, weights, s.reads);
  }

  // The row of an owner's overlay: -2-row, or -1 for the table's.
  int32_t overlay_source(int64_t owner, int32_t slot) const {
    if (!args_.in[FwpkmIn::directory]) {
      return -1;
    }
    const int32_t page = args_.in[FwpkmIn::directory].ptr<int32_t>()[owner * s.n + slot / s.n];
    const int32_t row =
        page < 0 ? -1 : args_.in[FwpkmIn::pages].ptr<int32_t>()[page * s.n + slot % s.n];
    return row < 0 ? -1 : -2 - row;
  }

  // Where each read's row lies now. Slots that are read for the first time get a chain.
  void find_rows(const ChunkTokens& tokens) {
    if (!s.set.write) {
      parallel_ranges(tokens.count, 64, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          const int64_t t = tokens.token(j);
          for (int64_t r = t * s.reads; r < (t + 1) * s.reads; ++r) {
            plan_.source[r] = overlay_source(s.owner(t / s.time), slots_[r]);
          }
        }
      });
      return;
    }
    parallel_items(s.owners, [&](int64_t owner) {
      SlotMap chains = map(owner);
      const int64_t each = tokens.count / s.owners;
      for (int64_t j = owner * each; j < (owner + 1) * each; ++j) {
        const int64_t t = tokens.token(j);
        for (int64_t r = t * s.reads; r < (t + 1) * s.reads; ++r) {
          const int32_t number = chains.find_or_add(slots_[r], counts_[owner]);
          const int64_t chain = owner * s.chain_cap + number;
          if (number == counts_[owner]) {
            ++counts_[owner];
            writes_[chain * 3] = static_cast<int32_t>(owner);
            writes_[chain * 3 + 1] = slots_[r];
            writes_[chain * 3 + 2] = -1;
            plan_.chain_source[chain] = overlay_source(owner, slots_[r]);
          }
          plan_.chain[r] = static_cast<int32_t>(chain);
          plan_.source[r] = plan_.chain_source[chain];
        }
      }
    });
  }

  void gather(const ChunkTokens& tokens) {
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        const int64_t t = tokens.token(j), at = t * s.reads;
        sum_rows(
            d, [&](int64_t r) { return rows_.at(plan_.source[at + r], slots_[at + r]); },
            weights_ + at, s.reads, s.dv, y_ + t * s.dv, false);
        losses_[t] = 0;
      }
    });
  }

  // Errors, losses and the weights of writes; without the addressing loss also <e, V>.
  void find_errors(int64_t c, const ChunkTokens& tokens) {
    const auto step = static_cast<float>(s.step(c));
    parallel_ranges(tokens.count, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t j = begin; j < end; ++j) {
        const int64_t t = tokens.token(j);
        std::fill_n(plan_.share + t * s.reads, s.reads, 0.0f);
        if (!tokens.writes(j)) {
          continue;
        }
        const float *y = y_ + t * s.dv, *v = v_ + (t + s.set.lookahead) * s.dv;
        float* e = plan_.errors + j * s.dv;
        V32 squares = hn::Zero(d);
        for_vectors(d, s.dv, [&](int64_t i, size_t n) {
          const V32 x = hn::Sub(load_part(d, y + i, n), load_part(d, v + i, n));
          squares = hn::MulAdd(x, x, squares);
          store_part(d, x, e + i, n);
        });
        losses_[t] = gate(t) * hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(s.dv);
        const float* w = weights_ + t * s.reads;
        const float eta = s.set.rewrite ? 1.0f / dot(d, w, w, s.reads) : step;
        for (int64_t r = 0; r < s.reads; ++r) {
          plan_.coefficients[j * s.reads + r] = -eta * gate(t) * w[r];
          if (!s.set.addr_loss) {
            const int64_t at = t * s.reads + r;
            plan_.push.along[j * s.reads + r] =
                dot(d, e, rows_.at(plan_.source[at], slots_[at]), s.dv);
          }
        }
      }
    });
  }

  float push_keys(int64_t c, const ChunkTokens& tokens) {
    group_by_subkey(s, tokens, ids_, plan_.groups);
    if (s.set.addr_loss) {
      return static_cast<float>(addressing_push(s, c, tokens, ids_, plan_.scores, plan_.push));
    }
    memory_push(s, tokens, picks_, weights_, g_, plan_.push);
    return 0;
  }

  void move_keys(int64_t c, const ChunkTokens& tokens) {
    int32_t touched = 0;
    for (int64_t key = 0; key < s.books * s.n; ++key) {
      plan_.key_places[key] =
          plan_.groups.begin(s, key) < plan_.groups.end(s, key) ? touched++ : -1;
    }
    if (key_starts_ != nullptr) {
      key_starts_[c + 1] = key_starts_[c] + touched;
    }
    const bool measure = by_products() && c + 1 < s.chunks;  // for the next chunk
    auto* moving = const_cast<float*>(keys_);
    parallel_ranges(s.books * s.n, 8, [&](int64_t begin, int64_t end) {
      const F32 d;
      for (int64_t key = begin; key < end; ++key) {
        if (plan_.key_places[key] < 0) {
          continue;
        }
        float* now = moving + key * s.half;
        float* old = key_rows_ == nullptr
                         ? plan_.old_key + thread_index() * s.half
                         : key_rows_ + (key_starts_[c] + plan_.key_places[key]) * s.half;
        std::memcpy(old, now, static_cast<size_t>(s.half) * sizeof(float));
        const int64_t book = key / s.n;
        const int32_t* entries = plan_.groups.of(s, key);
        for (int64_t i = plan_.groups.begin(s, key); i < plan_.groups.end(s, key); ++i) {
          const int64_t j = entries[i] / s.k, r = entries[i] % s.k, t = tokens.token(j);
          const float push = plan_.push.push[(j * s.books + book) * s.k + r];
          const float* q = q_ + t * s.row + book * s.half;
          if (s.set.dot) {
            add_scaled(d, -push, q, s.half, now);
          } else {
            const float scale = 2 * std::exp(plan_.scores[(t * s.books + book) * s.k + r]);
            add_scaled_difference(d, -push * scale, q, old, s.half, now);
          }
        }
        if (measure) {
          plan_.norms[key] = dot(d, now, now, s.half);
        }
      }
    });
    if (measure) {
      find_max_norms();
    }
  }

  // Reads sorted by chain: each slot that is written has one owner, who adds in the order of
  // tokens, into a new row.
  void write_values(const ChunkTokens& tokens) {
    if (tokens.writers == 0) {
      return;
    }
    const int64_t count = tokens.count * s.reads;
    for (int64_t j = 0; j < tokens.count; ++j) {  // the sort reads them before they are overwritten
      std::copy_n(plan_.chain + tokens.token(j) * s.reads, s.reads,
                  plan_.segment_rows + j * s.reads);
    }
    const Placed* reads = sort_by_id(plan_.segment_rows, count, s.owners * s.chain_cap, plan_.sort);
    int64_t segments = 0;
    for_segments(reads, count, 0, count, [&](int64_t begin, int64_t end) {
      int64_t writing = 0;
      for (int64_t i = begin; i < end; ++i) {
        writing += tokens.writes(reads[i].place() / s.reads) ? 1 : 0;
      }
      if (writing == 0) {
        return;
      }
      const int32_t chain = reads[begin].id();
      const int64_t owner = chain / s.chain_cap;
      const auto row = static_cast<int32_t>(owner * s.log_cap + plan_.log_counts[owner]++);
      const int32_t before = std::exchange(plan_.chain_source[chain], row);
      plan_.segment_from[segments] = rows_.at(before, writes_[int64_t{chain} * 3 + 1]);
      writes_[int64_t{chain} * 3 + 2] = row;
      const float share = 1.0f / static_cast<float>(s.set.official ? end - begin : writing);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = reads[i].place() / s.reads;
        if (tokens.writes(j)) {
          plan_.share[tokens.token(j) * s.reads + reads[i].place() % s.reads] = share;
        }
      }
      plan_.segments[segments] = static_cast<int32_t>(begin);
      plan_.segment_rows[segments++] = row;
    });
    parallel_ranges(segments, 16, [&](int64_t first, int64_t last) {
      // Rows that are on their way while one is written; further ahead their pages are looked up.
      constexpr int64_t kAhead = 3, kPagesAhead = 16;
      const F32 d;
      for (int64_t segment = first; segment < last; ++segment) {
        if (segment + kPagesAhead < last) {
          hwy::Prefetch(plan_.segment_from[segment + kPagesAhead]);
        }
        if (segment + kAhead < last) {
          prefetch_row(plan_.segment_from[segment + kAhead], s.dv);
        }
        write_row(d, tokens, reads, count, segment);
      }
      hwy::FlushStream();
    });
  }

  // The new row of one slot: what it was, and the writes of up to kWrites tokens at a time.
  HWY_INLINE void write_row(F32 d, const ChunkTokens& tokens, const Placed* reads, int64_t count,
                            int64_t segment) const {
    constexpr int64_t kWrites = 8;
    std::array<const float*, kWrites> errors;
    std::array<float, kWrites> scales;
    int64_t i = plan_.segments[segment];
    const int32_t chain = reads[i].id();
    const auto more = [&] { return i < count && reads[i].id() == chain; };
    const float* from = plan_.segment_from[segment];
    float* to = const_cast<float*>(rows_.log) + plan_.segment_rows[segment] * s.dv;
    while (more()) {
      int64_t writes = 0;
      for (; more() && writes < kWrites; ++i) {
        const int64_t j = reads[i].place() / s.reads, r = reads[i].place() % s.reads;
        if (tokens.writes(j)) {
          scales[writes] =
              plan_.coefficients[j * s.reads + r] * plan_.share[tokens.token(j) * s.reads + r];
          errors[writes++] = plan_.errors + j * s.dv;
        }
      }
      // The last pass stores past the caches: rows are many and most are not read again soon.
      const bool stream = !more() && stream_rows_;
      for_vectors(d, s.dv, [&](int64_t x, size_t n) {
        V32 sum = load_part(d, from + x, n);
        for (int64_t w = 0; w < writes; ++w) {
          sum = hn::MulAdd(hn::Set(d, scales[w]), load_part(d, errors[w] + x, n), sum);
        }
        if (stream) {
          hn::Stream(sum, d, to + x);
        } else {
          store_part(d, sum, to + x, n);
        }
      });
      from = to;
    }
  }

  const OpArgs& args_;
  FwpkmSizes s;
  FwpkmForwardPlan plan_;
  const float *q_, *v_, *g_, *keys_;
  float *y_, *weights_, *losses_;
  int32_t *slots_, *ids_, *picks_;
  int32_t *writes_ = nullptr, *counts_ = nullptr;
  ValueRows rows_;
  bool stream_rows_;  // whether new rows are whole vectors, aligned
  float* key_rows_ = nullptr;
  int32_t* key_starts_ = nullptr;
};

}  // namespace

void fwpkm_forward(const OpArgs& args) {
  Forward(args).run();
}

}  // namespace HWY_NAMESPACE
}  // namespace fwpkm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fwpkm {

HWY_EXPORT(fwpkm_forward);

void fwpkm_forward_cpu(const OpArgs& args) {
  HWY_DYNAMIC_DISPATCH(fwpkm_forward)(args);
}

size_t fwpkm_workspace_cpu(const OpArgs& args, bool backward) {
  const FwpkmSizes s(args);
  return backward ? FwpkmBackwardPlan(s, nullptr).bytes
                  : FwpkmForwardPlan(s, static_cast<bool>(args.saved[FwpkmSaved::scores]), nullptr)
                        .bytes;
}

}  // namespace fwpkm
#endif
