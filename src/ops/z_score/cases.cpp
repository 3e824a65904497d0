#include "ops/linear/linear.h"
#include "ops/registry.h"
#include "ops/z_score/z_score.h"

namespace fwpkm {

std::vector<Case> z_score_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape) -> Case& {
    Case c;
    c.name = fmt::format("x={}", shape.str());
    c.inputs = {{"x", shape}};
    c.build = [](Run& run, const std::vector<Tensor>& in) {
      return std::vector<Tensor>{z_score(run, in[0])};
    };
    cases.push_back(c);
    return cases.back();
  };
  add({1, 1, 1});
  add({2, 5, 1});
  // Of the gradient of two features only a share eps / (std + eps) is left: in float, here, less
  // than the rounding of what cancels. The small rows below check it where eps counts.
  add({1, 9, 2}).inputs[0].grad = false;
  add({3, 2, 7});
  add({1, 17, 63});
  add({65, 64});
  add({2, 3, 65});
  add({1, 9, 512});
  // Rows so small that eps counts as much as their std.
  for (const int64_t width : {2, 20}) {
    Case small;
    small.name = fmt::format("small,width={}", width);
    small.inputs = {{"x", {2, 9, width}}};
    small.build = [width](Run& run, const std::vector<Tensor>& in) {
      std::vector<double> scale(static_cast<size_t>(width * width), 0.0);
      for (int64_t i = 0; i < width; ++i) {
        scale[static_cast<size_t>(i * width + i)] = 0x1.0p-20;
      }
      const Tensor w = run.from_host("scale", {width, width}, scale, run.device().real);
      return std::vector<Tensor>{z_score(run, linear(run, in[0], w))};
    };
    cases.push_back(small);
  }
  // Rows that are parts of longer ones.
  Case strided;
  strided.name = "strided";
  strided.inputs = {{"x", {2, 5, 40}}};
  strided.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{z_score(run, in[0].part(in[0].view().slice(-1, 3, 26)))};
  };
  cases.push_back(strided);
  // The gradient is written by one call and added to by the other.
  Case twice;
  twice.name = "twice";
  twice.inputs = {{"x", {1, 6, 19}}};
  twice.build = [](Run& run, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{z_score(run, in[0]), z_score(run, in[0])};
  };
  cases.push_back(twice);
  // A gradient that nobody wants.
  Case frozen = cases[3];
  frozen.name += ",frozen=x";
  frozen.inputs[0].grad = false;
  cases.push_back(frozen);
  Case& perf = add({1, 2048, 512});
  perf.name = "perf:" + perf.name;
  perf.perf = true;
  perf.bytes = 2.0 * 2048 * 512 * 4;
  perf.flops = 6.0 * 2048 * 512;
  return cases;
}

}  // namespace fwpkm
