// Fast-weight product-key memory: all chunks of a sequence, read and written, as one op.
//
// For each chunk of C tokens: every token reads the table with its query (README.md, "Read"); then
// the tokens whose pair (t, t+L) lies inside the chunk write the values of the slots they read
// towards v_{t+L}, and the sub-keys move ("Write"). Later chunks read what earlier ones wrote, and
// gradients go through all of it.
//
// The op is pure. It never changes the keys and values it is given: what it wrote comes out as new
// keys and a list of new rows, which the caller keeps, commits or drops. So a forward can be run
// again at will, and a step that is rejected leaves nothing behind.
#pragma once

#include "memory/overlay.h"
#include "tensor/tensor.h"

namespace fwpkm {

struct FwpkmSettings {
  int32_t heads = 1, topk = 8, n_subkeys = 512;
  int32_t lookahead = 1;    // L
  int64_t chunk = 512;      // C
  int64_t bptt_chunks = 0;  // gradients of fast weights stop at every so many chunks; 0: never
  double step = 8;          // eta of a value write; not used with `rewrite`
  double addr_weight = 1;   // of the addressing loss
  bool rewrite = false;     // eta = 1 / sum_i w_i^2
  bool dot = false;         // scores are dot products, not inverse distances
  bool addr_loss = true;    // keys follow the addressing loss; else the memory loss
  bool official = false;    // SPEC's "compat: official"; `step` is then without C/(C-L)
  bool shared = false;      // all rows of the batch write one table; else each row its own
  bool write = true;        // false: read only
  // False: nobody asks for the rows that the last chunk writes, which no token of the call reads;
  // they may then be missing.
  bool last_write = true;
  // Backward takes, for the rows that the first chunk read, those after the last one, as the
  // released code does: it writes them over the first ones while autograd still needs those. Not
  // the gradient of anything; for comparing with numbers made by that code.
  bool late_values = false;
  bool halved = false;  // FwpkmRows::halved, which sets it
};

// How the rows of a table lie that is in a store (store.h); as they are by themselves if nothing is
// given.
struct FwpkmRows {
  bool halved = false;  // in halves: those of the table, and those that are written
  // Of shared memory: where new rows go, [rows, dv]; where the rows of slots are, [slots] int32;
  // where those of the log are, [rows] int32. Places are rows of the table, then of the log.
  Tensor log, places, free;
};

// Whether rows of dv numbers may lie in halves, in calls with these settings.
bool can_halve_rows(const FwpkmSettings& settings, int64_t dv, Device device);

// A selection to be taken instead of searching for the best: for comparing runs whose rounding
// differs, and for gradients by differences.
struct FwpkmSelection {
  Tensor ids;    // [B, T, H, 2, k] int32: sub-keys of each head and codebook, all different
  Tensor picks;  // [B, T, H, k] int32: a*k + b: the slot of sub-keys ids[0][a] and ids[1][b]
};

struct FwpkmResult {
  Tensor output;   // [B, T, dv]
  Tensor slots;    // [B, T, H*k] int32, each head's by falling score
  Tensor weights;  // [B, T, H*k]
  Tensor losses;   // [B, T]: weighted squared error, mean over features; 0 where nothing is written
  Tensor addressing;  // [chunks]: the addressing loss of each chunk, 0 without
  FwpkmSelection selection;
  // What was written; empty handles if settings.write is off.
  Tensor keys;    // [H*2*n, dk/2]: after the last chunk
  Tensor rows;    // [.., dv]: new values, among them superseded ones
  Tensor writes;  // [.., 3] int32: owner, slot, number in `rows` (-1: only read)
  Tensor counts;  // [owners] int32: entries of each owner in `writes`; owner o's start at o *
                  // (entries / owners)
};

// q [B, T, H*dk], v [B, T, dv] or empty (if nothing is written), g [B, T] or empty (writes of
// weight 1), keys [H*2*n, dk/2] (by head, codebook, sub-key), values [n*n, dv]: a table, or, with a
// row stride of 0, one row that all slots start from. Gradients flow from the output to q, v and g.
FwpkmResult fwpkm_memory(Run& run, const Tensor& q, const Tensor& v, const Tensor& g,
                         const Tensor& keys, const Tensor& values, const FwpkmSettings& settings,
                         const OverlayViews& overlay = {}, const FwpkmSelection& selection = {},
                         const FwpkmRows& stored = {});

extern const Op kFwpkm;
std::vector<struct Case> fwpkm_cases();
void fwpkm_forward_cpu(const OpArgs& args);
void fwpkm_backward_cpu(const OpArgs& args);
size_t fwpkm_workspace_cpu(const OpArgs& args, bool backward);
void fwpkm_forward_cuda(const OpArgs& args);
void fwpkm_backward_cuda(const OpArgs& args);
size_t fwpkm_workspace_cuda(const OpArgs& args, bool backward);

// Places of tensors in a call.
struct FwpkmIn {
  enum : int { q, v, g, keys, values, ids, picks, directory, pages, rows, places, free, count };
};
struct FwpkmOut {
  enum : int {
    y,
    slots,
    weights,
    losses,
    addressing,
    ids,
    picks,
    keys,
    rows,
    writes,
    counts,
    count
  };
};
// scores: of the selected sub-keys. share: 1/N of each read's slot, 0 where it is not written.
// source: the row that was read: in `rows` if >= 0, the table's if -1, else overlay row -2-source;
// with `places`: the place of a row that the call wrote, or -2-place.
// chain: the entry of `writes`. key_rows: sub-keys as they were before each chunk that moved them;
// key_starts: where each chunk's begin there. groups: FwpkmSizes::group_bytes.
struct FwpkmSaved {
  enum : int { scores, share, source, chain, key_rows, key_starts, groups, count };
};

// What a Profile calls the parts of the CPU kernels' time; together they are all of it.
// read: scores, selection, weighted sums. The writes of values: errors, which slots are touched,
// and new rows. Backward of values: through the value write and the weighted sums. The others:
// sub-keys.
struct FwpkmPhases {
  static constexpr const char* read = "fwpkm.read";
  static constexpr const char* write_values = "fwpkm.write_values";
  static constexpr const char* write_keys = "fwpkm.write_keys";
  static constexpr const char* backward_values = "fwpkm.backward_values";
  static constexpr const char* backward_keys = "fwpkm.backward_keys";
};

// The sizes of a call.
struct FwpkmSizes {
  FwpkmSettings set;
  int64_t batch, time, heads, k, n, half, dv;
  int64_t row;    // H*dk
  int64_t reads;  // H*k
  int64_t books;  // H*2
  int64_t chunks;
  int64_t owners;
  int64_t chain_cap;  // entries of `writes` for each owner
  int64_t log_cap;    // rows of `rows` for each owner

  explicit FwpkmSizes(const OpArgs& args)
      : FwpkmSizes(args.attr<FwpkmSettings>(), args.in[FwpkmIn::q].shape,
                   args.in[FwpkmIn::keys].shape, args.in[FwpkmIn::values].shape) {}
  FwpkmSizes(const FwpkmSettings& settings, const Shape& q, const Shape& keys, const Shape& values);

  int64_t begin(int64_t c) const { return c * set.chunk; }
  int64_t end(int64_t c) const { return std::min(time, (c + 1) * set.chunk); }
  // Tokens of each row that write in chunk c: its first ones.
  int64_t writers(int64_t c) const {
    return std::max<int64_t>(0, end(c) - begin(c) - set.lookahead);
  }
  int64_t owner(int64_t b) const { return set.shared ? 0 : b; }
  bool moves_keys() const { return !set.addr_loss || set.addr_weight != 0; }
  // Constant part of eta in chunk c.
  double step(int64_t c) const {
    const auto length = static_cast<double>(end(c) - begin(c));
    return set.official && writers(c) > 0 ? set.step * length / static_cast<double>(writers(c))
                                          : set.step;
  }
  // The distribution that a sub-key's use counts in, and how many tokens it is the mean of.
  int64_t marginal(int64_t book) const { return set.official ? book % 2 : book; }
  int64_t marginals() const { return set.official ? 2 : books; }
  // FwpkmSaved::groups, which only a GPU wants: what forward sorts and backward needs sorted.
  int64_t group_bytes() const;
  int64_t marginal_tokens(int64_t c) const {
    return batch * (end(c) - begin(c)) * (set.official ? heads : 1);
  }
};

// Reads of a token that a GPU goes through at once; rows in halves want no more of them.
inline constexpr int kFwpkmFewReads = 8;

inline constexpr double kIdwEps = 1e-3;       // in -log(eps + distance^2)
inline constexpr double kMarginalEps = 1e-8;  // in p log(p + eps)

}  // namespace fwpkm
