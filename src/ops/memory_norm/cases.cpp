#include "ops/memory_norm/memory_norm.h"
#include "ops/registry.h"

namespace fwpkm {

std::vector<Case> memory_norm_cases() {
  std::vector<Case> cases;
  // gates 0: none.
  const auto add = [&](const Shape& x, int64_t gates) -> Case& {
    Case c;
    c.name = fmt::format("x={},gates={}", x.str(), gates);
    const int64_t width = x.dims[static_cast<size_t>(x.rank - 1)];
    c.inputs = {{"x", x}, {"w_q", {width}}, {"w_v", {width}}};
    if (gates > 0) {
      c.inputs.push_back({"w_g", {width}});
      c.inputs.push_back({"gate", {gates, width}});
      c.inputs.push_back({"b", {gates}});
    }
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const MemoryGate gate = gates > 0 ? MemoryGate{in[3], in[4], in[5]} : MemoryGate();
      const MemoryNorm r = memory_norm(run, in[0], in[1], in[2], gate, 1e-5);
      return gates > 0 ? std::vector<Tensor>{r.q, r.v, r.g} : std::vector<Tensor>{r.q, r.v};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 2}, 1);
  add({1, 3, 7}, 2);
  add({2, 9, 16}, 8);
  add({1, 63, 65}, 3);
  add({2, 65, 40}, 8);
  add({1, 130, 33}, 0);
  add({1, 5, 768}, 8);
  add({1, 3, 1032}, 64);
  add({1, 70, 264}, 2);
  add({1, 3, 2056}, 64);
  // Rows that are parts of longer ones.
  Case strided;
  strided.name = "strided";
  strided.inputs = {{"x", {2, 5, 40}}, {"w_q", {16}},     {"w_v", {16}},
                    {"w_g", {16}},     {"gate", {2, 16}}, {"b", {2}}};
  strided.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor part = in[0].part(in[0].view().slice(-1, 8, 24));
    const MemoryNorm r = memory_norm(run, part, in[1], in[2], {in[3], in[4], in[5]}, 1e-5);
    return std::vector<Tensor>{r.q, r.v, r.g};
  };
  cases.push_back(strided);
  // Only the gate is used, or all but the gate.
  for (const bool only : {true, false}) {
    Case& c = add({2, 9, 24}, 4);
    c.name += only ? ",gate alone" : ",gate unused";
    const auto whole = c.build;
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      const std::vector<Tensor> all = whole(run, in);
      return only ? std::vector<Tensor>{all[2]} : std::vector<Tensor>{all[0], all[1]};
    };
  }
  Case& perf = add({1, 2048, 768}, 8);
  perf.name = "perf:rows=2048,width=768,gates=8";
  perf.perf = true;
  perf.bytes = 3.0 * 2048 * 768 * 4;
  perf.flops = 8.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
