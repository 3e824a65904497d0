// One call of the memory with numbers from and to the host.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "model/fast_state.h"
#include "ops/fwpkm/fwpkm.h"
#include "tensor/tape.h"

namespace fwpkm {

using Values = std::vector<double>;

struct MemorySizes {
  int64_t batch, time, half, dv;
};

struct MemoryInputs {
  Values q, v, g, keys, values, dy;  // g may be empty
};

struct MemoryResult {
  Values output, slots, weights, losses, addressing, ids, picks;
  Values keys;                                            // after the last chunk
  std::map<std::pair<int64_t, int32_t>, Values> written;  // by owner and slot
  Values dq, dv, dg;
  bool operator==(const MemoryResult&) const = default;
};

// Numbers that a float holds exactly.
inline Values drawn(int64_t count, uint64_t seed, uint64_t stream, double scale = 1) {
  const Random random(seed, stream);
  Values v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<double>(static_cast<float>(scale * random.normal_at(i)));
  }
  return v;
}

inline MemoryInputs draw_inputs(const MemorySizes& z, const FwpkmSettings& s, uint64_t seed) {
  const int64_t tokens = z.batch * z.time, n = s.n_subkeys;
  MemoryInputs in{drawn(tokens * s.heads * 2 * z.half, seed, 0),
                  drawn(tokens * z.dv, seed, 1),
                  {},
                  drawn(s.heads * 2 * n * z.half, seed, 3),
                  drawn(n * n * z.dv, seed, 4),
                  drawn(tokens * z.dv, seed, 5)};
  const Random random(seed, 2);
  for (int64_t i = 0; i < tokens; ++i) {
    in.g.push_back(static_cast<float>(random.uniform_at(static_cast<uint64_t>(i))));
  }
  return in;
}

struct MemoryCall {
  const Overlay* overlay = nullptr;         // rows that lie over the values
  Overlay* commit_to = nullptr;             // gets the rows that were written
  const MemoryResult* selection = nullptr;  // whose ids and picks are taken
  bool backward = true;
};

// Runs forward and backward. What was handed in must be the same afterwards, bit for bit.
inline MemoryResult run_memory(Device device, const MemorySizes& z, const FwpkmSettings& s,
                               const MemoryInputs& in, const MemoryCall& call = {}) {
  Pool pool(device);
  pool.set_poison(true);
  Tape tape;
  Run host(pool), run(pool, call.backward ? &tape : nullptr);
  const int64_t n = s.n_subkeys;
  const Tensor q = host.from_host("q", {z.batch, z.time, s.heads * 2 * z.half}, in.q);
  const Tensor v = host.from_host("v", {z.batch, z.time, z.dv}, in.v);
  const Tensor g = in.g.empty() ? Tensor() : host.from_host("g", {z.batch, z.time}, in.g);
  const Tensor keys = host.from_host("keys", {s.heads * 2 * n, z.half}, in.keys);
  const Tensor values = host.from_host("values", {n * n, z.dv}, in.values);
  std::vector<Tensor> grads;
  const auto parameter = [&](const Tensor& x) {
    grads.push_back(
        host.from_host("grad", x.shape(), Values(static_cast<size_t>(x.view().size()))));
    return Tensor::parameter(x.view(), grads.back().view());
  };
  const auto whole = [](const Values& x) { return std::vector<int32_t>(x.begin(), x.end()); };
  FwpkmSelection selection;
  if (call.selection != nullptr) {
    selection.ids =
        host.from_host("ids", {z.batch, z.time, s.heads, 2, s.topk}, whole(call.selection->ids));
    selection.picks =
        host.from_host("picks", {z.batch, z.time, s.heads, s.topk}, whole(call.selection->picks));
  }
  const Tensor q_in = parameter(q), v_in = parameter(v), g_in = g ? parameter(g) : Tensor();
  const FwpkmResult r =
      fwpkm_memory(run, q_in, v_in, g_in, keys, values, s,
                   call.overlay != nullptr ? call.overlay->views() : OverlayViews(), selection);
  MemoryResult result;
  result.output = to_host(r.output.view());
  result.slots = to_host(r.slots.view());
  result.weights = to_host(r.weights.view());
  result.losses = to_host(r.losses.view());
  result.addressing = to_host(r.addressing.view());
  result.ids = to_host(r.selection.ids.view());
  result.picks = to_host(r.selection.picks.view());
  if (s.write) {
    result.keys = to_host(r.keys.view());
    const int64_t owners = r.counts.dim(0), cap = r.writes.dim(0) / owners;
    for (int64_t o = 0; o < owners; ++o) {
      for (int64_t i = 0; i < r.counts.view().ptr<int32_t>()[o]; ++i) {
        const int32_t* write = r.writes.view().ptr<int32_t>() + (o * cap + i) * 3;
        EXPECT_EQ(write[0], o);
        if (write[2] >= 0) {
          const bool is_new = result.written
                                  .emplace(std::pair{o, write[1]},
                                           to_host(r.rows.view().slice(0, write[2], write[2] + 1)))
                                  .second;
          EXPECT_TRUE(is_new) << "slot " << write[1] << " is listed twice";
        }
      }
    }
  } else {
    EXPECT_FALSE(r.keys || r.rows || r.writes || r.counts);
  }
  if (call.backward) {
    tape.backward(pool, r.output, host.from_host("dy", r.output.shape(), in.dy));
    result.dq = to_host(grads[0].view());
    result.dv = to_host(grads[1].view());
    result.dg = g ? to_host(grads[2].view()) : Values();
  }
  // After backward, which needs the rows that were read.
  if (call.commit_to != nullptr) {
    put_rows(r, call.commit_to);
  }
  EXPECT_EQ(to_host(q.view()), in.q);
  EXPECT_EQ(to_host(v.view()), in.v);
  EXPECT_EQ(to_host(keys.view()), in.keys);
  EXPECT_TRUE(to_host(values.view()) == in.values);
  EXPECT_TRUE(!g || to_host(g.view()) == in.g);
  return result;
}

inline FwpkmSettings memory_settings(int32_t heads, int32_t n, int32_t k, int64_t chunk,
                                     int32_t lookahead, bool shared) {
  FwpkmSettings s;
  s.heads = heads;
  s.n_subkeys = n;
  s.topk = k;
  s.chunk = chunk;
  s.lookahead = lookahead;
  s.shared = shared;
  s.step = heads * k;
  return s;
}

// Tokens begin..end of [batch, time, width].
inline Values cut_tokens(const Values& x, const MemorySizes& z, int64_t begin, int64_t end) {
  const int64_t width = static_cast<int64_t>(x.size()) / (z.batch * z.time);
  Values part;
  for (int64_t b = 0; b < z.batch; ++b) {
    const auto row = x.begin() + b * z.time * width;
    part.insert(part.end(), row + begin * width, row + end * width);
  }
  return part;
}

// The inputs of tokens begin..end, with keys as they are by then.
inline MemoryInputs cut_inputs(const MemoryInputs& in, const MemorySizes& z, int64_t begin,
                               int64_t end, const Values& keys) {
  return {cut_tokens(in.q, z, begin, end),
          cut_tokens(in.v, z, begin, end),
          in.g.empty() ? Values() : cut_tokens(in.g, z, begin, end),
          keys,
          in.values,
          cut_tokens(in.dy, z, begin, end)};
}

}  // namespace fwpkm
