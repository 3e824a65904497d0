#include "ops/registry.h"
#include "ops/swiglu/swiglu.h"

namespace fwpkm {

std::vector<Case> swiglu_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t rows, int64_t width) -> Case& {
    Case c;
    c.name = fmt::format("rows={},width={}", rows, width);
    c.inputs = {{"gate", {rows, width}}, {"up", {rows, width}}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{swiglu(run, in[0], in[1])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1);
  add(5, 63);
  add(130, 65);
  // The same tensor twice: both gradients meet in one.
  Case square = add(7, 33);
  square.name = "gate is up";
  square.inputs.pop_back();
  square.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{swiglu(run, in[0], in[0])};
  };
  cases.push_back(square);
  Case& perf = add(2048, 2304);
  perf.name = "perf:rows=2048,width=2304";
  perf.perf = true;
  perf.bytes = 3.0 * 2048 * 2304 * 4;
  return cases;
}

}  // namespace fwpkm
