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

  // Of the values: chain V of the two that cuda_backward.cu runs side by side.
  // Rows of [.., dv] are of v's type.
  void* dvalues;          // [chains, dv]: of rows as they are after the chunk
  uint8_t* live;          // [chains]: whether there is one
  void *errors, *dreads;  // of the chunk, [tokens, dv]: e, and the gradient of what was read
  float *along, *dalong;  // of the chunk, [tokens, reads]: <e, V> and its gradient
  // From the values to the keys.
  float* dw;  // of all tokens, [B*T, reads]: the gradients of weights
  // Of the keys: chain K.
  float* dkeys;                   // [kept_chunks + 1, books, n, half]: of the keys after a chunk
  float* gam;                     // of the chunk, [tokens, books, k]: gradients of pushes
  float *ds, *push;               // of all tokens, [B*T, books, k]; ds: gradients of scores
  const float *p, *pbar, *slope;  // as in FwpkmKept
  float* dpbar;                   // [marginals, n]

  int kept_chunks = 1;     // chunks whose queries are done at a time
  bool keys_live = false;  // whether dkeys of the chunk is not all zero
  bool memory = false;     // dkeys goes through the memory loss
  bool late = false;       // late_values, in the first chunk
  bool last = false;       // nobody asks for what the chunks before wrote

  explicit FwpkmBack(const OpArgs& args);

  // Gradients of the keys as they are after a chunk.
  __device__ float* dkeys_after(const FwpkmCall& call, int chunk) const {
    return dkeys +
           static_cast<int64_t>(chunk % (kept_chunks + 1)) * call.books * call.n * call.half;
  }
};

// Chunks whose queries get their gradients at once: `count` of them from `first` on; bit i of
// `live` is keys_live of chunk first + i.
struct FwpkmQueries {
  int first = 0, count = 0;
  uint32_t live = 0;
};

// What fwpkm_backward_cuda needs in its workspace.
size_t fwpkm_backward_bytes(const OpArgs& args);

// With the addressing loss: pushes of all chunks.
void push_all(const FwpkmCall& call, const FwpkmBack& back);
// From the gradients of pushes to those of the marginals; right after to_earlier_keys.
void find_dpbar(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                const FwpkmBack& back);
// The value write and the read: dv, dg, dreads, dw. next: right after another kernel (launch_next)
// that, if it is to_earlier_values, may still be running.
void through_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back, float step,
                    bool next);
// The softmax: ds.
void through_scores(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmBack& back);
// How many chunks to_queries should have at a time.
int queries_together(const FwpkmCall& call);
// dq of some chunks.
void to_queries(const FwpkmCall& call, const FwpkmLists& lists, const FwpkmBack& back,
                const FwpkmQueries& queries);
// Gradients of the rows that the chunk read, to those that earlier chunks wrote; right after
// another kernel (launch_next).
void to_earlier_values(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmGroups& groups,
                       const FwpkmBack& back);
// The same for the keys, and the gradients of pushes of the chunk before; right after another
// kernel (launch_next).
void to_earlier_keys(const FwpkmCall& call, const FwpkmSpan& span, const FwpkmLists& lists,
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
