#include "ops/memory_gate/memory_gate.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> memory_gate_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape) -> Case& {
    Case c;
    c.name = fmt::format("logits={}", shape.str());
    c.inputs = {{"logits", shape}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{memory_gate(run, in[0])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1});
  add({2, 9, 1});
  add({1, 63, 2});
  add({3, 5, 7});
  add({2, 65, 8});
  add({1, 7, 63});
  add({1, 5, 64});
  add({1, 5, 65});
  add({1, 3, 512});
  // The logits are parts of a longer projection.
  Case strided;
  strided.name = "strided";
  strided.inputs = {{"x", {2, 9, 20}}};
  strided.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{memory_gate(run, in[0].part(in[0].view().slice(-1, 5, 13)))};
  };
  cases.push_back(strided);
  // The gradient is written by one call and added to by the other.
  Case twice;
  twice.name = "twice";
  twice.inputs = {{"logits", {1, 11, 8}}};
  twice.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{memory_gate(run, in[0]), memory_gate(run, in[0])};
  };
  cases.push_back(twice);
  // A gradient that nobody wants.
  Case frozen = cases[4];
  frozen.name += ",frozen=logits";
  frozen.inputs[0].grad = false;
  cases.push_back(frozen);
  Case& perf = add({1, 2048, 8});
  perf.name = "perf:" + perf.name;
  perf.perf = true;
  perf.bytes = 9.0 * 2048 * 4;
  perf.flops = 12.0 * 2048;
  return cases;
}

}  // namespace fwpkm
