#include "ops/memory_qv/memory_qv.h"
#include "ops/registry.h"

namespace fwpkm {
namespace {

struct Shapes {
  Shape x;
  int64_t q_outs, v_outs, gates;  // gates 0: none
};

Case make_case(const Shapes& s, bool value_norm) {
  Case c;
  c.name = fmt::format("x={},q={},v={},gates={}{}", s.x.str(), s.q_outs, s.v_outs, s.gates,
                       value_norm ? "" : ",plain");
  const int64_t width = s.x[s.x.rank - 1];
  c.inputs = {{"x", s.x},          {"w_q", {width}}, {"q", {s.q_outs, width}},
              {"b_q", {s.q_outs}}, {"w_v", {width}}, {"v", {s.v_outs, width}},
              {"b_v", {s.v_outs}}};
  if (s.gates > 0) {
    c.inputs.push_back({"w_g", {width}});
    c.inputs.push_back({"gate", {s.gates, width}, Draw::kSmall});
    c.inputs.push_back({"b", {s.gates}});
  }
  c.build = [=](Run& run, const std::vector<Tensor>& in) {
    const MemoryGate gate = in.size() > 7 ? MemoryGate{in[7], in[8], in[9]} : MemoryGate();
    const MemoryQv r =
        memory_qv(run, in[0], {in[1], in[2], in[3]}, {in[4], in[5], in[6]}, gate, value_norm, 1e-5);
    return r.g ? std::vector<Tensor>{r.q, r.v, r.g} : std::vector<Tensor>{r.q, r.v};
  };
  return c;
}

}  // namespace

std::vector<Case> memory_qv_cases() {
  std::vector<Case> cases;
  for (const bool value_norm : {true, false}) {
    // In runs of eight, and not.
    for (const Shapes& s : {Shapes{{1, 1, 8}, 8, 8, 1},
                            {{2, 9, 16}, 24, 24, 8},
                            {{1, 70, 264}, 16, 16, 0},
                            {{1, 65, 24}, 264, 264, 3},
                            {{1, 3, 768}, 64, 64, 8},
                            {{1, 5, 40}, 776, 776, 2},
                            {{1, 3, 2048}, 8, 8, 2},
                            {{1, 3, 8}, 2048, 2048, 1},
                            {{1, 9, 16}, 24, 16, 2},
                            {{1, 5, 2056}, 8, 8, 1},
                            {{1, 7, 16}, 12, 12, 2},
                            {{2, 5, 7}, 16, 16, 0}}) {
      cases.push_back(make_case(s, value_norm));
    }
    // Outputs that nobody uses: no gradient comes to their projections.
    for (const size_t used : {0, 1, 2}) {
      Case c = make_case({{1, 9, 24}, 16, 16, 4}, value_norm);
      c.name += fmt::format(",output {} alone", used);
      for (const size_t i : {2, 3, 5, 6}) {
        c.inputs[i].grad = used == (i < 4 ? 0 : 1);
      }
      c.build = [whole = c.build, used](Run& run, const std::vector<Tensor>& in) {
        return std::vector<Tensor>{whole(run, in)[used]};
      };
      cases.push_back(c);
    }
  }
  // Gradients that nobody wants; all of one projection's; the only one that somebody wants.
  const Case plain = make_case({{1, 9, 24}, 16, 16, 4}, true);
  const auto add_frozen = [&](const std::string& name, auto&& learned) {
    Case c = plain;
    c.name += name;
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      c.inputs[i].grad = learned(i);
    }
    cases.push_back(c);
  };
  for (size_t i = 0; i < plain.inputs.size(); ++i) {
    add_frozen(fmt::format(",frozen={}", plain.inputs[i].name), [&](size_t k) { return k != i; });
  }
  add_frozen(",frozen projections", [](size_t i) { return i == 0 || i > 6; });
  add_frozen(",only x", [](size_t i) { return i == 0; });
  add_frozen(",only w_v", [](size_t i) { return i == 4; });
  // An x that is used before and after has a gradient to be added to.
  Case twice = make_case({{2, 5, 16}, 16, 16, 2}, true);
  twice.name += ",twice";
  twice.build = [whole = twice.build](Run& run, const std::vector<Tensor>& in) {
    std::vector<Tensor> again = in, out = whole(run, in);
    again[0] = out[0];
    std::vector<Tensor> more = whole(run, again), third = whole(run, in);
    return std::vector<Tensor>{more[0], more[1], third[0], third[2]};
  };
  cases.push_back(twice);
  // Rows that are parts of longer ones.
  Case strided = make_case({{2, 5, 40}, 8, 8, 2}, true);
  strided.name = "strided";
  for (const size_t i : {1, 4, 7}) {
    strided.inputs[i].shape = {16};
  }
  strided.inputs[2].shape = strided.inputs[5].shape = {8, 16};
  strided.inputs[8].shape = {2, 16};
  strided.build = [whole = strided.build](Run& run, const std::vector<Tensor>& in) {
    std::vector<Tensor> part = in;
    part[0] = in[0].part(in[0].view().slice(-1, 8, 24));
    return whole(run, part);
  };
  cases.push_back(strided);
  // More rows than teams at once.
  cases.push_back(make_case({{2, 2205, 8}, 8, 8, 2}, true));
  Case perf = make_case({{1, 2048, 768}, 512, 512, 8}, true);
  perf.name = "perf:rows=2048,width=768,out=512,gates=8";
  perf.perf = true;
  perf.flops = 4.0 * 2048 * 768 * 512;
  perf.bytes = 4.0 * 2048 * (3 * 768 + 3 * 512);
  cases.push_back(perf);
  return cases;
}

}  // namespace fwpkm
