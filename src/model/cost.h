// How many parameters a model has and how much work a training step is.
//
// With d = hidden_size, T = tokens of a sequence, B = sequences:
//
// flops, the paper's accounting: 6 * B*T * (active parameters, less FwPKM keys and less all active
//   value rows, PKM's and FwPKM's). Norms, biases and the embedding count like matrices; attention
//   scores and the recurrence do not count.
//
// true_flops, the work that forward and backward need (a multiply-add is 2):
//   weights    6 * B*T * entries of slow matrices (the tied embedding once, as the output head)
//   attention  12 * heads * head_dim * B * pairs; pairs = sum over t of min(t, window), t = 1..T;
//              scores and mixed values, backward twice forward
//   gdn        3 * B*T * (value_heads * (p * (6 dk + 4 dv) + c^2/3 + 6 dk dv) + 2 * conv *
//   channels)
//              in chunks of c = min(64, T) tokens, p = (c+1)/2: k.k, q.k and the solved k are p * 2
//              dk each, the solved v and the mixed v p * 2 dv each, the triangular inverse c^2/3,
//              reading the state twice and writing it 2 dk dv each
//   pkm        B*T * (2 H n dk + H k^2 + 6 H k dv + 4 H k dk): scores of all sub-keys, sums of
//              candidates, gathered rows (forward, dV, dw), gradients of selected scores to q and K
//   fwpkm      B*T * (2 H n dk + H k^2 + 6 H k dv + 7 H k dk)       read, as above; + 3 H k dk for
//                                                                   the selected scores, done
//                                                                   exactly
//              + B*W * 6 H k dv                                     value writes: forward 2,
//              backward 4
//              + B*T * 9 H k dk                                     key writes: forward 3, backward
//              6; (without addressing loss: + B*W * 6 H k dv, the errors' products with values) W =
//              tokens of a sequence that write: all but the last `lookahead` of each chunk
//   fwmlp      3 * B * (T * 2 m + W * (2 m + 2 * hidden * dv)), m = hidden * (2 dk + dv)
//   lact       its attention as above; 3 * B*T * 18 * d * (d / heads) for the fast weights
//              (read 6, write 12); 3 * layers * 4 * d * (d / heads) * rank to make the first ones
#pragma once

#include <cstdint>

#include "model/config.h"

namespace fwpkm {

inline constexpr int64_t kMaxParams = int64_t{1} << 40;

struct ParamCount {
  int64_t embedding = 0;  // tied: input and output
  int64_t norms = 0;      // two per layer and the last
  int64_t mixers = 0;
  int64_t mlp = 0;
  int64_t pkm_slow = 0, pkm_keys = 0, pkm_values = 0;
  int64_t fwpkm_slow = 0, fwpkm_keys = 0, fwpkm_values = 0;
  int64_t fwmlp_slow = 0, fwmlp_fast = 0;
  int64_t total() const;
};

struct FlopCount {
  int64_t weights = 0, attention = 0, gdn = 0, pkm = 0, fwpkm = 0, fwmlp = 0, lact = 0;
  int64_t total() const;
};

struct Cost {
  int64_t total_params = 0;
  int64_t active_params = 0;
  int64_t flops = 0;       // the paper's accounting
  int64_t true_flops = 0;  // = parts.total()
  ParamCount params;       // of which...
  ParamCount active;       // the same with only the value rows that one token reads
  FlopCount parts;
};

// Needs sizes within their bounds (config_fields.h), nothing more, and cannot overflow then.
ParamCount count_params(const ModelConfig& config);
ParamCount count_active(const ModelConfig& config);

// One training step of `batch` sequences of `seq` tokens. Throws where a count exceeds 64 bits.
Cost count_cost(const ModelConfig& config, int64_t batch, int64_t seq);

}  // namespace fwpkm
