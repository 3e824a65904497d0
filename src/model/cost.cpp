#include "model/cost.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace fwpkm {
namespace {

__extension__ typedef __int128 Wide;  // holds every product below before it is checked

// Entries of matrices that every token is multiplied with, and all other parameters.
struct Slow {
  int64_t matrix = 0, other = 0;
  int64_t total() const { return matrix + other; }
};

Slow attention_params(const ModelConfig& c) {
  const AttentionConfig& a = c.attention;
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  // q with its output gate, k, v, out; a norm on q and on k
  return {c.hidden_size * (3 * q + 2 * kv), 2 * a.head_dim};
}

int64_t gdn_channels(const GdnConfig& g) {
  return 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim;
}

Slow gdn_params(const ModelConfig& c) {
  const GdnConfig& g = c.gdn;
  const int64_t value = g.value_heads * g.value_dim;
  // q, k, v, z, then b and a, then out; convolution, A_log and dt_bias, output norm
  return {c.hidden_size * (gdn_channels(g) + 2 * value + 2 * g.value_heads),
          gdn_channels(g) * g.conv + 2 * g.value_heads + g.value_dim};
}

Slow lact_params(const ModelConfig& c) {
  const int64_t d = c.hidden_size, heads = c.lact.heads, head_dim = d / heads;
  // qkv and out; learning rates (3 per head), scale and momentum of each head
  const int64_t matrix = 4 * d * d + 5 * d * heads;
  // their biases; scale and offset of fast q and k; output norm; two low-rank weights and a full
  // one
  const int64_t other =
      5 * heads + 4 * d + head_dim + 4 * d * c.lact.low_rank + heads * head_dim * head_dim;
  return {matrix, other};
}

Slow mixer_params(const ModelConfig& c, int layer) {
  switch (c.mixer(layer)) {
    case Mixer::kGdn:
      return gdn_params(c);
    case Mixer::kLact:
      return lact_params(c);
    default:
      return attention_params(c);
  }
}

Slow pkm_params(const ModelConfig& c) {
  const PkmConfig& p = c.pkm;
  const int64_t d = c.hidden_size, query = p.heads * p.key_dim;
  return {d * query + 2 * d * p.value_dim, query * (p.query_norm ? 2 : 1) + p.value_dim + d};
}

// Projections around a fast-weight memory: q, v, out, with a norm and biases each, and the gate.
Slow fast_params(const ModelConfig& c, int64_t query, int64_t value, bool gating) {
  constexpr int64_t kGateRows = 8;
  const int64_t d = c.hidden_size;
  Slow slow{d * query + 2 * d * value, d + query + d + value + value + d};
  if (gating) {
    slow.matrix += d * kGateRows;
    slow.other += d + kGateRows;
  }
  return slow;
}

Slow fwpkm_params(const ModelConfig& c) {
  return fast_params(c, c.fwpkm.heads * c.fwpkm.key_dim, c.fwpkm.value_dim, c.fwpkm.gating);
}

Slow fwmlp_params(const ModelConfig& c) {
  return fast_params(c, c.fwmlp.key_dim, c.fwmlp.value_dim, c.fwmlp.gating);
}

int64_t fwmlp_products(const FwmlpConfig& m) {
  return m.hidden * (2 * m.key_dim + m.value_dim);
}

int64_t count(const std::vector<int64_t>& layers) {
  return static_cast<int64_t>(layers.size());
}

template <typename Memory>
int64_t active_values(const Memory& m) {
  return std::min(m.heads * m.topk, m.slots()) * m.value_dim;
}

// Pairs of tokens in causal attention over a sequence.
Wide attention_pairs(int64_t seq, int64_t window) {
  const Wide full = std::min(seq, window);
  return full * (full + 1) / 2 + (seq - full) * full;
}

// Tokens of a sequence that write.
int64_t writing_tokens(int64_t seq, int64_t chunk, int64_t lookahead) {
  const int64_t whole = seq / chunk, rest = seq % chunk;
  return whole * std::max<int64_t>(0, chunk - lookahead) + std::max<int64_t>(0, rest - lookahead);
}

int64_t narrow(Wide value) {
  require(value <= std::numeric_limits<int64_t>::max(), "cost",
          "the operations of a step exceed 64 bits; lower batch or seq");
  return static_cast<int64_t>(value);
}

Wide gdn_flops(const GdnConfig& g, Wide tokens, int64_t seq) {
  const Wide c = std::min<int64_t>(64, seq), dk = g.key_dim, dv = g.value_dim;
  const Wide head = (c + 1) * (3 * dk + 2 * dv) + c * c / 3 + 6 * dk * dv;
  return 3 * tokens * (g.value_heads * head + 2 * g.conv * gdn_channels(g));
}

// A product-key read and its gradients, without what only one of the two memories does.
template <typename Memory>
Wide read_flops(const Memory& m, Wide tokens) {
  const Wide h = m.heads, k = m.topk;
  return tokens * h *
         (Wide{2} * m.n_subkeys * m.key_dim + k * k + 6 * k * m.value_dim + 4 * k * m.key_dim);
}

Wide fwpkm_flops(const FwpkmConfig& m, Wide batch, int64_t seq) {
  const Wide slots = Wide{m.heads} * m.topk, tokens = batch * seq;
  const Wide writes = batch * writing_tokens(seq, m.chunk, m.lookahead);
  return read_flops(m, tokens) + tokens * slots * m.key_dim * (3 + 9) +
         writes * slots * m.value_dim * (m.addr_loss ? 6 : 12);
}

Wide fwmlp_flops(const FwmlpConfig& m, Wide batch, int64_t seq) {
  const Wide products = fwmlp_products(m);
  const Wide writes = writing_tokens(seq, m.chunk, m.lookahead);
  return 3 * batch *
         (seq * 2 * products + writes * (2 * products + Wide{2} * m.hidden * m.value_dim));
}

FlopCount true_flops(const ModelConfig& c, int64_t batch, int64_t seq) {
  const Wide tokens = Wide{batch} * seq;
  Wide matrices = Wide{c.vocab_size} * c.hidden_size;
  Wide attention = 0, gdn = 0, lact = 0;
  const Wide pair = Wide{12} * c.attention.heads * c.attention.head_dim * batch;
  const Wide fast = Wide{c.hidden_size} * (c.hidden_size / c.lact.heads);
  for (int layer = 0; layer < c.layers; ++layer) {
    matrices += mixer_params(c, layer).matrix;
    switch (c.mixer(layer)) {
      case Mixer::kGdn:
        gdn += gdn_flops(c.gdn, tokens, seq);
        break;
      case Mixer::kSwa:
        attention += pair * attention_pairs(seq, c.attention.window);
        break;
      case Mixer::kFa:
        attention += pair * attention_pairs(seq, seq);
        break;
      case Mixer::kLact:
        attention += pair * attention_pairs(seq, c.lact.window);
        lact += 3 * tokens * 18 * fast + 3 * 4 * fast * c.lact.low_rank;
        break;
    }
  }
  const int64_t pkm = count(c.pkm.layers), fwpkm = count(c.fwpkm.layers),
                fwmlp = count(c.fwmlp.layers);
  matrices += Wide{c.layers - pkm} * 3 * c.hidden_size * c.mlp.hidden;
  matrices += Wide{pkm} * pkm_params(c).matrix + Wide{fwpkm} * fwpkm_params(c).matrix +
              Wide{fwmlp} * fwmlp_params(c).matrix;
  FlopCount flops;
  flops.weights = narrow(6 * tokens * matrices);
  flops.attention = narrow(attention);
  flops.gdn = narrow(gdn);
  flops.pkm = narrow(pkm * read_flops(c.pkm, tokens));
  flops.fwpkm = narrow(fwpkm * fwpkm_flops(c.fwpkm, batch, seq));
  flops.fwmlp = narrow(fwmlp * fwmlp_flops(c.fwmlp, batch, seq));
  flops.lact = narrow(lact);
  narrow(Wide{flops.weights} + flops.attention + flops.gdn + flops.pkm + flops.fwpkm + flops.fwmlp +
         flops.lact);
  return flops;
}

}  // namespace

int64_t ParamCount::total() const {
  return embedding + norms + mixers + mlp + pkm_slow + pkm_keys + pkm_values + fwpkm_slow +
         fwpkm_keys + fwpkm_values + fwmlp_slow + fwmlp_fast;
}

int64_t FlopCount::total() const {
  return weights + attention + gdn + pkm + fwpkm + fwmlp + lact;
}

ParamCount count_params(const ModelConfig& c) {
  const int64_t pkm = count(c.pkm.layers), fwpkm = count(c.fwpkm.layers),
                fwmlp = count(c.fwmlp.layers);
  ParamCount n;
  n.embedding = c.vocab_size * c.hidden_size;
  n.norms = (2 * c.layers + 1) * c.hidden_size;
  for (int layer = 0; layer < c.layers; ++layer) {
    n.mixers += mixer_params(c, layer).total();
  }
  n.mlp = (c.layers - pkm) * 3 * c.hidden_size * c.mlp.hidden;
  n.pkm_slow = pkm * pkm_params(c).total();
  n.pkm_keys = pkm * c.pkm.heads * c.pkm.n_subkeys * c.pkm.key_dim;  // two halves of key_dim / 2
  n.pkm_values = pkm * c.pkm.slots() * c.pkm.value_dim;
  n.fwpkm_slow = fwpkm * fwpkm_params(c).total();
  n.fwpkm_keys = fwpkm * c.fwpkm.heads * c.fwpkm.n_subkeys * c.fwpkm.key_dim;
  n.fwpkm_values = fwpkm * c.fwpkm.slots() * c.fwpkm.value_dim;
  n.fwmlp_slow = fwmlp * fwmlp_params(c).total();
  n.fwmlp_fast = fwmlp * (fwmlp_products(c.fwmlp) + 2 * c.fwmlp.hidden + c.fwmlp.value_dim);
  return n;
}

ParamCount count_active(const ModelConfig& c) {
  ParamCount n = count_params(c);
  n.pkm_values = count(c.pkm.layers) * active_values(c.pkm);
  n.fwpkm_values = count(c.fwpkm.layers) * active_values(c.fwpkm);
  return n;
}

Cost count_cost(const ModelConfig& config, int64_t batch, int64_t seq) {
  constexpr int64_t kMaxBatch = int64_t{1} << 24, kMaxSeq = int64_t{1} << 32;
  require(batch >= 1 && batch <= kMaxBatch, "cost", "batch={} must be 1..{}", batch, kMaxBatch);
  require(seq >= 1 && seq <= kMaxSeq, "cost", "seq={} must be 1..{}", seq, kMaxSeq);
  Cost cost;
  cost.params = count_params(config);
  cost.active = count_active(config);
  cost.total_params = cost.params.total();
  cost.active_params = cost.active.total();
  const int64_t counted = cost.active_params - cost.active.fwpkm_keys - cost.active.pkm_values -
                          cost.active.fwpkm_values;
  cost.flops = narrow(Wide{6} * batch * seq * counted);
  cost.parts = true_flops(config, batch, seq);
  cost.true_flops = cost.parts.total();
  return cost;
}

}  // namespace fwpkm
