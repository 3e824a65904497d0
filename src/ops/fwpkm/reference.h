// The memory as the formulas of README.md, one loop after the other. It keeps what it needs in maps
// and whole copies of the keys; backward runs forward again first (the op is pure, so it can).
#pragma once

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "memory/topk.h"
#include "ops/common/rows.h"
#include "ops/fwpkm/fwpkm.h"

namespace fwpkm {

template <typename T>
class FwpkmTwin {
 public:
  explicit FwpkmTwin(const OpArgs& args) : args_(args), s(args) {
    q_ = args.in[FwpkmIn::q].ptr<T>();
    v_ = args.in[FwpkmIn::v].ptr<T>();
    g_ = args.in[FwpkmIn::g].ptr<T>();
    const T* keys = args.in[FwpkmIn::keys].ptr<T>();
    keys_.assign(keys, keys + s.books * s.n * s.half);
    const auto tokens = static_cast<size_t>(s.batch * s.time);
    const auto reads = static_cast<size_t>(s.reads), subs = static_cast<size_t>(s.books * s.k);
    const auto resize = [](size_t size, auto&... lists) { (lists.resize(size), ...); };
    resize(tokens * subs, ids_, scores_, push_);
    resize(tokens * reads, picks_, slots_, w_, share_);
    resize(tokens * static_cast<size_t>(s.dv), y_);
    resize(tokens, losses_);
    addressing_.resize(static_cast<size_t>(s.chunks));
  }

  void forward() {
    for (int64_t c = 0; c < s.chunks; ++c) {
      chunks_.push_back({keys_, {}});
      for_tokens(c, [&](int64_t t) { read(c, t); });
      if (s.set.write) {
        const std::vector<T> moved = move_keys(c);
        write_values(c);
        keys_ = moved;
      }
    }
  }
  void store() const;
  void backward();

 private:
  using Place = std::pair<int64_t, int32_t>;  // owner and slot
  using Table = std::map<Place, std::vector<T>>;
  struct Chunk {
    std::vector<T> keys;  // before its write
    Table rows;           // that it read, before its write
  };

  template <typename Fn>
  void for_tokens(int64_t c, Fn&& fn) const {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t t = s.begin(c); t < s.end(c); ++t) {
        fn(b * s.time + t);
      }
    }
  }
  bool writes(int64_t c, int64_t t) const { return t % s.time - s.begin(c) < s.writers(c); }
  T gate(int64_t t) const { return g_ == nullptr ? T(1) : g_[t]; }
  Place place(int64_t t, int64_t r) const { return {s.owner(t / s.time), slots_[t * s.reads + r]}; }
  const T* query(int64_t t, int64_t book) const { return q_ + t * s.row + book * s.half; }
  int64_t sub(int64_t t, int64_t book, int64_t j) const { return (t * s.books + book) * s.k + j; }
  T r_of(int64_t at) const { return s.set.dot ? T(0) : std::exp(scores_[at]); }
  // The value that token t writes, and how far off the read was.
  T error(int64_t t, int64_t i) const {
    return y_[t * s.dv + i] - v_[(t + s.set.lookahead) * s.dv + i];
  }
  T eta(int64_t c, int64_t t) const {
    if (!s.set.rewrite) {
      return static_cast<T>(s.step(c));
    }
    T squares = 0;
    for (int64_t r = 0; r < s.reads; ++r) {
      squares += w_[t * s.reads + r] * w_[t * s.reads + r];
    }
    return T(1) / squares;
  }

  std::vector<T> row_now(const Place& place) const {
    if (const auto it = now_.find(place); it != now_.end()) {
      return it->second;
    }
    const View& values = args_.in[FwpkmIn::values];
    const T* from = values.ptr<T>() + place.second * values.stride(0);
    if (args_.in[FwpkmIn::directory]) {
      const int32_t* directory = args_.in[FwpkmIn::directory].ptr<int32_t>();
      const int32_t page = directory[place.first * s.n + place.second / s.n];
      const int32_t* pages = args_.in[FwpkmIn::pages].ptr<int32_t>();
      const int32_t row = page < 0 ? -1 : pages[page * s.n + place.second % s.n];
      if (row >= 0) {
        from = args_.in[FwpkmIn::rows].ptr<T>() + row * s.dv;
      }
    }
    return std::vector<T>(from, from + s.dv);
  }

  T score(const T* q, const T* key) const {
    T sum = 0;
    for (int64_t i = 0; i < s.half; ++i) {
      sum += s.set.dot ? q[i] * key[i] : (q[i] - key[i]) * (q[i] - key[i]);
    }
    return s.set.dot ? sum : -std::log(static_cast<T>(kIdwEps) + sum);
  }

  // The row that backward takes for one that chunk c read: itself, but see late_values.
  const std::vector<T>& late_row(int64_t c, const Place& place) const {
    const auto it = now_.find(place);
    return s.set.late_values && c == 0 && it != now_.end() ? it->second : chunks_[c].rows.at(place);
  }

  void select(int64_t t);
  void read(int64_t c, int64_t t);
  // P, the softmax over the selected sub-scores of a token in a codebook.
  std::vector<T> local_softmax(int64_t t, int64_t book) const;
  std::vector<T> marginals(int64_t c) const;
  std::vector<T> move_keys(int64_t c);
  void write_values(int64_t c);
  void backward_chunk(int64_t c, std::vector<T>* E, Table* D);
  void backward_addressing(int64_t c, const std::vector<T>& gam, std::vector<T>* ds) const;

  const OpArgs& args_;
  FwpkmSizes s;
  const T *q_, *v_, *g_;
  std::vector<T> keys_;                       // as they are now
  Table now_;                                 // rows that were written
  std::vector<Chunk> chunks_;                 // what backward needs
  std::vector<int32_t> ids_, picks_, slots_;  // as in FwpkmOut
  std::vector<T> scores_, w_, share_, y_;     // as in FwpkmOut and FwpkmSaved
  std::vector<T> push_;                       // score gradients that move the keys
  std::vector<T> losses_, addressing_;
};

template <typename T>
void FwpkmTwin<T>::select(int64_t t) {
  const bool given = static_cast<bool>(args_.in[FwpkmIn::ids]);
  std::vector<T> all(static_cast<size_t>(s.n)), best(static_cast<size_t>(s.k));
  for (int64_t book = 0; book < s.books; ++book) {
    const T* keys = keys_.data() + book * s.n * s.half;
    int32_t* ids = ids_.data() + sub(t, book, 0);
    if (given) {
      const int32_t* from = args_.in[FwpkmIn::ids].ptr<int32_t>() + sub(t, book, 0);
      std::copy(from, from + s.k, ids);
    } else {
      for (int64_t i = 0; i < s.n; ++i) {
        all[i] = score(query(t, book), keys + i * s.half);
      }
      top_k_reference(all.data(), s.n, s.k, best.data(), ids);
    }
    for (int64_t j = 0; j < s.k; ++j) {
      scores_[sub(t, book, j)] = score(query(t, book), keys + ids[j] * s.half);
    }
  }
  std::vector<T> sums(static_cast<size_t>(s.k));
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t a = sub(t, 2 * h, 0), b = sub(t, 2 * h + 1, 0);
    int32_t* slots = slots_.data() + t * s.reads + h * s.k;
    int32_t* picks = picks_.data() + t * s.reads + h * s.k;
    if (given) {
      const int32_t* from = args_.in[FwpkmIn::picks].ptr<int32_t>() + t * s.reads + h * s.k;
      std::copy(from, from + s.k, picks);
    } else {
      product_top_k_reference(&scores_[a], &ids_[a], &scores_[b], &ids_[b], s.k, s.n, sums.data(),
                              slots);
      for (int64_t r = 0; r < s.k; ++r) {
        const auto rank = [&](int64_t list, int64_t id) {
          return std::find(&ids_[list], &ids_[list] + s.k, id) - &ids_[list];
        };
        picks[r] = static_cast<int32_t>(rank(a, slots[r] / s.n) * s.k + rank(b, slots[r] % s.n));
      }
    }
    for (int64_t r = 0; r < s.k; ++r) {
      slots[r] = static_cast<int32_t>(ids_[a + picks[r] / s.k] * s.n + ids_[b + picks[r] % s.k]);
    }
  }
}

template <typename T>
void FwpkmTwin<T>::read(int64_t c, int64_t t) {
  select(t);
  T* w = w_.data() + t * s.reads;
  T highest = 0, total = 0;
  for (int64_t r = 0; r < s.reads; ++r) {
    const int64_t h = r / s.k, pick = picks_[t * s.reads + r];
    w[r] = scores_[sub(t, 2 * h, pick / s.k)] + scores_[sub(t, 2 * h + 1, pick % s.k)];
    highest = r == 0 ? w[r] : std::max(highest, w[r]);
  }
  for (int64_t r = 0; r < s.reads; ++r) {
    w[r] = std::exp(w[r] - highest);
    total += w[r];
  }
  T* y = y_.data() + t * s.dv;
  std::fill_n(y, s.dv, T(0));
  for (int64_t r = 0; r < s.reads; ++r) {
    w[r] /= total;
    std::vector<T>& row = chunks_[c].rows[place(t, r)];
    if (row.empty()) {
      row = row_now(place(t, r));
    }
    for (int64_t i = 0; i < s.dv; ++i) {
      y[i] += w[r] * row[i];
    }
  }
}

template <typename T>
std::vector<T> FwpkmTwin<T>::local_softmax(int64_t t, int64_t book) const {
  const T* score = &scores_[sub(t, book, 0)];
  const T highest = *std::max_element(score, score + s.k);
  std::vector<T> p(static_cast<size_t>(s.k));
  T total = 0;
  for (int64_t j = 0; j < s.k; ++j) {
    total += p[j] = std::exp(score[j] - highest);
  }
  for (T& x : p) {
    x /= total;
  }
  return p;
}

// pbar [marginals, n].
template <typename T>
std::vector<T> FwpkmTwin<T>::marginals(int64_t c) const {
  std::vector<T> pbar(static_cast<size_t>(s.marginals() * s.n));
  for_tokens(c, [&](int64_t t) {
    for (int64_t book = 0; book < s.books; ++book) {
      const std::vector<T> p = local_softmax(t, book);
      for (int64_t j = 0; j < s.k; ++j) {
        pbar[s.marginal(book) * s.n + ids_[sub(t, book, j)]] +=
            p[j] / static_cast<T>(s.marginal_tokens(c));
      }
    }
  });
  return pbar;
}

// Fills push_ and returns the keys after the chunk.
template <typename T>
std::vector<T> FwpkmTwin<T>::move_keys(int64_t c) {
  const T lambda = static_cast<T>(s.set.addr_weight), eps = static_cast<T>(kMarginalEps);
  if (s.set.addr_loss) {
    const std::vector<T> pbar = marginals(c);
    for (const T p : pbar) {
      addressing_[c] += lambda * p * std::log(p + eps);
    }
    for_tokens(c, [&](int64_t t) {
      for (int64_t book = 0; book < s.books; ++book) {
        const std::vector<T> p = local_softmax(t, book);
        const auto a = [&](int64_t j) {
          const T pj = pbar[s.marginal(book) * s.n + ids_[sub(t, book, j)]];
          return std::log(pj + eps) + pj / (pj + eps);
        };
        T mean = 0;
        for (int64_t j = 0; j < s.k; ++j) {
          mean += p[j] * a(j);
        }
        for (int64_t j = 0; j < s.k; ++j) {
          push_[sub(t, book, j)] =
              lambda * p[j] * (a(j) - mean) / static_cast<T>(s.marginal_tokens(c));
        }
      }
    });
  } else {
    const T kappa = T(1) / static_cast<T>(std::max<int64_t>(1, s.batch * s.writers(c)) * s.dv);
    for_tokens(c, [&](int64_t t) {
      std::fill_n(&push_[sub(t, 0, 0)], s.books * s.k, T(0));
      if (!writes(c, t)) {
        return;
      }
      std::vector<T> along(static_cast<size_t>(s.reads));  // <e, V_i>
      T mean = 0;
      for (int64_t r = 0; r < s.reads; ++r) {
        const std::vector<T>& row = chunks_[c].rows.at(place(t, r));
        for (int64_t i = 0; i < s.dv; ++i) {
          along[r] += error(t, i) * row[i];
        }
        mean += w_[t * s.reads + r] * along[r];
      }
      for (int64_t r = 0; r < s.reads; ++r) {
        const T ds = kappa * gate(t) * w_[t * s.reads + r] * (along[r] - mean);
        const int64_t h = r / s.k, pick = picks_[t * s.reads + r];
        push_[sub(t, 2 * h, pick / s.k)] += ds;
        push_[sub(t, 2 * h + 1, pick % s.k)] += ds;
      }
    });
  }
  std::vector<T> moved = keys_;
  for_tokens(c, [&](int64_t t) {
    for (int64_t book = 0; book < s.books; ++book) {
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t at = sub(t, book, j), key = (book * s.n + ids_[at]) * s.half;
        for (int64_t i = 0; i < s.half; ++i) {
          const T q = query(t, book)[i];
          const T slope = s.set.dot ? q : 2 * r_of(at) * (q - keys_[key + i]);
          moved[key + i] -= push_[at] * slope;
        }
      }
    }
  });
  return moved;
}

template <typename T>
void FwpkmTwin<T>::write_values(int64_t c) {
  std::map<Place, int64_t> count;
  for_tokens(c, [&](int64_t t) {
    for (int64_t r = 0; r < s.reads; ++r) {
      count[place(t, r)] += writes(c, t) || s.set.official ? 1 : 0;
    }
  });
  for_tokens(c, [&](int64_t t) {
    if (!writes(c, t)) {
      return;
    }
    for (int64_t i = 0; i < s.dv; ++i) {
      losses_[t] += gate(t) * error(t, i) * error(t, i) / static_cast<T>(s.dv);
    }
    for (int64_t r = 0; r < s.reads; ++r) {
      const T share = T(1) / static_cast<T>(count.at(place(t, r)));
      share_[t * s.reads + r] = share;
      std::vector<T>& row = now_[place(t, r)];
      if (row.empty()) {
        row = chunks_[c].rows.at(place(t, r));
      }
      for (int64_t i = 0; i < s.dv; ++i) {
        row[i] -= share * eta(c, t) * gate(t) * w_[t * s.reads + r] * error(t, i);
      }
    }
  });
}

template <typename T>
void FwpkmTwin<T>::store() const {
  const auto put = [&]<typename X>(int out, const std::vector<X>& values) {
    std::copy(values.begin(), values.end(), args_.out[out].ptr<X>());
  };
  put(FwpkmOut::y, y_);
  put(FwpkmOut::slots, slots_);
  put(FwpkmOut::weights, w_);
  put(FwpkmOut::losses, losses_);
  put(FwpkmOut::addressing, addressing_);
  put(FwpkmOut::ids, ids_);
  put(FwpkmOut::picks, picks_);
  if (!s.set.write) {
    return;
  }
  put(FwpkmOut::keys, keys_);
  std::vector<int32_t> counts(static_cast<size_t>(s.owners));
  int32_t number = 0;
  for (const auto& [place, row] : now_) {
    std::copy(row.begin(), row.end(), args_.out[FwpkmOut::rows].ptr<T>() + number * s.dv);
    const int64_t entry = place.first * s.chain_cap + counts[place.first]++;
    int32_t* write = args_.out[FwpkmOut::writes].ptr<int32_t>() + entry * 3;
    write[0] = static_cast<int32_t>(place.first);
    write[1] = place.second;
    write[2] = number++;
  }
  put(FwpkmOut::counts, counts);
}

// Through the addressing loss's gradient (README.md): adds to the score gradients ds [chunk tokens
// of all, books, k] from gam, the gradients of push_.
template <typename T>
void FwpkmTwin<T>::backward_addressing(int64_t c, const std::vector<T>& gam,
                                       std::vector<T>* ds) const {
  const T lambda = static_cast<T>(s.set.addr_weight), eps = static_cast<T>(kMarginalEps);
  const auto tokens = static_cast<T>(s.marginal_tokens(c));
  const std::vector<T> pbar = marginals(c);
  std::vector<T> dpbar(pbar.size());
  const auto of = [&](int64_t t, int64_t book, int64_t j) {
    return s.marginal(book) * s.n + ids_[sub(t, book, j)];
  };
  const auto mean_gam = [&](int64_t t, int64_t book, const std::vector<T>& p) {
    T mean = 0;
    for (int64_t j = 0; j < s.k; ++j) {
      mean += lambda * gam[sub(t, book, j)] * p[j];
    }
    return mean;
  };
  for_tokens(c, [&](int64_t t) {
    for (int64_t book = 0; book < s.books; ++book) {
      const std::vector<T> p = local_softmax(t, book);
      const T mean = mean_gam(t, book, p);
      for (int64_t j = 0; j < s.k; ++j) {
        dpbar[of(t, book, j)] += p[j] * (lambda * gam[sub(t, book, j)] - mean) / tokens;
      }
    }
  });
  for (size_t i = 0; i < pbar.size(); ++i) {
    dpbar[i] *= T(1) / (pbar[i] + eps) + eps / ((pbar[i] + eps) * (pbar[i] + eps));
  }
  for_tokens(c, [&](int64_t t) {
    for (int64_t book = 0; book < s.books; ++book) {
      const std::vector<T> p = local_softmax(t, book);
      const T mean = mean_gam(t, book, p);
      std::vector<T> a(p.size()), dp(p.size());
      T a_mean = 0, dp_mean = 0;
      for (int64_t j = 0; j < s.k; ++j) {
        const T pj = pbar[of(t, book, j)];
        a[j] = std::log(pj + eps) + pj / (pj + eps);
        a_mean += p[j] * a[j];
      }
      for (int64_t j = 0; j < s.k; ++j) {
        dp[j] = (lambda * gam[sub(t, book, j)] * (a[j] - a_mean) - a[j] * mean +
                 dpbar[of(t, book, j)]) /
                tokens;
        dp_mean += p[j] * dp[j];
      }
      for (int64_t j = 0; j < s.k; ++j) {
        (*ds)[sub(t, book, j)] += p[j] * (dp[j] - dp_mean);
      }
    }
  });
}

// E: gradient of the keys after the chunk, then of those before it. D: likewise of value rows.
template <typename T>
void FwpkmTwin<T>::backward_chunk(int64_t c, std::vector<T>* E, Table* D) {
  const std::vector<T>& keys = chunks_[c].keys;
  const Table& rows = chunks_[c].rows;
  T *dq = args_.din[0].ptr<T>(), *dv = args_.din[1].ptr<T>(), *dg = args_.din[2].ptr<T>();
  const auto key_at = [&](int64_t t, int64_t book, int64_t j) {
    return (book * s.n + ids_[sub(t, book, j)]) * s.half;
  };
  std::vector<T> gam(scores_.size()), ds(scores_.size());
  if (s.set.write) {
    for_tokens(c, [&](int64_t t) {
      for (int64_t book = 0; book < s.books; ++book) {
        for (int64_t j = 0; j < s.k; ++j) {
          const int64_t at = sub(t, book, j), key = key_at(t, book, j);
          T u = 0;
          for (int64_t i = 0; i < s.half; ++i) {
            const T q = query(t, book)[i];
            u += (s.set.dot ? q : q - keys[key + i]) * (*E)[key + i];
          }
          gam[at] = s.set.dot ? -u : -2 * r_of(at) * u;
          ds[at] = s.set.dot ? T(0) : push_[at] * gam[at];
        }
      }
    });
    if (s.set.addr_loss) {
      backward_addressing(c, gam, &ds);
    }
  }

  // Values: the write, then the read.
  Table dD;
  const T kappa = T(1) / static_cast<T>(std::max<int64_t>(1, s.batch * s.writers(c)) * s.dv);
  const Rows dy_rows(args_.dout[0]);
  for_tokens(c, [&](int64_t t) {
    const T* dy = args_.dout[0].ptr<T>() + dy_rows[t];
    const T* w = w_.data() + t * s.reads;
    std::vector<T> dyhat(dy, dy + s.dv), de(static_cast<size_t>(s.dv)), e(de);
    std::vector<T> dw(static_cast<size_t>(s.reads)), along(dw), dalong(dw);
    if (s.set.write && writes(c, t)) {
      const T step = eta(c, t), gate_t = gate(t);
      T deta = 0, dgate = 0;
      for (int64_t i = 0; i < s.dv; ++i) {
        e[i] = error(t, i);
      }
      for (int64_t r = 0; r < s.reads; ++r) {
        const auto it = D->find(place(t, r));
        if (it == D->end()) {
          continue;
        }
        const T share = share_[t * s.reads + r];
        T x = 0;
        for (int64_t i = 0; i < s.dv; ++i) {
          x += it->second[i] * e[i];
          de[i] -= share * step * gate_t * w[r] * it->second[i];
        }
        dgate -= share * step * w[r] * x;
        deta -= share * gate_t * w[r] * x;
        dw[r] -= share * step * gate_t * x;
      }
      if (s.set.rewrite) {
        for (int64_t r = 0; r < s.reads; ++r) {
          dw[r] -= deta * step * step * 2 * w[r];
        }
      }
      if (!s.set.addr_loss) {
        T mean = 0, gam_mean = 0;
        std::vector<T> pull(dw.size());
        for (int64_t r = 0; r < s.reads; ++r) {
          const std::vector<T>& row = rows.at(place(t, r));
          for (int64_t i = 0; i < s.dv; ++i) {
            along[r] += e[i] * row[i];
          }
          const int64_t h = r / s.k, pick = picks_[t * s.reads + r];
          pull[r] = gam[sub(t, 2 * h, pick / s.k)] + gam[sub(t, 2 * h + 1, pick % s.k)];
          mean += w[r] * along[r];
          gam_mean += w[r] * pull[r];
        }
        for (int64_t r = 0; r < s.reads; ++r) {
          dalong[r] = kappa * gate_t * w[r] * (pull[r] - gam_mean);
          dgate += kappa * w[r] * (along[r] - mean) * pull[r];
          dw[r] += kappa * gate_t * ((along[r] - mean) * pull[r] - along[r] * gam_mean);
          for (int64_t i = 0; i < s.dv; ++i) {
            de[i] += dalong[r] * rows.at(place(t, r))[i];
          }
        }
      }
      for (int64_t i = 0; i < s.dv; ++i) {
        dyhat[i] += de[i];
        if (dv != nullptr) {
          dv[(t + s.set.lookahead) * s.dv + i] -= de[i];
        }
      }
      if (dg != nullptr) {
        dg[t] += dgate;
      }
    }
    T mean = 0;
    for (int64_t r = 0; r < s.reads; ++r) {
      const std::vector<T>& row = late_row(c, place(t, r));
      std::vector<T>& to = dD[place(t, r)];
      to.resize(static_cast<size_t>(s.dv));
      for (int64_t i = 0; i < s.dv; ++i) {
        dw[r] += dyhat[i] * row[i];
        to[i] += w[r] * dyhat[i] + dalong[r] * e[i];
      }
      mean += w[r] * dw[r];
    }
    for (int64_t r = 0; r < s.reads; ++r) {
      const int64_t h = r / s.k, pick = picks_[t * s.reads + r];
      const T slot_ds = w[r] * (dw[r] - mean);
      ds[sub(t, 2 * h, pick / s.k)] += slot_ds;
      ds[sub(t, 2 * h + 1, pick % s.k)] += slot_ds;
    }
  });
  for (auto& [place, row] : dD) {
    std::vector<T>& to = (*D)[place];
    to.resize(static_cast<size_t>(s.dv));
    for (int64_t i = 0; i < s.dv; ++i) {
      to[i] += row[i];
    }
  }

  // Scores to queries and keys.
  std::vector<T> dkeys = *E;
  for_tokens(c, [&](int64_t t) {
    for (int64_t book = 0; book < s.books; ++book) {
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t at = sub(t, book, j), key = key_at(t, book, j);
        const T moved = s.set.write ? push_[at] * (s.set.dot ? T(1) : 2 * r_of(at)) : T(0);
        for (int64_t i = 0; i < s.half; ++i) {
          const T q = query(t, book)[i];
          // Of the score by the key; by the query it is the opposite (IDW) or the key (dot).
          const T slope = s.set.dot ? q : 2 * r_of(at) * (q - keys[key + i]);
          dkeys[key + i] += ds[at] * slope + (s.set.dot ? T(0) : moved * (*E)[key + i]);
          if (dq != nullptr) {
            dq[t * s.row + book * s.half + i] +=
                ds[at] * (s.set.dot ? keys[key + i] : -slope) - moved * (*E)[key + i];
          }
        }
      }
    }
  });
  *E = std::move(dkeys);
}

template <typename T>
void FwpkmTwin<T>::backward() {
  for (int i = 0; i < 3; ++i) {
    if (args_.din[i] && !args_.accumulate[i]) {
      fill_zero(args_.din[i]);
    }
  }
  std::vector<T> E(keys_.size());
  Table D;
  for (int64_t c = s.chunks - 1; c >= 0; --c) {
    if (s.set.bptt_chunks > 0 && (c + 1) % s.set.bptt_chunks == 0) {
      std::fill(E.begin(), E.end(), T(0));
      D.clear();
    }
    backward_chunk(c, &E, &D);
  }
}

template <typename T>
void fwpkm_forward_reference(const OpArgs& args) {
  FwpkmTwin<T> twin(args);
  twin.forward();
  twin.store();
}

template <typename T>
void fwpkm_backward_reference(const OpArgs& args) {
  FwpkmTwin<T> twin(args);
  twin.forward();
  twin.backward();
}

}  // namespace fwpkm
