#include "ops/lact_out/lact_out.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> lact_out_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape) -> Case& {
    Case c;
    c.name = fmt::format("x={}", shape.str());
    c.inputs = {{"a", {shape[0], shape[1], shape[2] * shape[3]}},
                {"x", shape},
                {"w", {shape[3]}},
                {"s", {shape[0], shape[1], shape[2]}}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{lact_out(run, in[0], in[1], in[2], in[3], 1e-5)};
    };
    cases.push_back(c);
    return cases.back();
  };
  // A row of one feature: only eps tells x apart, so its gradient drowns in smaller steps.
  add({1, 1, 1, 1}).grad_step = 1e-3;
  add({2, 3, 5, 7});
  add({1, 63, 2, 16});
  add({2, 65, 1, 33});
  for (size_t frozen = 0; frozen < 4; ++frozen) {
    Case& c = add({1, 4, 2, 9});
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  Case& perf = add({1, 2048, 4, 192});
  perf.name = "perf:T=2048,H=4,D=192";
  perf.perf = true;
  perf.bytes = 3.0 * 2048 * 768 * 4;
  perf.flops = 5.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
