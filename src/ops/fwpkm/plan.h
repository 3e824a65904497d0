// What the CPU kernels of the memory share: where things lie, and the tokens of a chunk.
#pragma once

#include "base/parallel.h"
#include "memory/segments.h"
#include "memory/slot_map.h"
#include "memory/topk.h"
#include "ops/common/carver.h"
#include "ops/fwpkm/fwpkm.h"

namespace fwpkm {

// Tokens whose scores are computed by one product, and that a thread takes at a time.
inline constexpr int64_t kFwpkmBlock = 64;
// Up to this many tokens, distances to all sub-keys are computed directly.
inline constexpr int64_t kFwpkmFew = 4;
// Sub-keys that are looked at closely beyond the k best by the product.
inline constexpr int64_t kFwpkmSpare = 8;

// The tokens of one chunk, of all rows: number j of the chunk is token(j) of the batch.
struct ChunkTokens {
  int64_t first, length, time, writers, count;

  ChunkTokens(const FwpkmSizes& s, int64_t c)
      : first(s.begin(c)),
        length(s.end(c) - s.begin(c)),
        time(s.time),
        writers(s.set.write ? s.writers(c) : 0),
        count(s.batch * length) {}
  int64_t token(int64_t j) const { return j / length * time + first + j % length; }
  bool writes(int64_t j) const { return j % length < writers; }
};

// Selections of a chunk grouped by sub-key: entries j*k + rank, by token, of each sub-key of each
// codebook.
struct SubkeyGroups {
  int32_t* starts;   // [books, n + 1], inside a codebook's entries
  int32_t* entries;  // [books, tokens*k]
  int64_t stride;    // entries of a codebook

  void take(Carver* carver, const FwpkmSizes& s, int64_t tokens) {
    stride = tokens * s.k;
    starts = carver->take<int32_t>(s.books * (s.n + 1));
    entries = carver->take<int32_t>(s.books * stride);
  }
  int64_t begin(const FwpkmSizes& s, int64_t key) const {
    return starts[key / s.n * (s.n + 1) + key % s.n];
  }
  int64_t end(const FwpkmSizes& s, int64_t key) const {
    return starts[key / s.n * (s.n + 1) + key % s.n + 1];
  }
  const int32_t* of(const FwpkmSizes& s, int64_t key) const { return entries + key / s.n * stride; }
};

// ids are those of all tokens, [B*T, books, k].
void group_by_subkey(const FwpkmSizes& s, const ChunkTokens& tokens, const int32_t* ids,
                     const SubkeyGroups& groups);

// What moves the sub-keys of a chunk.
struct KeyPush {
  float* p;      // [tokens, books, k]: softmax over the selected sub-scores
  float* push;   // [tokens, books, k]: score gradients of the loss that the keys follow
  float* pbar;   // [marginals, n]
  float* slope;  // [marginals, n]: of p log(p + eps)
  float* along;  // [tokens, reads]: <e, V> of each read; without the addressing loss

  void take(Carver* carver, const FwpkmSizes& s, int64_t tokens) {
    p = carver->take<float>(tokens * s.books * s.k);
    push = carver->take<float>(tokens * s.books * s.k);
    pbar = carver->take<float>(s.marginals() * s.n);
    slope = carver->take<float>(s.marginals() * s.n);
    along = carver->take<float>(s.set.addr_loss ? 0 : tokens * s.reads);
  }
};

// Fills p, pbar, slope and push from the selected scores [B*T, books, k]; returns the loss.
double addressing_push(const FwpkmSizes& s, int64_t c, const ChunkTokens& tokens,
                       const int32_t* ids, const float* scores, const KeyPush& to);
// Fills push from `along`: the gradient of half the mean weighted squared error.
void memory_push(const FwpkmSizes& s, const ChunkTokens& tokens, const int32_t* picks,
                 const float* weights, const float* gates, const KeyPush& to);
// 1 over what the memory loss is a mean of.
float memory_mean(const FwpkmSizes& s, const ChunkTokens& tokens);

// Rows of values, wherever they lie.
struct ValueRows {
  const float *table, *overlay, *log;
  int64_t dv;
  int64_t table_stride;
  const float* at(int32_t source, int32_t slot) const {
    return source >= 0    ? log + source * dv
           : source == -1 ? table + slot * table_stride
                          : overlay + (-2 - int64_t{source}) * dv;
  }
};

inline int64_t longest_chunk(const FwpkmSizes& s) {
  return std::min(s.time, s.set.chunk);
}

// What one thread needs to select the best.
struct SelectScratch {
  std::byte* sort;       // of top_k and product_top_k
  float* values;         // [near]
  int32_t *ids, *ranks;  // [near]
  float* sums;           // [k]
  int64_t near;          // sub-keys looked at closely
  size_t bytes;

  SelectScratch(const FwpkmSizes& s, void* memory) : near(std::min(s.n, s.k + kFwpkmSpare)) {
    Carver carver(memory);
    sort = carver.take<std::byte>(
        static_cast<int64_t>(std::max(top_k_scratch(s.n), product_top_k_scratch(s.k))));
    values = carver.take<float>(near);
    ids = carver.take<int32_t>(near);
    ranks = carver.take<int32_t>(near);
    sums = carver.take<float>(std::max(near, s.k));
    bytes = carver.used();
  }
};

struct FwpkmForwardPlan {
  // As in FwpkmSaved; here where nothing is saved.
  float *scores, *share;
  int32_t *source, *chain;
  float* products;        // [threads, block, n]
  float* norms;           // [books, n], |K|^2
  float* max_norm;        // [books]
  int32_t* key_places;    // [books, n]: where a sub-key that moves is among them, or -1
  std::byte* select;      // [threads, select_bytes]
  std::byte* maps;        // [owners, map_bytes]
  int32_t* chain_source;  // [owners, chain_cap]: the row that holds the slot now
  int32_t* log_counts;    // [owners]
  std::byte* sort;
  int32_t *segments, *segment_rows;
  const float** segment_from;
  float *errors, *coefficients;
  float* old_key;  // [threads, half]
  KeyPush push;
  SubkeyGroups groups;
  size_t select_bytes, map_bytes;
  size_t bytes;

  FwpkmForwardPlan(const FwpkmSizes& s, bool saved, void* workspace) {
    Carver carver(workspace);
    const int64_t all = s.batch * s.time, chunk = s.batch * longest_chunk(s);
    scores = saved ? nullptr : carver.take<float>(all * s.books * s.k);
    share = saved ? nullptr : carver.take<float>(all * s.reads);
    source = saved ? nullptr : carver.take<int32_t>(all * s.reads);
    chain = saved ? nullptr : carver.take<int32_t>(all * s.reads);
    const int64_t block = std::min(kFwpkmBlock, longest_chunk(s));
    products = carver.take<float>(threads() * block * s.n);
    norms = carver.take<float>(s.books * s.n);
    max_norm = carver.take<float>(s.books);
    select_bytes = SelectScratch(s, nullptr).bytes;
    select = carver.take<std::byte>(threads() * static_cast<int64_t>(select_bytes));
    if (s.set.write) {
      map_bytes = SlotMap::bytes(s.chain_cap);
      maps = carver.take<std::byte>(s.owners * static_cast<int64_t>(map_bytes));
      chain_source = carver.take<int32_t>(s.owners * s.chain_cap);
      log_counts = carver.take<int32_t>(s.owners);
      sort = carver.take<std::byte>(static_cast<int64_t>(sort_by_id_scratch(chunk * s.reads)));
      segments = carver.take<int32_t>(chunk * s.reads + 1);
      segment_rows = carver.take<int32_t>(chunk * s.reads);
      segment_from = carver.take<const float*>(chunk * s.reads);
      errors = carver.take<float>(chunk * s.dv);
      coefficients = carver.take<float>(chunk * s.reads);
      old_key = carver.take<float>(threads() * s.half);
      key_places = carver.take<int32_t>(s.books * s.n);
      push.take(&carver, s, chunk);
      groups.take(&carver, s, chunk);
    }
    bytes = carver.used();
  }
};

struct FwpkmBackwardPlan {
  float *keys, *dkeys;  // [books, n, half]: before the chunk; gradients of those after it
  float* dvalues;       // [owners * chain_cap, dv]: gradients of rows as they are after the chunk
  uint8_t* live;        // [owners * chain_cap]: whether there is one
  float *errors, *dreads;   // [tokens, dv]: e, and the whole gradient of what was read
  float *dw, *dalong;       // [tokens, reads]
  float *slope, *gam, *ds;  // [tokens, books, k]: 2 / (eps + distance^2), or 1; dpush; dscores
  float *mean_gam, *dpbar;  // [tokens, books], [marginals, n]
  std::byte* sort;
  int32_t* chains;           // [tokens, reads]
  int32_t* key_places;       // [books, n]: how many sub-keys before this one moved
  float *de, *list_weights;  // [threads, dv], [threads, reads]
  const float** list_rows;   // [threads, reads]
  KeyPush push;
  SubkeyGroups groups;
  size_t bytes;

  FwpkmBackwardPlan(const FwpkmSizes& s, void* workspace) {
    Carver carver(workspace);
    const int64_t chunk = s.batch * longest_chunk(s);
    keys = carver.take<float>(s.books * s.n * s.half);
    dkeys = carver.take<float>(s.books * s.n * s.half);
    const int64_t chains_all = s.set.write ? s.owners * s.chain_cap : 0;
    dvalues = carver.take<float>(chains_all * s.dv);
    live = carver.take<uint8_t>(chains_all);
    errors = carver.take<float>(chunk * s.dv);
    dreads = carver.take<float>(chunk * s.dv);
    dw = carver.take<float>(chunk * s.reads);
    dalong = carver.take<float>(chunk * s.reads);
    slope = carver.take<float>(chunk * s.books * s.k);
    gam = carver.take<float>(chunk * s.books * s.k);
    ds = carver.take<float>(chunk * s.books * s.k);
    mean_gam = carver.take<float>(chunk * s.books);
    dpbar = carver.take<float>(s.marginals() * s.n);
    sort = carver.take<std::byte>(static_cast<int64_t>(sort_by_id_scratch(chunk * s.reads)));
    chains = carver.take<int32_t>(chunk * s.reads);
    key_places = carver.take<int32_t>(s.books * s.n);
    de = carver.take<float>(threads() * s.dv);
    list_weights = carver.take<float>(threads() * s.reads);
    list_rows = carver.take<const float*>(threads() * s.reads);
    push.take(&carver, s, chunk);
    groups.take(&carver, s, chunk);
    bytes = carver.used();
  }
};

}  // namespace fwpkm
