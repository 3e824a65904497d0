#include "ops/blend_norm/blend_norm.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

// Inputs for a and b of `shape`, whose last dimension is `width` in the call.
std::vector<InputSpec> gate_and_weight(const Shape& shape, int64_t width, bool gated) {
  return {{"g", gated ? Shape{shape[0], shape[1]} : Shape{}, Draw::kUnit}, {"w", {width}}};
}

Case make_case(const Shape& shape, bool gated) {
  Case c;
  c.name = fmt::format("{}a={}", gated ? "" : "sum,", shape.str());
  c.inputs = gate_and_weight(shape, shape[2], gated);
  c.inputs.push_back({"a", shape});
  c.inputs.push_back({"b", shape});
  // Of short rows little but the norm is left: with a small eps their gradients would be rounding.
  c.build = [eps = shape[2] < 4 ? 0.5 : 1e-5](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{blend_norm(run, in[2], in[3], in[0], in[1], eps)};
  };
  return c;
}

// a and b are parts of longer rows.
Case make_strided(const Shape& shape, int64_t a_at, int64_t b_at, int64_t width, bool gated) {
  Case c;
  c.name = fmt::format("{}strided,width={}", gated ? "" : "sum,", width);
  c.inputs = gate_and_weight(shape, width, gated);
  c.inputs.push_back({"ab", shape});
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const Tensor a = in[2].part(in[2].view().slice(-1, a_at, a_at + width));
    const Tensor b = in[2].part(in[2].view().slice(-1, b_at, b_at + width));
    return std::vector<Tensor>{blend_norm(run, a, b, in[0], in[1], 1e-5)};
  };
  return c;
}

}  // namespace

std::vector<Case> blend_norm_cases() {
  std::vector<Case> cases;
  for (const bool gated : {true, false}) {
    for (const Shape& shape : {Shape{1, 1, 1},
                               {2, 9, 1},
                               {1, 5, 2},
                               {3, 2, 7},
                               {1, 17, 63},
                               {2, 33, 64},
                               {2, 3, 65},
                               {1, 70, 264},
                               {1, 5, 512},
                               {1, 3, 2056}}) {
      cases.push_back(make_case(shape, gated));
    }
    cases.push_back(make_strided({2, 5, 40}, 0, 20, 19, gated));
    cases.push_back(make_strided({2, 5, 48}, 0, 24, 16, gated));
    // An input that is used before and after has a gradient to be added to.
    Case twice = make_case({2, 5, 24}, gated);
    twice.name += ",twice";
    twice.build = [](Run& run, const std::vector<Tensor>& in) {
      const Tensor y = blend_norm(run, in[2], in[3], in[0], in[1], 1e-5);
      return std::vector<Tensor>{blend_norm(run, y, in[2], in[0], in[1], 1e-5),
                                 blend_norm(run, in[3], y, in[0], in[1], 1e-5)};
    };
    cases.push_back(twice);
    // Gradients that nobody wants.
    Case plain = make_case({1, 4, 9}, gated);
    for (size_t frozen = gated ? 0 : 1; frozen < plain.inputs.size(); ++frozen) {
      Case c = plain;
      c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
      c.inputs[frozen].grad = false;
      cases.push_back(c);
    }
    Case perf = make_case({1, 2048, 512}, gated);
    perf.name = "perf:" + perf.name;
    perf.perf = true;
    perf.bytes = (3.0 * 512 + (gated ? 1 : 0)) * 2048 * 4;
    perf.flops = (gated ? 7.0 : 5.0) * 2048 * 512;
    cases.push_back(perf);
  }
  // A gate, or the weight, is the only thing that is learned.
  for (const size_t learned : {0, 1}) {
    Case c = make_case({1, 4, 16}, true);
    c.name += fmt::format(",only {}", c.inputs[learned].name);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      c.inputs[i].grad = i == learned;
    }
    cases.push_back(c);
  }
  return cases;
}

}  // namespace fwpkm
