#include <cmath>

#include "ops/attention/attention.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Sizes {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, width = 8;
  int64_t q_offset = 0, window = 0;
  double scores = 1;  // times the usual scale
};

Case make_case(const Sizes& z) {
  Case c;
  c.name = fmt::format("B={},Tq={},Tk={},heads={}/{},D={},offset={},window={}{}", z.batch,
                       z.queries, z.keys, z.heads, z.kv_heads, z.width, z.q_offset, z.window,
                       z.scores == 1 ? "" : fmt::format(",scores={}", z.scores));
  c.inputs = {{"q", {z.batch, z.queries, z.heads, z.width}},
              {"k", {z.batch, z.keys, z.kv_heads, z.width}},
              {"v", {z.batch, z.keys, z.kv_heads, z.width}}};
  const AttentionSettings settings{z.q_offset, z.window,
                                   z.scores / std::sqrt(static_cast<double>(z.width))};
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{attention(run, in[0], in[1], in[2], settings)};
  };
  if (z.window == 1 || z.keys == 1) {
    // The scores' gradients are zero: dp and delta are one number, and the plain code even sums
    // both in one order. Here only the rounding of two orders is left.
    c.budget = 16;
  }
  return c;
}

// q, k and v as parts of one projection [B, T, (Hq + 2 Hkv) D + more].
Case projection_case(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t width,
                     int64_t window, int64_t more = 3) {
  Case c;
  c.name = fmt::format("projection,B={},T={},heads={}/{},D={},window={}{}", batch, tokens, heads,
                       kv_heads, width, window, more == 3 ? "" : fmt::format(",more={}", more));
  const int64_t q_end = heads * width, k_end = q_end + kv_heads * width,
                v_end = k_end + kv_heads * width;
  c.inputs = {{"qkv", {batch, tokens, v_end + more}}};
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const View& all = in[0].view();
    const Tensor q = in[0].part(all.slice(-1, 0, q_end).split_last(heads, width));
    const Tensor k = in[0].part(all.slice(-1, q_end, k_end).split_last(kv_heads, width));
    const Tensor v = in[0].part(all.slice(-1, k_end, v_end).split_last(kv_heads, width));
    return std::vector<Tensor>{attention(run, q, k, v, {0, window, 0.3})};
  };
  return c;
}

// k and v as the filled part of longer caches [B, room, Hkv, D].
Case cache_case(int64_t batch, int64_t queries, int64_t filled, int64_t room, int64_t window,
                int64_t width = 12) {
  Case c;
  c.name = fmt::format("cache,B={},Tq={},filled={},room={},window={}{}", batch, queries, filled,
                       room, window, width == 12 ? "" : fmt::format(",D={}", width));
  c.inputs = {{"q", {batch, queries, 4, width}},
              {"k", {batch, room, 2, width}},
              {"v", {batch, room, 2, width}}};
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const Tensor k = in[1].part(in[1].view().slice(1, 0, filled));
    const Tensor v = in[2].part(in[2].view().slice(1, 0, filled));
    return std::vector<Tensor>{attention(run, in[0], k, v, {filled - queries, window, 0.4})};
  };
  return c;
}

Case perf_case(Sizes z) {
  Case c = make_case(z);
  c.name = "perf:" + c.name;
  c.perf = true;
  double seen = 0;  // query-key pairs
  for (int64_t i = 0; i < z.queries; ++i) {
    const int64_t before = z.q_offset + i + 1;
    seen += static_cast<double>(z.window > 0 ? std::min(before, z.window) : before);
  }
  c.flops = 4.0 * static_cast<double>(z.batch * z.heads * z.width) * seen;
  c.bytes = 4.0 * static_cast<double>(2 * z.batch * z.width *
                                      (z.queries * z.heads + z.keys * z.kv_heads));
  return c;
}

}  // namespace

// Documents packed into rows: their lengths repeat 1, 5, 2, 60, shifted from row to row.
Case packed_case(int64_t batch, int64_t tokens, int64_t window, int64_t width = 12) {
  Case c;
  c.name = fmt::format("documents,B={},T={},window={}{}", batch, tokens, window,
                       width == 12 ? "" : fmt::format(",D={}", width));
  constexpr int64_t kHeads = 4, kKeyHeads = 2;
  c.inputs = {{"q", {batch, tokens, kHeads, width}},
              {"k", {batch, tokens, kKeyHeads, width}},
              {"v", {batch, tokens, kKeyHeads, width}}};
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const Tensor starts = run.from_host("starts", {batch, tokens}, packed_starts(batch, tokens));
    return std::vector<Tensor>{attention(run, in[0], in[1], in[2], {0, window, 0.4}, starts)};
  };
  return c;
}

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  const auto square = [&](int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads,
                          int64_t width, int64_t window) {
    cases.push_back(make_case({.batch = batch,
                               .queries = tokens,
                               .keys = tokens,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .width = width,
                               .window = window}));
  };
  square(1, 1, 1, 1, 8, 0);
  square(2, 2, 4, 2, 16, 0);
  square(1, 2, 6, 2, 33, 1);
  square(2, 5, 6, 2, 8, 3);
  square(1, 63, 1, 1, 16, 0);
  square(2, 63, 6, 2, 33, 7);
  square(1, 64, 4, 2, 64, 0);
  square(1, 64, 1, 1, 8, 64);
  square(1, 65, 6, 2, 8, 64);
  square(2, 65, 1, 1, 33, 1);
  square(1, 130, 6, 2, 64, 0);
  square(1, 130, 4, 2, 33, 100);
  square(2, 130, 1, 1, 16, 7);
  square(1, 131, 6, 1, 8, 1);
  // Several chunks in backward, and keys that no query of a chunk sees.
  square(1, 600, 4, 2, 8, 0);
  square(1, 600, 3, 1, 8, 100);
  // Widths that kernels pad, or cut.
  square(1, 70, 6, 2, 40, 20);
  square(1, 130, 3, 1, 128, 0);
  square(1, 70, 2, 1, 160, 0);
  // Queries after a cache, or with keys still to come.
  const auto offset = [&](int64_t queries, int64_t keys, int64_t q_offset, int64_t window) {
    cases.push_back(make_case({.batch = 2,
                               .queries = queries,
                               .keys = keys,
                               .heads = 6,
                               .kv_heads = 2,
                               .width = 16,
                               .q_offset = q_offset,
                               .window = window}));
  };
  offset(1, 1, 0, 0);
  offset(1, 130, 129, 0);
  offset(1, 130, 129, 7);
  offset(1, 1300, 1299, 0);
  offset(3, 1100, 1097, 600);
  offset(4, 70, 66, 1);
  offset(4, 66, 10, 0);
  offset(5, 133, 128, 0);
  offset(33, 200, 150, 64);
  offset(65, 300, 235, 0);
  offset(20, 30, 25, 30);
  // Inputs ten times as large: scores of some hundreds.
  Sizes large{.queries = 130, .keys = 130, .heads = 4, .kv_heads = 2, .width = 16, .scores = 100};
  cases.push_back(make_case(large));
  large.queries = 2;
  large.q_offset = 128;
  cases.push_back(make_case(large));
  for (size_t i = cases.size() - 2; i < cases.size(); ++i) {
    cases[i].budget = 8;        // rounding of scores depends on the order of sums, times their size
    cases[i].grad_step = 1e-6;  // the softmax bends a hundred times faster
    cases[i].grad_tolerance = 1e-5;
  }

  // Gradients that nobody wants.
  for (size_t frozen = 0; frozen < 3; ++frozen) {
    Case c = make_case({.queries = 9, .keys = 9, .heads = 2, .kv_heads = 1, .width = 5});
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
    cases.push_back(c);
  }

  cases.push_back(projection_case(2, 70, 6, 2, 12, 0));
  cases.push_back(projection_case(1, 130, 4, 2, 16, 33));
  cases.push_back(projection_case(2, 3, 4, 4, 33, 2));
  cases.push_back(projection_case(1, 130, 4, 2, 16, 33, 8));
  cases.push_back(cache_case(2, 1, 40, 64, 0));
  cases.push_back(cache_case(2, 4, 40, 64, 9));
  cases.push_back(cache_case(1, 50, 90, 128, 0));
  cases.push_back(cache_case(2, 3, 500, 520, 0, 64));

  const Sizes train{.queries = 2048, .keys = 2048, .heads = 12, .kv_heads = 4, .width = 64};
  cases.push_back(perf_case(train));
  Sizes windowed = train;
  windowed.window = 512;
  cases.push_back(perf_case(windowed));
  Sizes step = train;
  step.queries = 1;
  step.keys = 4096;
  step.q_offset = 4095;
  cases.push_back(perf_case(step));
  cases.push_back(packed_case(2, 4, 0));
  cases.push_back(packed_case(1, 65, 0));
  cases.push_back(packed_case(2, 300, 0));
  cases.push_back(packed_case(2, 150, 20));
  cases.push_back(packed_case(2, 300, 0, 16));
  cases.push_back(packed_case(2, 150, 20, 64));
  return cases;
}

}  // namespace fwpkm
