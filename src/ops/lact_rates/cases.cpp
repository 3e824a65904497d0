#include "ops/lact_rates/lact_rates.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> lact_rates_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t time, int64_t heads, double base) -> Case& {
    Case c;
    c.name = fmt::format("T={},H={},base={}", time, heads, base);
    c.inputs = {{"x", {2, time, 3 * heads}}, {"y", {2, time, heads}}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const LactRates rates = lact_rates(run, in[0], in[1], base);
      return std::vector<Tensor>{rates.lr, rates.momentum};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1, 0.001);
  add(65, 3, 0.1);
  add(700, 4, 2.0);
  for (size_t frozen = 0; frozen < 2; ++frozen) {
    Case& c = add(5, 2, 0.01);
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  Case& perf = add(2048, 4, 0.001);
  perf.name = "perf:T=2x2048,H=4";
  perf.perf = true;
  return cases;
}

}  // namespace fwpkm
