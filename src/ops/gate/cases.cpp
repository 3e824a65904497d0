#include "ops/gate/gate.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> gate_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape) -> Case& {
    Case c;
    c.name = fmt::format("x={}", shape.str());
    c.inputs = {{"x", shape}, {"z", shape}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{sigmoid_gate(run, in[0], in[1])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1, 1});
  add({2, 3, 5, 7});
  add({1, 63, 2, 16});
  add({1, 5, 3, 65});
  // Gradients that nobody wants.
  for (size_t frozen = 0; frozen < 2; ++frozen) {
    Case& c = add({1, 4, 1, 9});
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  // The gate is the second half of each head of a [query, gate] projection.
  Case strided;
  strided.name = "strided";
  strided.inputs = {{"x", {2, 5, 3, 12}}, {"z", {2, 5, 3, 24}}};
  strided.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor z = in[1].part(in[1].view().slice(-1, 12, 24));
    return std::vector<Tensor>{sigmoid_gate(run, in[0], z)};
  };
  cases.push_back(strided);
  // One tensor as both inputs: its gradient is written once and then added to.
  Case same;
  same.name = "same";
  same.inputs = {{"x", {1, 9, 2, 20}}};
  same.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{sigmoid_gate(run, in[0], in[0])};
  };
  cases.push_back(same);
  Case perf;
  perf.name = "perf:x=[1, 2048, 12, 64],strided";
  perf.inputs = {{"x", {1, 2048, 12, 64}}, {"z", {1, 2048, 12, 128}}};
  perf.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor z = in[1].part(in[1].view().slice(-1, 64, 128));
    return std::vector<Tensor>{sigmoid_gate(run, in[0], z)};
  };
  perf.perf = true;
  perf.bytes = 3.0 * 2048 * 768 * 4;
  perf.flops = 4.0 * 2048 * 768;
  cases.push_back(perf);
  return cases;
}

}  // namespace fwpkm
