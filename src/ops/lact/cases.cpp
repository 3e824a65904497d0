#include "ops/lact/lact.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Sizes {
  int64_t batch, length, heads, width, chunk;

  std::string str() const {
    return fmt::format("B={},T={},H={},D={},C={}", batch, length, heads, width, chunk);
  }
};

// Inputs q, k, v, lr, momentum, w0, w1, w2.
std::vector<InputSpec> inputs_of(const Sizes& n) {
  const Shape tokens = {n.batch, n.length, n.heads, n.width};
  const Shape weights = {n.heads, n.width, n.width};
  return {{"q", tokens},
          {"k", tokens, n.chunk > 8 ? Draw::kSmall : Draw::kNormal},
          {"v", tokens, n.chunk > 8 ? Draw::kSmall : Draw::kNormal},
          {"lr", {n.batch, n.length, n.heads, 3}, Draw::kUnit},
          {"momentum", {n.batch, n.length, n.heads}, Draw::kUnit},
          {"w0", weights, Draw::kSmall},
          {"w1", weights, Draw::kSmall},
          {"w2", weights, Draw::kSmall}};
}

Tensor call(Run& run, const std::vector<Tensor>& in, int64_t chunk, LactState* state = nullptr) {
  return lact(run, in[0], in[1], in[2], in[3], in[4], {in[5], in[6], in[7]}, chunk, state);
}

// From the start through two calls; the state is compared too. Nothing of it has a gradient.
Case with_state(const Sizes& n, int64_t first) {
  Case c;
  c.name = fmt::format("{},cut={}", n.str(), first);
  c.inputs = inputs_of(n);
  for (InputSpec& input : c.inputs) {
    input.grad = false;
  }
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    LactState state = LactState::make(run, n.batch, n.heads, n.width, n.chunk);
    fill_zero(state.pending.view());  // rows past the last token stay undefined otherwise
    std::vector<Tensor> out;
    for (const auto& [begin, end] : {std::pair{int64_t{0}, first}, {first, n.length}}) {
      std::vector<Tensor> part = in;
      for (size_t i = 0; i < 5; ++i) {
        const View view = in[i].view().slice(1, begin, end);
        part[i] =
            i < 3 ? Tensor::constant(view) : run.from_host("packed", view.shape, to_host(view));
      }
      out.push_back(call(run, part, n.chunk, &state));
    }
    out.insert(out.end(), {state.weights, state.momentum, state.norms, state.pending});
    return out;
  };
  return c;
}

// q, k and v as parts of one projection that has heads of its own.
Case fused(const Sizes& n, int64_t other_heads) {
  const int64_t features = n.heads * n.width;
  Case c;
  c.name = n.str() + ",fused";
  c.inputs = inputs_of(n);
  c.inputs.erase(c.inputs.begin(), c.inputs.begin() + 3);
  c.inputs.insert(c.inputs.begin(), {"qkv", {n.batch, n.length, 3 * features + 2}});
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const auto part = [&](int64_t begin) {
      return in[0].part(in[0]
                            .view()
                            .slice(-1, begin, begin + features)
                            .split_last(other_heads, features / other_heads));
    };
    return std::vector<Tensor>{lact(run, part(0), part(features), part(2 * features), in[1], in[2],
                                    {in[3], in[4], in[5]}, n.chunk)};
  };
  return c;
}

}  // namespace

std::vector<Case> lact_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Sizes& n) -> Case& {
    Case c;
    c.name = n.str();
    c.grad_step = 1e-4;  // the momentum's gradient is small, and drowns in smaller steps
    c.inputs = inputs_of(n);
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{call(run, in, n.chunk)};
    };
    cases.push_back(c);
    return cases.back();
  };
  // With updates a width of 1 makes no sense: a row of one number is always its first norm. And the
  // gradient of momentum is one number for all of a chunk, a sum of many terms of both signs: there
  // are enough chunks and heads for the plain code not to be lucky with all of them.
  for (const Sizes& n : {Sizes{1, 1, 1, 1, 1},
                         {1, 2, 1, 2, 1},
                         {3, 7, 4, 5, 1},
                         {1, 8, 4, 12, 2},
                         {3, 9, 1, 7, 2},
                         {1, 5, 4, 9, 63},
                         {1, 63, 1, 17, 63},
                         {1, 130, 4, 8, 63},
                         {3, 128, 1, 6, 64},
                         {2, 193, 2, 33, 64},
                         {1, 70, 4, 16, 65},
                         {3, 200, 4, 5, 65},
                         {1, 600, 1, 16, 280},
                         {2, 70, 2, 64, 32}}) {
    add(n);
  }
  cases.push_back(fused({2, 11, 3, 8, 4}, 4));
  cases.push_back(fused({2, 130, 2, 18, 30}, 3));
  cases.push_back(with_state({1, 2, 1, 2, 1}, 1));
  cases.push_back(with_state({3, 9, 2, 7, 4}, 3));
  cases.push_back(with_state({1, 12, 4, 8, 4}, 8));
  cases.push_back(with_state({1, 200, 1, 16, 63}, 62));
  cases.push_back(with_state({1, 700, 1, 9, 300}, 599));
  cases.push_back(with_state({1, 70, 2, 64, 32}, 40));
  // Gradients that nobody wants.
  for (size_t frozen = 0; frozen < 8; ++frozen) {
    Case& c = add({1, 7, 2, 3, 3});
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }

  const Sizes large{2, 2048, 4, 192, 512};
  Case& perf = add(large);
  perf.name = "perf:" + large.str();
  perf.perf = true;
  // Reading takes three products of [T, D] with [D, D], a step six of them.
  perf.flops = 2.0 * 4 * 2 * 192 * 192 * (3.0 * 2048 + 6.0 * 1536);
  return cases;
}

}  // namespace fwpkm
