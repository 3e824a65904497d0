#include "ops/pkm_read/pkm_read.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

// Tokens, heads, sub-keys, slots read, query and value size.
struct Sizes {
  int64_t tokens, heads, n, k, dk, dv;
};

Case make(const Sizes& s) {
  Case c;
  c.name = fmt::format("tokens={},heads={},n={},k={},dk={},dv={}", s.tokens, s.heads, s.n, s.k,
                       s.dk, s.dv);
  c.inputs = {{"q", {s.tokens, s.heads, s.dk}},
              {"keys", {s.heads * 2 * s.n, s.dk / 2}, s.dk > 32 ? Draw::kSmall : Draw::kNormal},
              {"values", {s.n * s.n, s.dv}}};
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const PkmRead read = pkm_read(run, in[0], in[1], in[2], {s.heads, s.k, s.n});
    return std::vector<Tensor>{read.output, read.slots};
  };
  // Small, so that no difference quotient steps over a change of the selection.
  c.grad_step = 1e-6;
  return c;
}

}  // namespace

std::vector<Case> pkm_read_cases() {
  std::vector<Case> cases;
  for (const Sizes& s :
       {Sizes{1, 1, 2, 1, 16, 20}, Sizes{5, 2, 2, 2, 16, 20}, Sizes{5, 4, 6, 3, 16, 20},
        Sizes{64, 1, 6, 6, 16, 20}, Sizes{65, 2, 17, 8, 16, 20}, Sizes{130, 4, 17, 8, 16, 20},
        Sizes{1, 4, 17, 17, 16, 20}, Sizes{3, 2, 17, 3, 12, 7}, Sizes{7, 1, 17, 8, 2, 1},
        Sizes{65, 1, 40, 1, 64, 33}, Sizes{130, 1, 70, 8, 128, 65}, Sizes{2, 3, 35, 32, 70, 64},
        // On a GPU, rows that fill some lanes' second run; slots read by many and by nobody.
        Sizes{130, 2, 17, 8, 16, 264}, Sizes{9, 1, 40, 3, 16, 512}, Sizes{600, 4, 20, 16, 16, 512},
        // Selections with 4, 16 and 32 scores in a lane, rows that fill them and rows that do not.
        Sizes{33, 2, 128, 32, 16, 4}, Sizes{33, 2, 512, 32, 16, 4}, Sizes{17, 1, 300, 20, 16, 4},
        Sizes{9, 1, 1000, 32, 16, 1},
        // Values of whole tiles (64 features), one to eight; slots with about 16 reads, in runs of
        // any length, with two, and one slot with all reads: a tile of places or one more or less,
        // a window and one more, many windows.
        Sizes{200, 2, 12, 6, 16, 64}, Sizes{200, 2, 12, 6, 16, 128}, Sizes{200, 2, 12, 6, 16, 192},
        Sizes{200, 2, 12, 6, 16, 512}, Sizes{40, 2, 12, 3, 16, 448}, Sizes{150, 1, 2, 2, 16, 128},
        Sizes{15, 1, 1, 1, 16, 64}, Sizes{16, 1, 1, 1, 16, 64}, Sizes{17, 1, 1, 1, 16, 64},
        Sizes{33, 1, 1, 1, 16, 64}, Sizes{300, 1, 1, 1, 16, 512}}) {
    cases.push_back(make(s));
  }
  // Queries as a model has them, [B, T, H*dk]; and the weights, which carry no gradient.
  Case weights = make({15, 2, 17, 8, 16, 20});
  weights.name = "weights";
  weights.inputs[0].shape = {3, 5, 2 * 16};
  for (InputSpec& input : weights.inputs) {
    input.grad = false;
  }
  weights.build = [](Run& run, const std::vector<Tensor>& in) {
    const PkmRead read = pkm_read(run, in[0], in[1], in[2], {2, 8, 17});
    return std::vector<Tensor>{read.output, read.slots, read.weights};
  };
  cases.push_back(weights);
  // Scores full of ties, exact in every precision; any step would change what is selected.
  for (const int64_t k : {8, 32}) {
    Case ties = make({40, 2, 70, k, 16, 20});
    ties.name = fmt::format("ties,k={}", k);
    for (int i = 0; i < 2; ++i) {
      ties.inputs[i].draw = Draw::kWhole;
      ties.inputs[i].grad = false;
    }
    cases.push_back(ties);
  }
  // Only some of the gradients are wanted.
  for (int wanted = 0; wanted < 3; ++wanted) {
    Case c = make({9, 2, 17, 8, 16, 20});
    c.name = fmt::format("only {}", c.inputs[wanted].name);
    for (int i = 0; i < 3; ++i) {
      c.inputs[i].grad = i == wanted;
    }
    cases.push_back(c);
  }
  // Where values have 16 bits, so has their gradient: rows in runs of eight, of four and of one;
  // more reads of a slot than a window has.
  for (const Sizes& s :
       {Sizes{130, 2, 17, 8, 16, 264}, Sizes{600, 4, 20, 16, 16, 512}, Sizes{65, 2, 17, 8, 16, 20},
        Sizes{3, 2, 17, 3, 12, 7}, Sizes{70, 2, 6, 6, 16, 520}, Sizes{200, 2, 12, 6, 16, 192},
        Sizes{200, 2, 12, 6, 16, 512}, Sizes{300, 1, 1, 1, 16, 128}}) {
    Case c = make(s);
    c.name = "short gradient," + c.name;
    c.inputs[2].half_grad = true;
    cases.push_back(c);
  }
  // The paper's sizes but for n=512, whose table fills half a gigabyte.
  for (const Sizes& s : {Sizes{2048, 4, 128, 32, 512, 512}, Sizes{1, 4, 128, 32, 512, 512}}) {
    Case perf = make(s);
    perf.name = "perf:" + perf.name;
    perf.perf = true;
    const auto reads = static_cast<double>(s.tokens * s.heads * s.k);
    const auto scores = static_cast<double>(s.tokens * s.heads * 2 * s.n);
    perf.flops = scores * static_cast<double>(s.dk) + 2.0 * reads * static_cast<double>(s.dv);
    perf.bytes = 4.0 * reads * static_cast<double>(s.dv);
    cases.push_back(perf);
  }
  return cases;
}

}  // namespace fwpkm
