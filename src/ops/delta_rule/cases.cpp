#include "ops/delta_rule/delta_rule.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Sizes {
  int64_t batch, length, key_heads, value_heads, dk, dv;

  std::string str() const {
    return fmt::format("B={},T={},Hk={},Hv={},dk={},dv={}", batch, length, key_heads, value_heads,
                       dk, dv);
  }
};

// Inputs q, k, v, g, beta.
std::vector<InputSpec> inputs_of(const Sizes& n) {
  return {{"q", {n.batch, n.length, n.key_heads, n.dk}},
          {"k", {n.batch, n.length, n.key_heads, n.dk}},
          {"v", {n.batch, n.length, n.value_heads, n.dv}},
          {"g", {n.batch, n.length, n.value_heads}, Draw::kDecay},
          {"beta", {n.batch, n.length, n.value_heads}, Draw::kUnit}};
}

// The op overwrites its state; every run of a case starts from the same one.
Tensor copy_of(Run& run, const Tensor& state) {
  return run.from_host("state", state.shape(), to_host(state.view()));
}

// With `state`, a start that is given; with `outputs` its end is compared too, but as it has no
// gradient the inputs then go without as well.
Case with_state(const Sizes& n, bool outputs) {
  Case c;
  c.name = n.str() + (outputs ? ",state to state" : ",from a state");
  c.inputs = inputs_of(n);
  c.inputs.push_back({"state", {n.batch, n.value_heads, n.dk, n.dv}, Draw::kNormal, 0, false});
  for (InputSpec& input : c.inputs) {
    input.grad = input.grad && !outputs;
  }
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const Tensor state = copy_of(run, in[5]);
    std::vector<Tensor> out = {delta_rule(run, in[0], in[1], in[2], in[3], in[4], state)};
    if (outputs) {
      out.push_back(state);
    }
    return out;
  };
  return c;
}

// q, k and v as parts of one tensor [B, T, C], as a fused projection leaves them.
Case fused(const Sizes& n) {
  const int64_t keys = n.key_heads * n.dk, values = n.value_heads * n.dv;
  Case c;
  c.name = n.str() + ",fused";
  c.inputs = inputs_of(n);
  c.inputs.erase(c.inputs.begin(), c.inputs.begin() + 3);
  c.inputs.insert(c.inputs.begin(), {"qkv", {n.batch, n.length, 2 * keys + values + 3}});
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const auto part = [&](int64_t begin, int64_t count, int64_t width) {
      return in[0].part(
          in[0].view().slice(-1, begin, begin + count * width).split_last(count, width));
    };
    return std::vector<Tensor>{delta_rule(run, part(0, n.key_heads, n.dk),
                                          part(keys, n.key_heads, n.dk),
                                          part(2 * keys, n.value_heads, n.dv), in[1], in[2])};
  };
  return c;
}

}  // namespace

std::vector<Case> delta_rule_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Sizes& n) -> Case& {
    Case c;
    c.name = n.str();
    c.inputs = inputs_of(n);
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{delta_rule(run, in[0], in[1], in[2], in[3], in[4])};
    };
    cases.push_back(c);
    return cases.back();
  };
  for (const Sizes& n : {Sizes{1, 1, 1, 1, 8, 12},
                         {2, 2, 2, 4, 33, 17},
                         {1, 5, 2, 2, 16, 16},
                         {3, 15, 1, 1, 64, 64},
                         {2, 31, 2, 4, 8, 12},
                         {1, 33, 1, 1, 16, 16},
                         {1, 63, 2, 4, 16, 16},
                         {1, 64, 1, 1, 33, 17},
                         {2, 65, 2, 2, 8, 12},
                         {1, 130, 1, 2, 64, 64},
                         {3, 130, 2, 4, 8, 12},
                         {1, 200, 2, 2, 16, 16},
                         {1, 200, 1, 3, 33, 17},
                         {1, 70, 1, 2, 128, 64},
                         {1, 70, 1, 2, 16, 72},
                         {1, 70, 1, 2, 72, 72},
                         {2, 96, 1, 1, 72, 80}}) {
    add(n);
  }
  cases.push_back(fused({2, 5, 2, 4, 8, 12}));
  cases.push_back(fused({2, 70, 2, 4, 8, 12}));
  cases.push_back(fused({1, 130, 1, 1, 33, 17}));
  for (const bool outputs : {false, true}) {
    cases.push_back(with_state({2, 1, 2, 4, 8, 12}, outputs));
    cases.push_back(with_state({1, 5, 1, 1, 33, 17}, outputs));
    cases.push_back(with_state({1, 7, 1, 1, 64, 64}, outputs));
    cases.push_back(with_state({2, 130, 2, 4, 16, 16}, outputs));
  }

  const Sizes large{1, 2048, 8, 8, 64, 64};
  Case& perf = add(large);
  perf.name = "perf:" + large.str();
  perf.perf = true;
  // Per token and head: S^T k, S^T q and k u^T, whichever way they are grouped.
  perf.flops = 2048.0 * 8 * 2 * 3 * 64 * 64;
  perf.bytes = 2048.0 * 8 * 4 * (4 * 64 + 2);
  return cases;
}

}  // namespace fwpkm
