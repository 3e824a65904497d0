#include "ops/registry.h"
#include "ops/rms_norm/rms_norm.h"

namespace fwpkm {

std::vector<Case> rms_norm_cases() {
  std::vector<Case> cases;
  const auto add = [&](int64_t rows, int64_t width, double offset) -> Case& {
    Case c;
    c.name = fmt::format("rows={},width={},offset={}", rows, width, offset);
    c.inputs = {{"x", {rows, width}}, {"w", {width}}};
    c.build = [=](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{rms_norm(run, in[0], in[1], {1e-5, offset, false})};
    };
    cases.push_back(c);
    return cases.back();
  };
  for (const auto& [rows, width] : {std::pair{1, 1}, {3, 7}, {63, 16}, {65, 65}, {130, 40}}) {
    add(rows, width, 1.0);
  }
  add(64, 33, 0.0);
  // Wider than what a warp of a GPU holds: one team of threads, rows that do not fill its last
  // turn.
  for (const auto& [rows, width] : {std::pair{5, 776}, {7, 1032}, {1100, 2048}, {3, 2056}}) {
    add(rows, width, 0.0);
  }
  // Rows that are parts of longer ones, as in [q, gate] projections.
  Case strided;
  strided.name = "strided";
  strided.inputs = {{"x", {2, 5, 3, 24}}, {"w", {12}}};
  strided.build = [](Run& run, const std::vector<Tensor>& in) {
    const Tensor part = in[0].part(in[0].view().slice(-1, 4, 16));
    return std::vector<Tensor>{rms_norm(run, part, in[1], {1e-6, 1.0, false})};
  };
  cases.push_back(strided);
  Case& perf = add(2048, 768, 1.0);
  perf.name = "perf:rows=2048,width=768";
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 768 * 4;
  perf.flops = 4.0 * 2048 * 768;
  return cases;
}

}  // namespace fwpkm
