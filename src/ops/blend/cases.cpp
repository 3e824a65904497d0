#include "ops/blend/blend.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

std::vector<Tensor> build(Run& run, const std::vector<Tensor>& in) {
  return {blend(run, in[0], in[1], in[2])};
}

Case make_case(const Shape& shape, bool gated) {
  Case c;
  c.name = fmt::format("{}a={}", gated ? "" : "sum,", shape.str());
  c.inputs = {{"a", shape}, {"b", shape}, {"g", {}, Draw::kUnit}};
  if (gated) {
    c.inputs[2].shape = {shape[0], shape[1]};
  }
  c.build = &build;
  return c;
}

}  // namespace

std::vector<Case> blend_cases() {
  std::vector<Case> cases;
  for (const bool gated : {true, false}) {
    for (const Shape& shape : {Shape{1, 1, 1},
                               {2, 9, 1},
                               {1, 5, 2},
                               {3, 2, 7},
                               {1, 17, 63},
                               {2, 33, 64},
                               {2, 3, 65},
                               {1, 5, 512}}) {
      cases.push_back(make_case(shape, gated));
    }
    // Two halves of one projection.
    Case strided;
    strided.name = gated ? "strided" : "sum,strided";
    strided.inputs = {{"ab", {2, 5, 40}}, {"g", {}, Draw::kUnit}};
    if (gated) {
      strided.inputs[1].shape = {2, 5};
    }
    strided.build = [](Run& run, const std::vector<Tensor>& in) {
      const Tensor a = in[0].part(in[0].view().slice(-1, 0, 19));
      const Tensor b = in[0].part(in[0].view().slice(-1, 20, 39));
      return std::vector<Tensor>{blend(run, a, b, in[1])};
    };
    cases.push_back(strided);
    // One tensor as both inputs: its gradient is written once and then added to.
    Case same;
    same.name = gated ? "same" : "sum,same";
    // The gradient of the gate is 0. It is linear, so a large step keeps rounding from hiding that.
    same.grad_step = 0.1;
    same.inputs = {{"a", {1, 9, 20}}, {"g", {}, Draw::kUnit}};
    if (gated) {
      same.inputs[1].shape = {1, 9};
    }
    same.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{blend(run, in[0], in[0], in[1])};
    };
    cases.push_back(same);
    // Gradients that nobody wants.
    for (size_t frozen = 0; frozen < (gated ? 3 : 2); ++frozen) {
      Case c = make_case({1, 4, 9}, gated);
      c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
      c.inputs[frozen].grad = false;
      cases.push_back(c);
    }
    Case perf = make_case({1, 2048, 512}, gated);
    perf.name = "perf:" + perf.name;
    perf.perf = true;
    perf.bytes = (3.0 * 512 + (gated ? 1 : 0)) * 2048 * 4;
    perf.flops = (gated ? 3.0 : 1.0) * 2048 * 512;
    cases.push_back(perf);
  }
  // A gate is the only thing that is learned.
  Case gate_only = make_case({1, 4, 9}, true);
  gate_only.name += ",frozen=a,b";
  gate_only.inputs[0].grad = gate_only.inputs[1].grad = false;
  cases.push_back(gate_only);
  return cases;
}

}  // namespace fwpkm
