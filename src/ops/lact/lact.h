// LaCT's fast weights: a SwiGLU network per head and sequence that learns k -> v while it is read.
// With W0, W1, W2 [D,D], f(x) = W1 (silu(W0 x) * (W2 x)), and chunks of C tokens:
//
//   read     o_t = f(q_t)                                          every token of the chunk
//   step     G_i = -sum_t lr_{t,i} dL_t/dW_i,  L_t = -<f(k_t), v_t>      then, the chunk complete,
//   momentum M_i = G_i + mean_t(momentum_t) M_i                          M_i starts at zero
//   update   W_i = W_i + M_i,  each row times n_i / sqrt(|row|^2 + eps)  n_i: the row's first norm
//
// README.md has the gradients of L and the derivation of backward, which goes through all updates.
#pragma once

#include "tensor/tensor.h"

namespace fwpkm {

inline constexpr double kLactNormEps = 1e-5;

// What a stream needs to go on after a call. A call reads it, writes it in place and counts its
// tokens, so that outputs do not depend on how the stream is cut into calls: an update happens when
// the C-th token of a chunk has been read, whichever call brings it. Copying all of it, contents
// included, forks the stream.
struct LactState {
  Tensor weights;      // [B, H, 3, D, D]: W0, W1, W2
  Tensor momentum;     // [B, H, 3, D, D]: M0, M1, M2
  Tensor norms;        // [B, H, 3, D]: the first norms of the rows
  Tensor pending;      // [B, H, C, 2 D + 4]: tokens of the incomplete chunk: k, v, lr, momentum
  int64_t tokens = 0;  // read so far; with none the rest is undefined and starts with the call

  static LactState make(Run& run, int64_t batch, int64_t heads, int64_t width, int64_t chunk);
};

// The fast weights at the start of a sequence, [H, D, D] each, contiguous.
struct LactWeights {
  Tensor w0, w1, w2;
};

// q, k, v [B, T, heads, features] may be strided, but the heads of a token must follow each other:
// fast head h of the H takes the features h D .. (h+1) D, whatever heads the views have. lr
// [B, T, H, 3] and momentum [B, T, H] are contiguous. -> o [B, T, H, D].
//
// Without a state a sequence is read from its start, and the update after its last chunk is left
// out: nobody would read it. All inputs have gradients; the M of each update are saved for them.
// With one, there are no gradients; `start` is used by the first call only and may be left out
// afterwards.
Tensor lact(Run& run, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lr,
            const Tensor& momentum, const LactWeights& start, int64_t chunk,
            LactState* state = nullptr);

struct LactSettings {
  int64_t chunk;
  int64_t pending;  // tokens of the incomplete chunk, in the state
  bool begins;      // the call starts the sequence
};

// The sizes of a call. in: q, k, v, lr, momentum, w0, w1, w2; state: as in LactState, or empty.
struct LactSizes {
  int64_t batch, length, heads, width, chunk, pending;
  bool keeps;       // there is a state
  int64_t updates;  // that this call does

  explicit LactSizes(const OpArgs& args)
      : batch(args.in[3].dim(0)),
        length(args.in[3].dim(1)),
        heads(args.in[3].dim(2)),
        width(args.in[0].dim(2) * args.in[0].dim(3) / heads),
        chunk(args.attr<LactSettings>().chunk),
        pending(args.attr<LactSettings>().pending),
        keeps(!args.state.empty() && args.state[0]),
        updates(keeps ? (pending + length) / chunk : (length - 1) / chunk) {}

  int64_t matrix() const { return width * width; }
  int64_t matrices() const { return 3 * matrix(); }
  int64_t pending_width() const { return 2 * width + 4; }
  // Offsets of what belongs to sequence b and head h in the state and in the saved M
  // [B, H, updates, 3, D, D].
  int64_t item(int64_t b, int64_t h) const { return b * heads + h; }
  int64_t saved_at(int64_t b, int64_t h, int64_t update) const {
    return (item(b, h) * updates + update) * matrices();
  }
  // Offset of (b, t, h) in momentum; three times that in lr.
  int64_t at(int64_t b, int64_t t, int64_t h) const { return (b * length + t) * heads + h; }
};

// The features of head h of token t in q, k, v and their gradients.
template <typename T>
T* lact_row(const View& view, const LactSizes& n, int64_t b, int64_t t, int64_t h) {
  return view.ptr<T>() + b * view.strides[0] + t * view.strides[1] + h * n.width;
}

extern const Op kLact;
std::vector<struct Case> lact_cases();
void lact_forward_cpu(const OpArgs& args);
void lact_backward_cpu(const OpArgs& args);
size_t lact_workspace_cpu(const OpArgs& args, bool backward);
void lact_forward_cuda(const OpArgs& args);
void lact_backward_cuda(const OpArgs& args);
size_t lact_workspace_cuda(const OpArgs& args, bool backward);

}  // namespace fwpkm
