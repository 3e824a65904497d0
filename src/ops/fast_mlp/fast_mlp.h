// A SwiGLU MLP whose weights are rewritten by SGD while it reads: the dense rival of FwPKM.
//
// f(q) = w_down (up * silu(gate)) + b_down with up = w_up q + b_up and gate = w_gate q + b_gate.
// The sequence is cut into chunks of C tokens, the last may be shorter. For each chunk:
//
//   vhat_t = f(q_t)                  for all its tokens
//   W     <- W - lr dLoss/dW         for all six weights; Loss = mean of (vhat_t - target_t)^2
//
// The mean is over features and over the chunk's writing tokens: those whose t+L is in the same
// chunk, of all rows that share the weights. target_t = v_{t+L}, or with mean_target the mean of
// v_t .. v_{t+L}. A chunk of at most L tokens writes nothing.
//
// Gradients flow from vhat to q and v, through every read and every write of the sequence: see
// README.md. The weights given, the losses and the weights after carry none.
#pragma once

#include <algorithm>
#include <array>

#include "tensor/tensor.h"

namespace fwpkm {

struct FastMlpSettings {
  int64_t chunk = 512;    // C
  int64_t lookahead = 1;  // L
  bool mean_target = false;
  double lr = 1.0;
  // Backward drops the gradient of the weights in front of every chunk whose number is a multiple
  // of this; 0: never.
  int64_t bptt_chunks = 0;
  bool write = true;  // false: only read
  // Backward goes through the first chunk with the weights as they are after the last one, as the
  // released code does: it writes them over the first ones while autograd still needs those. Not
  // the gradient of anything; for comparing with numbers made by that code.
  bool late_weights = false;
};

struct FastMlpResult {
  Tensor output;                // vhat [B, T, dv]
  Tensor losses;                // [B, T]: a token's mean squared error, 0 if it does not write
  std::array<Tensor, 6> after;  // the weights after all chunks; empty handles without writing
};

// q [B, T, dk], v [B, T, dv] (may be left out without writing) and the weights
//   w_up [R, h, dk], b_up [R, h], w_gate [R, h, dk], b_gate [R, h], w_down [R, dv, h], b_down [R,
//   dv]
// in this order; all contiguous. R is 1 (all rows of the batch share the weights and write into
// them) or B (each row has its own). The weights given are only read, and must stay as they are
// until backward has run: the first chunk's are not saved.
FastMlpResult fast_mlp(Run& run, const Tensor& q, const Tensor& v,
                       const std::array<Tensor, 6>& weights, const FastMlpSettings& settings);

extern const Op kFastMlp;
std::vector<struct Case> fast_mlp_cases();
void fast_mlp_forward_cpu(const OpArgs& args);
void fast_mlp_backward_cpu(const OpArgs& args);
size_t fast_mlp_workspace_cpu(const OpArgs& args, bool backward);
void fast_mlp_forward_cuda(const OpArgs& args);
void fast_mlp_backward_cuda(const OpArgs& args);
size_t fast_mlp_workspace_cuda(const OpArgs& args, bool backward);

// in: q, v, the six weights. out: vhat, losses and, with writing, the six weights after. saved: the
// weights after the first `versions` writes, [versions, R, packed].
struct FastMlpSizes {
  explicit FastMlpSizes(const OpArgs& args)
      : FastMlpSizes(args.attr<FastMlpSettings>(), args.in[0], args.in.subspan(2)) {}
  FastMlpSizes(const FastMlpSettings& settings, const View& q, std::span<const View> weights)
      : set(settings),
        batch(q.dim(0)),
        length(q.dim(1)),
        dk(q.dim(2)),
        dv(weights[5].dim(1)),
        hidden(weights[1].dim(1)),
        sets(weights[1].dim(0)),
        rows(batch / sets),
        chunks((length + set.chunk - 1) / set.chunk),
        parts{hidden * dk, hidden, hidden * dk, hidden, dv * hidden, dv} {
    for (const int64_t part : parts) {
      packed += part;
    }
    while (writes < chunks && pairs(writes) > 0) {
      ++writes;
    }
    versions = std::min(chunks - 1, writes);
  }

  FastMlpSettings set;
  int64_t batch, length, dk, dv, hidden;
  int64_t sets;  // R
  int64_t rows;  // rows of the batch that share a set
  int64_t chunks;
  std::array<int64_t, 6> parts;  // elements of each weight, of one set
  int64_t packed = 0;            // of all six
  int64_t writes = 0;            // the first so many chunks write
  int64_t versions = 0;

  int64_t begin(int64_t c) const { return c * set.chunk; }
  int64_t end(int64_t c) const { return std::min(length, begin(c) + set.chunk); }
  // Writing tokens of a chunk in each row: its first ones.
  int64_t pairs(int64_t c) const {
    return set.write ? std::max<int64_t>(0, end(c) - begin(c) - set.lookahead) : 0;
  }
  // dLoss/dvhat of a writing token is this times its error.
  double error_scale(int64_t c) const {
    return 2.0 / (static_cast<double>(rows * pairs(c)) * static_cast<double>(dv));
  }
  // The tokens whose values make the target of token t: first .. t+L, each with this weight.
  int64_t target_first(int64_t t) const { return set.mean_target ? t : t + set.lookahead; }
  double target_weight() const {
    return set.mean_target ? 1.0 / static_cast<double>(set.lookahead + 1) : 1.0;
  }
  // Whether the gradient of chunk c's weights goes on to the write of chunk c-1.
  bool passes(int64_t c) const {
    return c > 0 && writes > 0 && (set.bptt_chunks == 0 || c % set.bptt_chunks != 0);
  }
};

// One set of weights.
template <typename T>
struct FastMlpWeights {
  T *up, *b_up, *gate, *b_gate, *down, *b_down;

  std::array<T*, 6> all() const { return {up, b_up, gate, b_gate, down, b_down}; }

  // Set r of six tensors.
  static FastMlpWeights of(std::span<const View> w, const FastMlpSizes& s, int64_t r) {
    const auto at = [&](int i) { return w[i].ptr<T>() + r * s.parts[i]; };
    return {at(0), at(1), at(2), at(3), at(4), at(5)};
  }
  // Six weights one after the other.
  static FastMlpWeights of(T* packed, const FastMlpSizes& s) {
    std::array<T*, 6> at;
    for (int i = 0; i < 6; ++i) {
      at[i] = packed;
      packed += s.parts[i];
    }
    return {at[0], at[1], at[2], at[3], at[4], at[5]};
  }
  // The weights that backward goes through chunk c with: those that it read, but see late_weights.
  static FastMlpWeights behind_chunk(const OpArgs& args, const FastMlpSizes& s, int64_t r,
                                     int64_t c) {
    return s.set.late_weights && c == 0 && s.set.write ? of(args.out.subspan(2), s, r)
                                                       : at_chunk(args, s, r, c);
  }
  // The weights that chunk c reads, set r, in backward.
  static FastMlpWeights at_chunk(const OpArgs& args, const FastMlpSizes& s, int64_t r, int64_t c) {
    const int64_t version = std::min(c, s.writes);
    return version == 0 ? of(args.in.subspan(2), s, r)
                        : of(args.saved[0].ptr<T>() + ((version - 1) * s.sets + r) * s.packed, s);
  }
};

}  // namespace fwpkm
