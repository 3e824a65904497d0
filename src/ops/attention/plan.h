// How the CPU kernels cut attention into work items. Everything here follows from the shapes
// alone, so results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"

namespace fwpkm {

inline constexpr int64_t kTileKeys = 128;     // keys of a tile of scores
inline constexpr int64_t kDecodeQueries = 4;  // up to here keys are streamed instead of tiled
inline constexpr int64_t kDecodeKeys = 64;    // keys of a tile when streaming
inline constexpr int64_t kDecodeSplit = 512;  // keys of an item when streaming

// Sizes of a call. The heads that share a key head are stacked: row r of a tile is query
// r / group, head r % group.
struct AttentionPlan {
  int64_t batch, queries, keys, heads, kv_heads, group, width;
  int64_t q_offset, window;
  float scale;
  const int32_t* starts;  // [B, Tq] where each query's document begins, or null

  explicit AttentionPlan(const OpArgs& args) {
    const View &q = args.in[0], &k = args.in[1];
    const auto settings = args.attr<AttentionSettings>();
    batch = q.dim(0);
    queries = q.dim(1);
    heads = q.dim(2);
    width = q.dim(3);
    keys = k.dim(1);
    kv_heads = k.dim(2);
    group = heads / kv_heads;
    q_offset = settings.q_offset;
    window = settings.window;
    scale = static_cast<float>(settings.scale);
    starts = args.in[3].ptr<int32_t>();
  }

  // Keys that a query can see: first_key..end_key-1. Both grow with the query.
  int64_t first_key(int64_t query) const {
    return window > 0 ? std::max<int64_t>(0, query + q_offset - window + 1) : 0;
  }
  // The first key that a query of row b does see: not before its document.
  int64_t first_visible(int64_t b, int64_t query) const {
    const int64_t first = first_key(query);
    return starts == nullptr ? first : std::max<int64_t>(first, starts[b * queries + query]);
  }
  int64_t end_key(int64_t query) const { return std::min(keys, query + q_offset + 1); }

  // (batch, key head) pairs, which never share a result.
  int64_t pairs() const { return batch * kv_heads; }

  // Queries of a tile: about 192 rows, so that products are large and a tile stays in the second
  // level cache.
  int64_t tile_queries() const { return std::clamp<int64_t>(192 / group, 16, 128); }
  int64_t tile_rows() const { return std::min(tile_queries(), queries) * group; }
  int64_t query_tiles() const { return (queries + tile_queries() - 1) / tile_queries(); }

  bool decode() const { return queries <= kDecodeQueries; }
  int64_t splits() const {
    return (end_key(queries - 1) - first_key(0) + kDecodeSplit - 1) / kDecodeSplit;
  }

  // Backward: queries of a pair are cut into chunks, a work item each; every chunk sums its own dk
  // and dv over the keys that it sees, and the chunks are added up in order at the end.
  int64_t chunk_queries() const {
    const int64_t wanted = std::max<int64_t>(1, kBackwardItems / pairs());
    const int64_t tiles =
        std::max<int64_t>(kLeastChunkTiles, (query_tiles() + wanted - 1) / wanted);
    return tiles * tile_queries();
  }
  int64_t chunks() const { return (queries + chunk_queries() - 1) / chunk_queries(); }
  int64_t chunk_end(int64_t chunk) const {
    return std::min(queries, (chunk + 1) * chunk_queries());
  }
  int64_t chunk_first_key(int64_t chunk) const { return first_key(chunk * chunk_queries()); }
  int64_t chunk_end_key(int64_t chunk) const { return end_key(chunk_end(chunk) - 1); }
  // Keys that the chunks before this one see, together: where its sums lie.
  int64_t keys_before(int64_t chunk) const {
    int64_t sum = 0;
    for (int64_t c = 0; c < chunk; ++c) {
      sum += chunk_end_key(c) - chunk_first_key(c);
    }
    return sum;
  }

  // Floats of a thread's tile in forward: q, o [rows, D], scores [rows, tile], max and sum [rows].
  int64_t forward_scratch() const { return padded(tile_rows() * (2 * width + kTileKeys + 2)); }
  // Backward: q, do, dq [rows, D], p and ds [rows, tile], lse and delta [rows].
  int64_t backward_scratch() const { return padded(tile_rows() * (3 * width + 2 * kTileKeys + 2)); }
  // Streaming: o [rows, D], max and sum [rows] of an item, kept until all are merged.
  int64_t decode_rows() const { return queries * group; }
  int64_t decode_partial() const { return decode_rows() * (width + 2); }
  int64_t decode_scratch() const { return padded(decode_rows() * (width + kDecodeKeys)); }

 private:
  static constexpr int64_t kBackwardItems = 16;
  static constexpr int64_t kLeastChunkTiles = 2;

  // Up to a whole cache line, and one more so that threads do not share one.
  static int64_t padded(int64_t floats) { return (floats + 31) / 16 * 16; }
};

// A view [B, T, H, D] of floats.
struct HeadsView {
  float* data;
  int64_t batch, token, head;  // strides

  explicit HeadsView(const View& view)
      : data(view.ptr<float>()),
        batch(view.stride(0)),
        token(view.stride(1)),
        head(view.stride(2)) {}
  float* at(int64_t b, int64_t t, int64_t h) const {
    return data + b * batch + t * token + h * head;
  }
};

// Cuts a thread's scratch into pieces.
class Scratch {
 public:
  Scratch(void* workspace, int64_t floats_per_thread, int thread)
      : next_(static_cast<float*>(workspace) + thread * floats_per_thread) {}
  float* take(int64_t floats) {
    float* piece = next_;
    next_ += floats;
    return piece;
  }

 private:
  float* next_;
};

void attention_decode_cpu(const OpArgs& args);

}  // namespace fwpkm
