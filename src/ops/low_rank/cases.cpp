#include "ops/low_rank/low_rank.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> low_rank_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t heads, int64_t n, int64_t rank) -> Case& {
    Case c;
    c.name = fmt::format("H={},N={},R={}", heads, n, rank);
    c.inputs = {{"left", {heads, n, rank}}, {"right", {heads, rank, n}}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{low_rank(run, in[0], in[1], 0.5)};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1, 1);
  add(3, 7, 2);
  add(2, 33, 65);
  for (size_t frozen = 0; frozen < 2; ++frozen) {
    Case& c = add(2, 5, 3);
    c.name += fmt::format(",frozen={}", c.inputs[frozen].name);
    c.inputs[frozen].grad = false;
  }
  Case& perf = add(4, 192, 32);
  perf.name = "perf:H=4,N=192,R=32";
  perf.perf = true;
  perf.flops = 2.0 * 4 * 192 * 192 * 32;
  return cases;
}

}  // namespace fwpkm
