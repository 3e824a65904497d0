#include "ops/norm_gate/norm_gate.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> norm_gate_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape) -> Case& {
    Case c;
    c.name = fmt::format("x={}", shape.str());
    c.inputs = {{"x", shape}, {"w", {shape[3]}}, {"z", shape}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{norm_gate(run, in[0], in[1], in[2], 1e-5)};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1, 1});
  add({2, 3, 5, 7});
  add({1, 63, 2, 16});
  add({1, 5, 3, 65});
  add({2, 65, 1, 12});
  // Gradients that nobody wants.
  for (size_t frozen = 0; frozen < 3; ++frozen) {
    Case& c = add({1, 4, 1, 9});
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  // z is a window of a wider projection, as large as `before + H D + after`.
  const auto strided = [&](int64_t tokens, int64_t heads, int64_t width, int64_t before,
                           int64_t after) -> Case& {
    Case c;
    const int64_t inner = heads * width;
    c.name = fmt::format("strided,tokens={},heads={},width={}", tokens, heads, width);
    c.inputs = {{"x", {1, tokens, heads, width}},
                {"w", {width}},
                {"z", {1, tokens, before + inner + after}}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const Tensor z =
          in[2].part(in[2].view().slice(-1, before, before + inner).split_last(heads, width));
      return std::vector<Tensor>{norm_gate(run, in[0], in[1], z, 1e-6)};
    };
    cases.push_back(c);
    return cases.back();
  };
  strided(7, 3, 12, 5, 2);
  Case& perf = strided(2048, 12, 64, 768, 768);
  perf.name = "perf:" + perf.name;
  perf.perf = true;
  perf.bytes = 3.0 * 2048 * 768 * 4;
  perf.flops = 8.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
