// Backward, a chunk at a time from the last to the first (README.md, "Backward").
#pragma once

#include "ops/fwpkm/cuda_keys.cuh"
#include "ops/fwpkm/cuda_read.cuh"

namespace fwpkm {

// Gradients, and what is needed on the way. "Of the chunk" is by token number in it.
struct FwpkmBack {
  const void* dy;
  FastRows dy_rows;
  void *dq, *dv;
  float* dg;
  bool add_q, add_v, add_g;

  float* dkeys;    // [books, n, half]: of the keys after the chunk
  float* dvalues;  // [chains, dv]: of rows as they are after the chunk
  uint8_t* live;   // [chains]: whether there is one

  float *errors, *dreads;  // of the chunk, [tokens, dv]: e, and the gradient of what was read
  float *along, *dalong,
      *dw;              // of the chunk, [tokens, reads]: <e, V>, its gradient, that of weights
  float *gam, *ds;      // of the chunk, [tokens, books, k]: gradients of pushes and scores
  float *p, *push;      // of all tokens, [B*T, books, k]
  float *pbar, *slope;  // [chunks, marginals, n]
  float* dpbar;         // [marginals, n]
  float* parts;         // as in FwpkmKeyWork

  bool keys_live = false;  // whether dkeys is not all zero
  bool memory = false;     // dkeys goes through the memory loss
  bool late = false;       // late_values, in the first chunk
  bool last = false;       // nobody asks for what the chunks before wrote

  explicit FwpkmBack(const OpArgs& args);
};

// With the addressing loss: p, marginals and pushes of all chunks.
void push_all(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmBack& back);
// From the gradients of moved keys to those of their pushes and of the marginals.
void find_gam(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
              const FwpkmBack& back);
// The value write, the read and the softmax: dq, dv, dg, dreads, ds.
void through_tokens(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                    const FwpkmBack& back, float step);
// Gradients of the rows and keys that the chunk read, to those that earlier chunks wrote.
void to_earlier(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                const FwpkmBack& back);

// Sub-keys as chunks read them, and the number of one among them.
__device__ inline const float* keys_read(const FwpkmCall& call) {
  return call.keys_move ? call.key_rows : call.keys;
}
__device__ inline int key_read(const FwpkmCall& call, const FwpkmSpan& span,
                               const FwpkmGroups& groups, int book, int id) {
  return call.keys_move ? old_key_place(call, span, groups, book, id) : book * call.n + id;
}

}  // namespace fwpkm
