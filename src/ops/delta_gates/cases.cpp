#include "ops/delta_gates/delta_gates.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> delta_gates_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t time, int64_t key_heads, int64_t heads) -> Case& {
    Case c;
    c.name = fmt::format("T={},Hk={},Hv={}", time, key_heads, heads);
    c.inputs = {{"ba", {2, time, 2 * heads}}, {"A_log", {heads}}, {"dt_bias", {heads}}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const DeltaGates gates = delta_gates(run, in[0], in[1], in[2], key_heads);
      return std::vector<Tensor>{gates.g, gates.beta};
    };
    cases.push_back(c);
    return cases.back();
  };
  add(1, 1, 1);
  add(65, 2, 4);
  add(33, 3, 3);
  Case& packed = add(70, 2, 4);
  packed.name = "documents,T=70,Hk=2,Hv=4";
  packed.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor starts = run.from_host("starts", {2, 70}, packed_starts(2, 70));
    const DeltaGates gates = delta_gates(run, in[0], in[1], in[2], 2, starts);
    return std::vector<Tensor>{gates.g, gates.beta};
  };
  Case& perf = add(1024, 8, 8);
  perf.name = "perf:T=2x1024,H=8";
  perf.perf = true;
  return cases;
}

}  // namespace fwpkm
